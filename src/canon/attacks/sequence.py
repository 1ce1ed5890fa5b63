"""Which primitives each space gets, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from canon.attacks.options import MIX, AttackOptions

MIXED: tuple[str, ...] = ("nso_zero", "nso_clique", "nso_split")
"""What a sampled sequence is made of."""


def sequences(options: AttackOptions, spaces: int, generator: torch.Generator) -> list[tuple[str, ...]]:
    """One sequence of primitives for each of `spaces` spaces.

    >>> options = AttackOptions(ops=("nso_zero", "nso_split"))
    >>> sequences(options, 2, torch.Generator())
    [('nso_zero', 'nso_split'), ('nso_zero', 'nso_split')]
    """
    if options.ops == (MIX[0],):
        return [_sample(MIXED, options.sequence_length, generator)] * spaces
    if options.ops == (MIX[1],):
        return [_sample(MIXED, options.sequence_length, generator) for _ in range(spaces)]
    return [options.ops] * spaces


def _sample(names: Sequence[str], length: int, generator: torch.Generator) -> tuple[str, ...]:
    picks = torch.randint(len(names), (length,), generator=generator).tolist()
    return tuple(names[pick] for pick in picks)
