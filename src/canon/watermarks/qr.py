"""QR codes of one kind: version 3 (29×29 modules), error correction H, byte mode, no border.

Follows ISO/IEC 18004. One freedom is used: of the eight mask patterns the one that leaves dark and
light modules most even is taken, because a watermark wants its carriers to be fair coins. Readers
accept any mask.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from canon.errors import WatermarkError
from canon.watermarks import reed_solomon

SIZE: Final = 29
CAPACITY: Final = 24
"""Most bytes that one code holds."""

_BLOCKS: Final = 2
_DATA: Final = 13
_PARITY: Final = 22
_ALIGNMENT: Final = 22
_LEVEL_H: Final = 0b10
_FORMAT_GENERATOR: Final = 0x537
_FORMAT_MASK: Final = 0x5412

Modules = NDArray[np.bool_]
"""29×29, True is dark."""


def encode(data: bytes) -> Modules:
    """The code of these bytes."""
    if len(data) > CAPACITY:
        raise WatermarkError(f"a QR code of version 3-H holds {CAPACITY} bytes, got {len(data)}")
    stream = _interleaved(_padded(data))
    bits = [byte >> shift & 1 for byte in stream for shift in range(7, -1, -1)]
    bits += [0] * (len(_data_cells()) - len(bits))
    candidates = [_drawn(bits, mask) for mask in range(8)]
    data_cells = tuple(np.array(_data_cells()).T)
    return min(candidates, key=lambda code: abs(float(code[data_cells].mean()) - 0.5))


def decode(modules: Modules) -> bytes:
    """The bytes of a code; up to 11 of the 35 bytes of either block may be damaged."""
    mask = _read_mask(modules)
    bits = [int(modules[cell]) ^ int(_masked(mask, *cell)) for cell in _data_cells()]
    total = _BLOCKS * (_DATA + _PARITY)
    stream = [int("".join(map(str, bits[8 * at : 8 * at + 8])), 2) for at in range(total)]
    data: list[int] = []
    for block in range(_BLOCKS):
        data += reed_solomon.decode(stream[block::_BLOCKS], _PARITY)
    digits = "".join(f"{byte:08b}" for byte in data)
    mode, length = int(digits[:4], 2), int(digits[4:12], 2)
    if mode != 0b0100 or length > CAPACITY:
        raise WatermarkError("the QR code does not hold bytes")
    return bytes(int(digits[12 + 8 * at : 20 + 8 * at], 2) for at in range(length))


def pattern_cells() -> Modules:
    """True where a finder (with its separator), the alignment or a timing pattern lies."""
    cells = np.zeros((SIZE, SIZE), dtype=np.bool_)
    for row, column in ((0, 0), (0, SIZE - 8), (SIZE - 8, 0)):
        cells[row : row + 8, column : column + 8] = True
    cells[6, :] = cells[:, 6] = True
    cells[_ALIGNMENT - 2 : _ALIGNMENT + 3, _ALIGNMENT - 2 : _ALIGNMENT + 3] = True
    return cells


def with_patterns(modules: Modules) -> Modules:
    """The same modules with the fixed patterns drawn over them."""
    drawn = modules.copy()
    drawn[6, :] = drawn[:, 6] = np.arange(SIZE) % 2 == 0
    finder = np.zeros((8, 8), dtype=np.bool_)
    finder[:7, :7] = True
    finder[1:6, 1:6] = False
    finder[2:5, 2:5] = True
    drawn[:8, :8] = finder
    drawn[:8, -8:] = finder[:, ::-1]
    drawn[-8:, :8] = finder[::-1]
    near = slice(_ALIGNMENT - 2, _ALIGNMENT + 3)
    drawn[near, near] = True
    inner = slice(_ALIGNMENT - 1, _ALIGNMENT + 2)
    drawn[inner, inner] = False
    drawn[_ALIGNMENT, _ALIGNMENT] = True
    return drawn


def _padded(data: bytes) -> list[int]:
    """Mode, length, data, terminator, then the standard's padding bytes."""
    digits = "0100" + f"{len(data):08b}" + "".join(f"{byte:08b}" for byte in data) + "0000"
    content = [int(digits[at : at + 8], 2) for at in range(0, len(digits), 8)]
    padding = (0xEC, 0x11)
    room = _BLOCKS * _DATA - len(content)
    return content + [padding[at % 2] for at in range(room)]


def _interleaved(content: list[int]) -> list[int]:
    blocks = [content[block * _DATA : (block + 1) * _DATA] for block in range(_BLOCKS)]
    coded = [block + reed_solomon.encode(block, _PARITY) for block in blocks]
    return [block[at] for at in range(_DATA + _PARITY) for block in coded]


def _drawn(bits: list[int], mask: int) -> Modules:
    modules = with_patterns(np.zeros((SIZE, SIZE), dtype=np.bool_))
    for cell, bit in zip(_data_cells(), bits, strict=True):
        modules[cell] = bool(bit) ^ _masked(mask, *cell)
    word = _format_word(mask)
    for copy in _format_cells():
        for place, cell in enumerate(copy):
            modules[cell] = bool(word >> (14 - place) & 1)
    modules[SIZE - 8, 8] = True
    return modules


def _format_word(mask: int) -> int:
    """Level and mask with ten BCH parity bits, most significant bit first."""
    data = _LEVEL_H << 3 | mask
    remainder = data << 10
    for shift in range(4, -1, -1):
        if remainder >> (10 + shift) & 1:
            remainder ^= _FORMAT_GENERATOR << shift
    return (data << 10 | remainder) ^ _FORMAT_MASK


def _format_cells() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Both copies of the format word, first bit first."""
    around = [(8, column) for column in (0, 1, 2, 3, 4, 5, 7, 8)]
    around += [(row, 8) for row in (7, 5, 4, 3, 2, 1, 0)]
    split = [(SIZE - 1 - step, 8) for step in range(7)]
    split += [(8, SIZE - 8 + step) for step in range(8)]
    return around, split


def _read_mask(modules: Modules) -> int:
    """The mask whose format word is nearest to what both copies say."""
    read = np.array([[modules[cell] for cell in copy] for copy in _format_cells()])

    def distance(mask: int) -> int:
        word = _format_word(mask)
        bits = np.array([bool(word >> (14 - place) & 1) for place in range(15)])
        return int((read != bits).sum())

    return min(range(8), key=distance)


def _masked(mask: int, row: int, column: int) -> bool:
    """Whether this mask pattern inverts this module."""
    product = row * column
    return (
        (row + column) % 2 == 0,
        row % 2 == 0,
        column % 3 == 0,
        (row + column) % 3 == 0,
        (row // 2 + column // 3) % 2 == 0,
        product % 2 + product % 3 == 0,
        (product % 2 + product % 3) % 2 == 0,
        ((row + column) % 2 + product % 3) % 2 == 0,
    )[mask]


def _data_cells() -> list[tuple[int, int]]:
    """Cells of the data bits in their order: column pairs from the right, up and down in turn."""
    taken = pattern_cells()
    for copy in _format_cells():
        for cell in copy:
            taken[cell] = True
    taken[SIZE - 8, 8] = True
    cells: list[tuple[int, int]] = []
    # Column 6 is a timing pattern, so the pairs to its left start one further.
    columns = [right if right > 6 else right - 1 for right in range(SIZE - 1, 0, -2)]
    for turn, right in enumerate(columns):
        rows = range(SIZE - 1, -1, -1) if turn % 2 == 0 else range(SIZE)
        cells += [(row, column) for row in rows for column in (right, right - 1) if not taken[row, column]]
    return cells
