"""JSON in exactly one spelling, and strict reading of files that strangers write."""

from __future__ import annotations

import base64
import binascii
import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from canon._untrusted import parse_json
from canon.errors import CanonError, ClaimError

MOST_BYTES: Final = 32 << 20
"""Largest file that is read."""

_HEX: Final = re.compile(r"(?:[0-9a-f]{2})*")


@contextmanager
def hostile(what: str) -> Iterator[None]:
    """Whatever a parser of hostile bytes raises or warns of becomes one error about `what`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ClaimError:
        raise
    except Exception as error:
        raise ClaimError(f"the {what} is damaged ({type(error).__name__})") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # what libraries written in Rust raise, and no Exception
            raise
        raise ClaimError(f"the {what} is damaged") from error


def canonical(value: Any) -> bytes:
    """JSON with sorted names, no white space, and ASCII alone.

    >>> canonical({"b": [1, True], "a": "é"})
    b'{"a":"\\\\u00e9","b":[1,true]}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def parse(data: bytes, what: str) -> Any:
    """JSON from a stranger; `what` names it in errors."""
    if len(data) > MOST_BYTES:
        raise ClaimError(f"the {what} is larger than {MOST_BYTES >> 20} MiB, which none is")
    try:
        return parse_json(data, what)
    except CanonError as error:
        raise ClaimError(
            f"the {what} is damaged: it is no JSON", hint="Fetch it again from where it was saved"
        ) from error


def fields(value: Any, what: str, *names: str) -> list[Any]:
    """The values of exactly these names, in their order."""
    if not isinstance(value, dict):
        raise ClaimError(f"the {what} is damaged: an object is missing")
    for name in names:
        if name not in value:
            raise ClaimError(f"the {what} is damaged: '{name}' is missing")
    unknown = sorted(set(value) - set(names))
    if unknown:
        raise ClaimError(f"the {what} holds '{unknown[0]:.40}', which this Canon does not know", hint="Upgrade Canon")
    return [value[name] for name in names]


def check_format(kind: Any, version: Any, wanted: str, newest: int, what: str) -> None:
    """Refuse files of another kind or of a newer version."""
    if kind != wanted:
        raise ClaimError(f"the file is no {what}: its format is '{kind!s:.40}'")
    if version is not newest and version != newest:
        raise ClaimError(f"the {what} has version {version!r:.40}; this Canon reads {newest}", hint="Upgrade Canon")


def from_hex(text: Any, what: str, size: int | None = None) -> bytes:
    """Bytes of lower-case hexadecimal digits."""
    if not isinstance(text, str) or not _HEX.fullmatch(text) or (size is not None and len(text) != 2 * size):
        raise ClaimError(f"the {what} is damaged: expected hexadecimal digits, got {text!r:.40}")
    return bytes.fromhex(text)


def to_base64(data: bytes) -> str:
    """Standard base64."""
    return base64.b64encode(data).decode()


def from_base64(text: Any, what: str) -> bytes:
    """Bytes of base64 in its one spelling."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise ClaimError(f"the {what} is damaged: it is no base64") from error
    if to_base64(data) != text:
        raise ClaimError(f"the {what} is damaged: its base64 has another spelling")
    return data


def write_time(moment: datetime) -> str:
    """A moment in UTC, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_time(text: Any, what: str) -> datetime:
    """A moment as `write_time` writes it."""
    try:
        moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except (TypeError, ValueError) as error:
        raise ClaimError(f"the {what} is damaged: {text!r:.40} is no time") from error
    if write_time(moment) != text:
        raise ClaimError(f"the {what} is damaged: {text!r:.40} is no time")
    return moment
