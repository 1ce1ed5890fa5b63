"""Reed–Solomon codes over GF(256), as QR codes use them.

Bytes are elements of the field modulo `x⁸+x⁴+x³+x²+1`, polynomials are lists with the highest power
first, and the generator's roots are `α⁰ … α^(parity−1)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from canon.errors import WatermarkError

_POLYNOMIAL: Final = 0x11D


def _tables() -> tuple[list[int], list[int]]:
    powers, logarithms, value = [0] * 510, [0] * 256, 1
    for exponent in range(255):
        powers[exponent] = powers[exponent + 255] = value
        logarithms[value] = exponent
        value = value << 1 ^ (_POLYNOMIAL if value & 0x80 else 0)
    return powers, logarithms


_POWER, _LOGARITHM = _tables()


def encode(data: Sequence[int], parity: int) -> list[int]:
    """The parity bytes of `data`: the remainder of `data·x^parity` by the generator."""
    generator = [1]
    for exponent in range(parity):
        generator = _times(generator, [1, _POWER[exponent]])
    remainder = [*data, *([0] * parity)]
    for position in range(len(data)):
        factor = remainder[position]
        for offset, coefficient in enumerate(generator):
            remainder[position + offset] ^= _product(coefficient, factor)
    return remainder[-parity:]


def decode(received: Sequence[int], parity: int) -> list[int]:
    """The data bytes, after up to `parity // 2` wrong bytes are put right."""
    syndromes = [_value(received, _POWER[exponent]) for exponent in range(parity)]
    if not any(syndromes):
        return list(received[:-parity])
    locator = _locator(syndromes)
    errors = len(locator) - 1
    positions = [position for position in range(len(received)) if _value(locator, _POWER[-position % 255]) == 0]
    if errors * 2 > parity or len(positions) != errors:
        raise WatermarkError(f"more than {parity // 2} of {len(received)} bytes are wrong")
    corrected = list(received)
    # Forney: the error at X is X·Ω(1/X) / Λ'(1/X), with Ω = S·Λ mod x^parity.
    omega = _times(syndromes[::-1], locator)[-parity:]
    for position in positions:
        inverse = _POWER[-position % 255]
        slope = 0
        for power in range(1, errors + 1, 2):
            coefficient = locator[errors - power]
            slope ^= _product(coefficient, _POWER[(power - 1) * _LOGARITHM[inverse] % 255])
        size = _product(_POWER[position], _value(omega, inverse))
        corrected[-1 - position] ^= _quotient(size, slope)
    if any(_value(corrected, _POWER[exponent]) for exponent in range(parity)):
        raise WatermarkError(f"more than {parity // 2} of {len(received)} bytes are wrong")
    return corrected[:-parity]


def _locator(syndromes: Sequence[int]) -> list[int]:
    """Berlekamp–Massey: the polynomial whose roots are the inverse error positions."""
    current, previous = [1], [1]
    for step, syndrome in enumerate(syndromes):
        previous = [*previous, 0]
        discrepancy = syndrome
        for offset in range(1, len(current)):
            discrepancy ^= _product(current[-1 - offset], syndromes[step - offset])
        if discrepancy == 0:
            continue
        corrected = _plus(current, [_product(value, discrepancy) for value in previous])
        if len(previous) > len(current):
            previous = [_quotient(value, discrepancy) for value in current]
        current = corrected
    return current


def _times(first: Sequence[int], second: Sequence[int]) -> list[int]:
    result = [0] * (len(first) + len(second) - 1)
    for left, a in enumerate(first):
        for right, b in enumerate(second):
            result[left + right] ^= _product(a, b)
    return result


def _plus(first: Sequence[int], second: Sequence[int]) -> list[int]:
    size = max(len(first), len(second))
    left = [0] * (size - len(first)) + list(first)
    right = [0] * (size - len(second)) + list(second)
    return [a ^ b for a, b in zip(left, right, strict=True)]


def _value(polynomial: Sequence[int], point: int) -> int:
    """Horner's rule."""
    total = 0
    for coefficient in polynomial:
        total = _product(total, point) ^ coefficient
    return total


def _product(first: int, second: int) -> int:
    if first == 0 or second == 0:
        return 0
    return _POWER[_LOGARITHM[first] + _LOGARITHM[second]]


def _quotient(first: int, second: int) -> int:
    if first == 0:
        return 0
    return _POWER[_LOGARITHM[first] - _LOGARITHM[second] + 255]
