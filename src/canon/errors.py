"""Every error that Canon raises on purpose, one class per cause.

The message says what failed, `where` names the node, layer or file, and `hint` says what to do next.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

SIZE_HINT: Final = "Give the shape of one input, as --size 3x224x224 (size=(3, 224, 224)), or export fixed sizes"
"""What to do where the size of an input is the problem."""

_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.?)")


def printable(text: str) -> str:
    """Text without colour codes and other characters that do something to a terminal.

    >>> printable("\\x1b[96mfailed\\x1b[0m\\r")
    'failed'
    """
    return "".join(c for c in _ESCAPES.sub("", text) if c.isprintable() or c in "\n\t")


def reason_of(error: BaseException) -> str:
    """What an error of another library says, in one line: its first cause says most."""
    seen = {id(error)}
    while error.__cause__ is not None and id(error.__cause__) not in seen:
        error = error.__cause__
        seen.add(id(error))
    lines = [line.strip() for line in printable(str(error)).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def choices(given: str, known: Iterable[str]) -> str:
    """What to do about a name that does not exist.

    >>> choices("uchida71", ["uchida17", "greedy"])
    "Did you mean 'uchida17'? Known: uchida17, greedy"
    """
    names = list(known)
    near = get_close_matches(given, names, n=1)
    return (f"Did you mean '{near[0]}'? " if near else "") + f"Known: {', '.join(names) or 'none'}"


class CanonError(Exception):
    """Root of all errors that Canon raises for a reason the user can act on."""

    def __init__(self, message: str, *, hint: str | None = None, where: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where

    def __str__(self) -> str:
        text = self.message
        if self.where is not None:
            text += f" (at {self.where})"
        if self.hint is not None:
            text += f". {self.hint}"
        return printable(text)


class TraceError(CanonError):
    """The forward pass cannot be turned into a graph."""


class ExampleError(CanonError):
    """The example input does not fit the model."""


class TrainingModeError(CanonError):
    """The model is in training mode, where norms and dropout are not functions of the weights."""


class UnsupportedModelError(CanonError):
    """The model holds something Canon cannot read, such as quantized or non-finite parameters."""


class TransformError(CanonError):
    """A channel transform does not fit the space or axis it is applied to."""


class AttackError(CanonError):
    """An attack was asked for that cannot be carried out."""


class RecoveryError(CanonError):
    """Recovery could not give a model that agrees with its input."""


class VerificationError(CanonError):
    """Two models or files cannot be compared."""


class KeyFileError(CanonError):
    """A key file is damaged, of a newer format, or of another kind."""


class WatermarkError(CanonError):
    """A watermark cannot be embedded or read as asked."""


class ClaimError(CanonError):
    """A claim, its opening, a time-stamp or a signature is damaged, or does not show what it should."""


class DataError(CanonError):
    """A dataset is missing, empty or of the wrong form."""


class ZooError(CanonError):
    """A model name is unknown or the model cannot be built."""


class FileFormatError(CanonError):
    """A model file is damaged, hostile, or of a format that is refused."""


class LimitError(FileFormatError):
    """A model file asks for more memory than the limits allow."""


class BenchError(CanonError):
    """A suite, case or record of the benchmark is not usable."""


class ReportError(CanonError):
    """A report cannot be made of what was given."""


class MissingExtraError(CanonError):
    """An optional dependency is needed and not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"the package '{package}' is not installed",
            hint=f"Install it with: pip install 'canon-nso[{extra}]'",
        )


def import_extra(module: str, extra: str, package: str | None = None) -> Any:
    """Import an optional dependency, which an extra of ours brings.

    Raises:
        MissingExtraError: It is not installed; `package` is what it is called where packages are.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(package or error.name or module, extra) from error
