"""What a program's JSON says about numbers, types and shapes, as Python values."""

from __future__ import annotations

from typing import Any, Final

import torch

from canon._untrusted import natural

DTYPES: Final[dict[int, torch.dtype]] = {
    1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64, 6: torch.float16, 7: torch.float32,
    8: torch.float64, 10: torch.complex64, 11: torch.complex128, 12: torch.bool, 13: torch.bfloat16, 28: torch.uint16,
    29: torch.float8_e4m3fn, 30: torch.float8_e5m2, 34: torch.uint32, 35: torch.uint64,
}  # fmt: skip
_MEMORY_FORMATS: Final = {
    1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d, 4: torch.preserve_format,
}  # fmt: skip
_SPECIAL: Final = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}
_LARGEST: Final = 1 << 63


def only(union: Any) -> tuple[str, Any]:
    """The one field of a union."""
    if not isinstance(union, dict) or len(union) != 1:
        raise ValueError("expected one of several kinds")
    ((kind, value),) = union.items()
    return kind, value


def integer(value: Any) -> int:
    """A whole number that fits 64 bits."""
    if type(value) is not int or not -_LARGEST <= value < _LARGEST:
        raise ValueError(f"expected a whole number, got a {type(value).__name__}")
    return value


def text(value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise ValueError(f"expected a text, got a {type(value).__name__}")
    return value


def real(value: Any) -> float:
    """A number; those that JSON cannot hold are spelled out."""
    if isinstance(value, str):
        return _SPECIAL[value]
    if type(value) not in (int, float):
        raise ValueError(f"expected a number, got a {type(value).__name__}")
    return float(value)


def truth(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got a {type(value).__name__}")
    return value


def size(value: Any) -> int:
    """A size; one that the input decides has a hint, and 2 will do where it has none."""
    kind, given = only(value)
    if kind == "as_int":
        return natural(given)
    hint = given.get("hint")
    return 2 if hint is None else natural(hint["as_int"])


def sizes(values: Any) -> tuple[int, ...]:
    """A shape."""
    if not isinstance(values, list) or len(values) > 64:
        raise ValueError("expected a shape")
    return tuple(size(value) for value in values)


PLAIN: Final[dict[str, Any]] = {
    "as_none": lambda value: None,
    "as_int": integer,
    "as_ints": lambda values: [integer(v) for v in values],
    "as_float": real,
    "as_floats": lambda values: [real(v) for v in values],
    "as_bool": truth,
    "as_bools": lambda values: [truth(v) for v in values],
    "as_string": text,
    "as_scalar_type": lambda value: DTYPES[integer(value)],
    "as_memory_format": lambda value: _MEMORY_FORMATS[integer(value)],
    "as_layout": lambda value: torch.strided if integer(value) == 7 else {}[value],
    "as_device": lambda value: torch.device("cpu"),
}
"""Arguments that are values, by kind. Wherever a program was made, it is read for the CPU."""
