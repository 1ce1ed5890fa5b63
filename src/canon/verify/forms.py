"""Forms: a suspect brought into the form that the reference has, where norms were folded away or put in.

A folded norm cannot be read back: only its product with the layer before it is left. So a norm that does nothing is put
where the reference has one, and alignment gives the rows in front of it the reference's scale and sign, as it does for
every suspect. The function stays, and beyond order and scales nothing comes from the reference. What such a norm holds
afterwards is those scales, and proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import Tensor, nn

from canon.graph import ChannelGraph, trace
from canon.rewrite import FoldableNorm, fold_norms, norms_behind_layers, restore_norms
from canon.rewrite.fold import LAYERS, NORMS


@dataclass(frozen=True)
class Form:
    """How a suspect's form differs from the reference's."""

    restored: tuple[FoldableNorm, ...] = ()
    """Norms of the reference that the suspect's layers had taken up: they were put back as norms that do nothing."""

    folded: tuple[FoldableNorm, ...] = ()
    """Norms of the suspect where the reference has none: their layers took them up."""

    @property
    def changed(self) -> bool:
        """Whether the suspect had another form than the reference."""
        return bool(self.restored or self.folded)

    @property
    def lent(self) -> frozenset[str]:
        """What may be read from the suspect in the reference's form without being the suspect's own.

        These are the tensors of restored norms, and the bias in front of one, without which that layer's output is not
        what it was.
        """
        roles = ("weight", "bias", "running_mean", "running_var")
        found = {f"{pair.norm}.{role}" for pair in self.restored for role in roles}
        found |= {f"{pair.layer}.bias" for pair in self.restored}
        return frozenset(found | {f"{pair.layer} output" for pair in self.restored if pair.bias})


GIVEN: Final = Form()
"""The suspect has the reference's form."""


def norms_of(model: nn.Module, example: Tensor | tuple[Any, ...]) -> tuple[FoldableNorm, ...]:
    """The norms of a reference behind its layers, which may have been folded away in a suspect."""
    return norms_behind_layers(model, trace(model, example))


def conform(
    model: nn.Module,
    norms: Iterable[FoldableNorm] | None,
    example: Tensor | tuple[Any, ...],
    *,
    graph: ChannelGraph | None = None,
) -> tuple[nn.Module, Form]:
    """A model with norms where the reference has them, and what had to be done for it.

    Args:
        model: The suspect, in evaluation mode. It is not changed, and given back as it is where nothing is to do.
        norms: The reference's norms, from `norms_of` or its layout key; None: they are not known.
        example: An input tensor or tuple of inputs.
        graph: The model's channel graph, where it is at hand.
    """
    if norms is None:
        return model, GIVEN
    wanted = {pair.layer: pair for pair in norms}
    graph = trace(model, example) if graph is None else graph
    modules = dict(model.named_modules())
    surplus = {pair.layer for pair in norms_behind_layers(model, graph)} - wanted.keys()
    missing = tuple(
        pair
        for pair in wanted.values()
        if pair.affine and type(modules.get(pair.layer)) in LAYERS and not isinstance(modules.get(pair.norm), NORMS)
    )
    form = Form(restored=missing)
    if surplus:
        taken = fold_norms(model, example, layers=surplus)
        model, form = taken.model, replace(form, folded=taken.norms)
    return (restore_norms(model, missing) if missing else model), form
