"""`recover`, which also knows the widths of architectures by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from canon.graph import Example, plain
from canon.graph.tracer import check_model
from canon.recovery import RecoveryResult
from canon.recovery import recover as recover_with
from canon.recovery.pipeline import Progress


def recover(
    model: nn.Module,
    example: Example,
    method: str = "exact",
    *,
    widths: nn.Module | Mapping[str, Tensor] | str | None = None,
    sanity_check: bool = True,
    options: Any = None,
    progress: Progress | None = None,
) -> RecoveryResult:
    """Undo structural obfuscation of a model, from the model alone.

    Args:
        model: The suspect, in evaluation mode. It is not changed.
        example: An input tensor, or a tuple or dict of inputs.
        method: `exact` (from the weights, no data) or `probe` (from activations).
        widths: The clean widths, if they are known: a model, a state dict, or the name of an architecture of the zoo.
            Channels that could be the owner's pruned ones are then kept until the width is reached.
        sanity_check: Run both models and compare.
        options: For `probe`, a `ProbeOptions`.
        progress: Called with a stage's name, what is done and what is known to remain in all.

    Raises:
        RecoveryError: The recovered model does not agree with the input; the input is still what it was.
    """
    model = plain(model)
    check_model(model)
    known = _shapes_of(widths) if isinstance(widths, str) else widths
    return recover_with(
        model, example, method, widths=known, sanity_check=sanity_check, options=options, progress=progress
    )


def _shapes_of(name: str) -> dict[str, Tensor]:
    """The tensors of an architecture without their numbers."""
    from canon import zoo

    with torch.device("meta"):
        return zoo.model(name).state_dict()
