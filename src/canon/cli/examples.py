"""Examples for the help of a verb. Tests run every one of them."""

from __future__ import annotations

import re
import textwrap
from typing import Final

WIDTH: Final = 74
"""Characters of a line: help is read on 80 columns, and indents."""


def examples(*lines: str) -> str:
    r"""The end of a verb's help: whole commands, which as they are (`\b` says so), long ones in several lines.

    >>> print(examples("canon inspect resnet18", "canon inspect suspect.onnx --json").replace("\b", ""))
    <BLANKLINE>
    Examples:
      canon inspect resnet18
      canon inspect suspect.onnx --json
    """
    return "\n".join(["\b", "Examples:", *("  " + _folded(line) for line in lines)])


def _folded(line: str) -> str:
    together = re.sub(r"( -\S+) (?!-)", "\\1\xa0", line)  # an option and its value
    parts = textwrap.wrap(together, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return " \\\n  ".join(parts).replace("\xa0", " ")
