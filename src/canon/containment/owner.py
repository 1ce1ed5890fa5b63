"""What is known of the owner's network: all of it, or what a layout key keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn

from canon.errors import KeyFileError
from canon.normal import Outline
from canon.rewrite import FoldableNorm, norms_behind_layers
from canon.verify.architecture import Architecture
from canon.verify.key import LayoutKey
from canon.verify.layout import Layout, survey
from canon.verify.portrait import Portrait, with_luck
from canon.verify.registered import Registered
from canon.verify.skeleton import skeleton_of
from canon.verify.traced import Traced

NUMBERS: Final = 64
"""Numbers per row where the owner's model is at hand: under 20% noise, 2,048 rows are still told apart."""

SAMPLE: Final = 256
"""Numbers of each tensor that the seed is made from, and some more."""


@dataclass(frozen=True, eq=False)
class Owner:
    """What is known of the owner's network: all of it, or what a layout key keeps."""

    architecture: Architecture
    portrait: Portrait
    norms: tuple[FoldableNorm, ...] | None
    skeleton: str | None
    traced: Traced | None = None
    """The owner's model, where it is at hand."""

    layout: Layout | None = None
    """Exact figures of a key."""

    program: Outline | None = None
    """A key's program."""

    registered: Registered | None = None
    """A key's outputs."""

    @staticmethod
    def of(reference: nn.Module | LayoutKey, example: Tensor | tuple[Any, ...]) -> Owner:
        """From a model or a layout key."""
        if isinstance(reference, LayoutKey):
            portrait, layout = reference.portrait, reference.layout
            if portrait is None:
                raise KeyFileError(
                    "the key was made before keys could locate a network", hint="Make it again with `canon register`"
                )
            return Owner(
                layout.architecture,
                portrait,
                reference.norms,
                reference.skeleton,
                layout=layout,
                program=reference.program,
                registered=reference.registered,
            )
        traced = Traced.of(reference, example)
        traced.check_finite(but_layers=True)
        seed = _seed(traced.tensors)
        layout = survey(traced, numbers=NUMBERS, seed=seed, settled=None)
        norms = norms_behind_layers(reference, traced.graph)
        portrait = Portrait(with_luck(layout.steps, traced, NUMBERS), NUMBERS, seed)
        return Owner(layout.architecture, portrait, norms, skeleton_of(traced.graph), traced)


def _seed(tensors: Mapping[str, Tensor]) -> int:
    """Rows are projected with a seed that the owner's model gives, so that evidence can be made again.

    Whoever has the model could make rows that agree in the projection alone; residuals compare rows in full.
    """
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel():
            flat = tensor.detach().flatten()
            some = flat[:: max(1, flat.numel() // SAMPLE)].double().cpu().contiguous()
            digest.update(name.encode())
            digest.update(some.numpy().tobytes())
    return int.from_bytes(digest.digest()[:8], "big") >> 2
