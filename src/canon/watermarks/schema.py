"""What a key may hold. A key is data from a stranger.

`check_plain` is for every key: types, names, sizes, finite numbers. What the tensors and settings of one scheme are
called, and which shapes they have, says `Scheme.check_key`, with the helpers below. Everything follows from the marked
layers and the length of the message, so that nothing is left for a key to choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, isfinite, isnan, prod
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from canon.errors import KeyFileError
from canon.watermarks.message import Message

if TYPE_CHECKING:
    from canon.watermarks.key import Key

MOST_LAYERS: Final = 20_000
MOST_BITS: Final = 1 << 20
MOST_TENSORS: Final = 100_000
MOST_DIMENSIONS: Final = 5
LARGEST_SHAPE: Final = 1 << 36
LONGEST_NAME: Final = 300
LONGEST_TEXT: Final = 1 << 14
LARGEST_INTEGER: Final = 1 << 53
LARGEST: Final = 1e6
"""Largest magnitude of a number in a key of Canon's own schemes: what is drawn is about one."""

LARGEST_STATISTIC: Final = 1e30
"""The same for running means and variances, which have the model's own size."""

MOST_PIXELS: Final = 16 * 3 * 640 * 640
"""Most numbers in the images of a key."""

LONGEST_TOKENS: Final = 1 << 15
"""Most tokens in a text of a key."""

LARGEST_TOKEN: Final = 1 << 31

PARALLEL: Final = 0.999
"""Two columns of a projection with a cosine beyond this are one and the same carrier."""

FLOATS: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_plain(key: Key) -> None:
    """Raise unless a key is made of plain values of sensible sizes, whatever its scheme."""
    _name(key.scheme, "the scheme")
    _name(key.architecture, "the architecture")
    if not isinstance(key.shapes, Mapping) or not 0 < len(key.shapes) <= MOST_LAYERS:
        raise refused(f"it must name 1 to {MOST_LAYERS} layers")
    for layer, shape in key.shapes.items():
        _name(layer, "a layer's name")
        _shape(layer, shape)
    if not isinstance(key.message, Message):
        raise refused("its message is no Message")
    if len(key.message) > MOST_BITS:
        raise refused(f"its message has {len(key.message)} bits, and at most {MOST_BITS} are allowed")
    if not isinstance(key.settings, Mapping) or not isinstance(key.tensors, Mapping):
        raise refused("its settings and tensors must be tables")
    for name, value in key.settings.items():
        _name(name, "a setting's name")
        _setting(name, value)
    if len(key.tensors) > MOST_TENSORS:
        raise refused(f"it has {len(key.tensors)} tensors, and at most {MOST_TENSORS} are allowed")
    for name, tensor in key.tensors.items():
        _name(name, "a tensor's name")
        _tensor(name, tensor)


def require_settings(key: Key, names: Iterable[str]) -> None:
    """Raise unless the key has settings of exactly these names."""
    _same_names("setting", key.settings, names)


def require_tensors(
    key: Key, shapes: Mapping[str, tuple[int, ...]], largest: float = LARGEST, besides: tuple[str, ...] = ()
) -> None:
    """Raise unless the key has exactly these tensors, of these shapes, with float numbers up to `largest`.

    Those `besides` must be there too, and are checked elsewhere.
    """
    _same_names("tensor", key.tensors, {*shapes, *besides})
    for name, shape in shapes.items():
        require_numbers(key, name, shape, largest)


def require_numbers(key: Key, name: str, shape: tuple[int, ...], largest: float = LARGEST) -> None:
    """Raise unless this tensor has this shape and float numbers up to `largest`."""
    tensor = key.tensors[name]
    if tuple(tensor.shape) != shape:
        raise refused(f"the tensor '{name}' has the shape {_times(tensor.shape)}, not {_times(shape)}")
    if tensor.dtype not in FLOATS:
        raise refused(f"the tensor '{name}' holds {tensor.dtype}, not floats")
    if not _largest(tensor) <= largest:
        raise refused(f"the tensor '{name}' holds numbers beyond {largest:g}")


def require_positive(key: Key, name: str) -> None:
    """Raise unless a tensor's numbers are all above zero."""
    if not bool((key.tensors[name] > 0).all()):
        raise refused(f"the tensor '{name}' must be above zero")


def require_inputs(key: Key, name: str, most: int) -> None:
    """Raise unless a tensor holds 1 to `most` images, or texts as token ids, of a sensible size."""
    shape = tuple(key.tensors[name].shape)
    if key.tensors[name].dtype == torch.int64:
        if len(shape) != 2 or not 0 < shape[0] <= most or not 0 < shape[1] <= LONGEST_TOKENS:
            raise refused(f"the tensor '{name}' of shape {_times(shape)} must be 1 to {most} short texts")
        low, high = key.tensors[name].aminmax()
        if not 0 <= int(low) <= int(high) < LARGEST_TOKEN:
            raise refused(f"the tensor '{name}' must hold token ids, which are not negative and below {LARGEST_TOKEN}")
        return
    if len(shape) != 4 or not 0 < shape[0] <= most or not 0 < prod(shape) <= MOST_PIXELS:
        raise refused(f"the tensor '{name}' of shape {_times(shape)} must be 1 to {most} images of a sensible size")
    require_numbers(key, name, shape)


def require_independent(columns: Tensor, name: str) -> None:
    """Raise if a carrier is zero, or if two are the same up to a factor: their bits would be one bit."""
    columns = columns.double()
    lengths = columns.norm(dim=0)
    if not bool((lengths > 0).all()):
        raise refused(f"the tensor '{name}' has a carrier of zeros, which reads nothing")
    if columns.shape[0] < 2:
        if columns.shape[1] > 1:
            raise refused(f"the tensor '{name}' has more carriers than numbers to read")
        return
    directions = functional.normalize(columns, dim=0)
    cosines = (directions.T @ directions).abs().fill_diagonal_(0)
    if bool((cosines > PARALLEL).any()):
        raise refused(f"the tensor '{name}' has the same carrier twice, so that two bits are one")


def require_norms(key: Key, layers: Iterable[str]) -> None:
    """Raise unless the setting `norms` names one norm (or other place), and none twice, for exactly these layers."""
    norms = key.settings["norms"]
    if not isinstance(norms, Mapping) or set(norms) != set(layers):
        raise refused("the setting 'norms' must name the norm behind every marked layer")
    if not all(isinstance(norm, str) for norm in norms.values()) or len(set(norms.values())) != len(norms):
        raise refused("the setting 'norms' must name one norm for each layer")


def integer(key: Key, name: str, least: int, most: int) -> int:
    """A setting that is a whole number in this range."""
    value = key.settings[name]
    if type(value) is not int or not least <= value <= most:
        raise refused(f"the setting '{name}' must be a whole number from {least} to {most}")
    return value


def hexadecimal(key: Key, name: str, digits: int | None = None) -> str:
    """A setting that is a row of lower-case hexadecimal digits, of this length if one is given."""
    value = key.settings[name]
    if not isinstance(value, str) or set(value) - set("0123456789abcdef") or len(value) % 2:
        raise refused(f"the setting '{name}' must be hexadecimal digits")
    if digits is not None and len(value) != digits:
        raise refused(f"the setting '{name}' must have {digits} hexadecimal digits, not {len(value)}")
    return value


def refused(reason: str) -> KeyFileError:
    """What is wrong with a key."""
    return KeyFileError(
        f"the watermark key is not what its scheme writes: {reason}", hint="Use the key as it was written"
    )


def _name(value: Any, what: str) -> None:
    if not isinstance(value, str) or not value or len(value) > LONGEST_NAME or not value.isprintable():
        raise refused(f"{what} must be 1 to {LONGEST_NAME} printable characters, not {value!r:.60}")


def _shape(layer: str, shape: Any) -> None:
    whole = isinstance(shape, tuple) and all(type(size) is int and size > 0 for size in shape)
    if not whole or not 2 <= len(shape) <= MOST_DIMENSIONS or prod(shape) > LARGEST_SHAPE:
        raise refused(f"the shape of layer '{layer}' is {shape!r:.60}")


def _setting(name: str, value: Any) -> None:
    if not _plain(value):
        raise refused(f"the setting '{name}' is {value!r:.60}")


def _plain(value: Any) -> bool:
    match value:
        case bool():
            return True
        case str():
            return len(value) <= LONGEST_TEXT and value.isprintable()
        case int():
            return abs(value) <= LARGEST_INTEGER
        case float():
            return isfinite(value)
        case list():
            return len(value) <= MOST_LAYERS and all(type(entry) in (str, int) and _plain(entry) for entry in value)
        case dict():
            entries = (*value.keys(), *value.values())
            return len(value) <= MOST_LAYERS and all(type(entry) is str and _plain(entry) for entry in entries)
        case _:
            return False


def _tensor(name: str, tensor: Any) -> None:
    plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_nested
    if not plain or tensor.is_meta or tensor.is_quantized or tensor.is_complex():
        raise refused(f"the tensor '{name}' is no plain tensor of real numbers")
    if tensor.dtype in FLOATS and not _largest(tensor) <= torch.finfo(torch.float32).max:
        raise refused(f"the tensor '{name}' holds numbers that are not finite")


def _largest(tensor: Tensor) -> float:
    """The largest magnitude, without a copy of the tensor; NaN if there is one."""
    if not tensor.numel():
        return 0.0
    low, high = tensor.aminmax()
    return max(-float(low), float(high), key=lambda value: inf if isnan(value) else value)


def _same_names(what: str, have: Iterable[str], want: Iterable[str]) -> None:
    have, want = set(have), set(want)
    for word, names in (("lacks the", want - have), ("has an unknown", have - want)):
        if names:
            raise refused(f"it {word} {what} '{min(names)}'")


def _times(shape: Iterable[int]) -> str:
    return "×".join(map(str, shape)) or "one number"
