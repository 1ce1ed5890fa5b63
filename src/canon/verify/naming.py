"""Names: a suspect whose layers are called otherwise than the reference's gets the reference's names.

A file that holds a forward pass may call its layers anything, and tools that write such files do. What makes two layers
the same is their place in the network, so they are paired in execution order. Whether the wiring agrees is for the
comparison that follows to say; a wrong pairing cannot pass it.
"""

from __future__ import annotations

import keyword
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, fx, nn

from canon.graph import ChannelGraph, Stage, trace
from canon.graph.experts import channel_tensors
from canon.graph.inputs import fitting
from canon.rewrite import FoldableNorm, norms_behind_layers
from canon.verify.architecture import Architecture


def named_alike(
    model: nn.Module,
    expected: Architecture,
    example: Tensor | tuple[Any, ...],
    *,
    reference: nn.Module | None = None,
    norms: Sequence[FoldableNorm] = (),
) -> nn.Module:
    """A suspect under the reference's names.

    Only graph modules are renamed, since only their names come from files. The model is given back as it is where its
    layers have these names already, or are not as many.

    Args:
        model: The suspect, in evaluation mode. It is not changed; the result shares its tensors.
        expected: The reference's layers.
        example: An input tensor or tuple of inputs.
        reference: The reference, if it is at hand: the names of norms are taken from it.
        norms: Otherwise, the norms that stand behind its layers.
    """
    if not isinstance(model, fx.GraphModule):
        return model
    # A file may have a folder of the layer's name, with the layer inside.
    known = {name for name, module in model.named_modules() if list(module.parameters(recurse=False))}
    if all(name in known for name in expected.shapes):
        return model
    if not all(_plain(name) for name in (*expected.shapes, *(pair.norm for pair in norms))):
        return model  # a graph module writes a program that holds these names, and a key may come from anybody
    graph = trace(model, example)
    tensors = channel_tensors(model)
    ours = Architecture.of(graph, tensors).shapes
    if len(ours) != len(expected.shapes):
        return model
    pairs = zip(ours.items(), expected.shapes.items(), strict=True)
    if any(len(mine) != len(yours) for (_, mine), (_, yours) in pairs):
        return model
    names = dict(zip(ours, expected.shapes, strict=True))
    theirs = None if reference is None else trace(reference, fitting(example, reference))
    if reference is not None and theirs is not None:
        norms = norms_behind_layers(reference, theirs)
    mine = norms_behind_layers(model, graph)
    behind = {pair.layer: pair.norm for pair in norms}
    names |= {pair.norm: behind[names[pair.layer]] for pair in mine if names.get(pair.layer) in behind}
    if theirs is not None:
        # Norms behind layers may have been folded away in one of the two; the layer before them names them.
        skipped = ({pair.norm for pair in mine}, {pair.norm for pair in norms})
        names |= dict(_stage_names(graph, theirs, skipped))
    return _renamed(model, names, {*expected.shapes, *behind.values()})


def _plain(name: str) -> bool:
    parts = name.split(".")
    return all(p.isascii() and p.replace("_", "a").isalnum() and not keyword.iskeyword(p) for p in parts)


def _stage_names(
    ours: ChannelGraph, theirs: ChannelGraph, skipped: tuple[Collection[str], Collection[str]]
) -> Iterator[tuple[str, str]]:
    """Pairs of names of per-channel tensors, and of the layers that own them, for spaces that are built alike."""
    for mine, yours in zip(ours.spaces, theirs.spaces, strict=False):
        first, second = _unnamed(mine.stages, skipped[0]), _unnamed(yours.stages, skipped[1])
        if [(s.kind, sorted(s.params)) for s in first] != [(s.kind, sorted(s.params)) for s in second]:
            continue
        for a, b in zip(first, second, strict=True):
            for role, name in a.params.items():
                yield name, b.params[role]
                yield name.rpartition(".")[0], b.params[role].rpartition(".")[0]


def _unnamed(stages: Iterable[Stage], skipped: Collection[str]) -> list[Stage]:
    """Stages with tensors whose names are not known yet."""
    found = [stage for stage in stages if stage.params and stage.kind != "depthwise"]
    return [s for s in found if not any(name.rpartition(".")[0] in skipped for name in s.params.values())]


def _renamed(model: fx.GraphModule, names: Mapping[str, str], reserved: Collection[str] = ()) -> fx.GraphModule:
    """The same module with other names for some of its layers and tensors; others give way."""
    targets = dict.fromkeys(str(node.target) for node in model.graph.nodes if node.op in ("call_module", "get_attr"))
    taken = {*reserved, *(names[target] for target in targets if target in names)}
    chosen: dict[str, str] = {}
    for target in targets:
        name = names.get(target, target)
        while target not in names and name in taken:
            name = f"{name}_"
        taken.add(name)
        chosen[target] = name
    graph = fx.Graph()
    output = graph.graph_copy(model.graph, {})
    graph.output(output)
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            node.target = chosen[str(node.target)]
    result = fx.GraphModule({chosen[target]: _find(model, target) for target in targets}, graph)
    result.meta.update(model.meta)
    return result.eval()


def _find(model: nn.Module, target: str) -> Any:
    value: Any = model
    for part in target.split("."):
        value = getattr(value, part)
    return value
