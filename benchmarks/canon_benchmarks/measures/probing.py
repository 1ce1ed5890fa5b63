"""How many of a trained network's duplicates the probes alone find, over T.

A watermarked model is trained on digits, cliques and splits are injected, and the classes that the weights tell are
held against those that activations suggest: how many duplicates end up beside their leader, and how many channels are
linked that are distinct. The default number of probes is where the first of these stops growing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon import zoo
from canon.attacks import AttackOptions, attack_with
from canon.bench.lab import Setup, trained
from canon.bench.measures.sheet import Sheet
from canon.graph import ChannelGraph, Space, trace
from canon.graph.tensors import tensor_names
from canon.recovery import ProbeOptions, Tolerance
from canon.recovery.capture import capture, make_probes
from canon.recovery.partition import Classes, Refinement
from canon.recovery.probe import ProbeRefinement
from canon_benchmarks.cases import Probing

COUNTS: Final = (16, 32, 64, 128, 256, 512, 1024)
RATIO: Final = 0.3


def study(clean: nn.Module, example: Tensor, counts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """By number of probes: the duplicates of an attacked model, the share found, and wrong links."""
    options = AttackOptions(ops=("nso_clique", "nso_split"), ratio=RATIO, split_shares="random")
    model = attack_with(clean, example, options).model
    graph, tensors = trace(model, example), tensor_names(model)[0]
    tolerance = Tolerance.for_model(model)
    with torch.no_grad():
        known = Refinement(graph, tensors, tolerance).run()
        for count in counts:
            chosen = ProbeOptions(probes=count)
            captured = capture(model, graph, make_probes(example, count, chosen.batch_size, chosen.seed))
            probing = ProbeRefinement(graph, tensors, tolerance, captured, chosen)
            yield {"probes": count, **_held_against(graph, known, probing)}


def _held_against(graph: ChannelGraph, known: Mapping[int, Classes], probing: ProbeRefinement) -> dict[str, Any]:
    free = [space for space in graph.spaces if space.consumers and not space.pins]
    figures = torch.tensor([_space(space, known[space.id], probing.suggestion(space)) for space in free]).sum(dim=0)
    duplicates, found, wrong = figures.tolist()
    return {"duplicates": duplicates, "found": round(found / max(1, duplicates), 4), "wrong_links": wrong}


def _space(space: Space, known: Classes, suggested: Tensor) -> tuple[int, int, int]:
    """Duplicates, those of them that the probes put beside their leader, and distinct channels that they link."""
    everyone, leader = torch.arange(space.width), known.leader
    duplicate = (leader != everyone) & ~known.null & ~known.constant
    together = suggested == suggested[leader]
    wrong = (suggested != everyone) & (leader != leader[suggested])
    return int(duplicate.sum()), int((duplicate & together).sum()), int(wrong.sum())


def measure_probing(case: Probing, setup: Setup, sheet: Sheet) -> None:
    """Count over the number of probes."""
    clean = trained(setup, case.training).model.eval()
    sheet.note(counts=list(study(clean, zoo.example_input(case.model), COUNTS)))
