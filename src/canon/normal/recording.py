"""Programs that torch.fx cannot follow, from one run: what was called is written down, layers under their names."""

from __future__ import annotations

from typing import Any, Final

from torch import fx, nn

from canon.errors import CanonError
from canon.graph.recorded import record

LEAVES: Final = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.Embedding, nn.PReLU,
)  # fmt: skip
"""Layers with tensors that are one operation each."""


def recorded_program(model: nn.Module, example: Any) -> fx.Graph | None:
    """A model's program from one run on an example; None where it cannot be run, or reads what is no tensor of it."""
    try:
        program = record(model, example if isinstance(example, tuple) else (example,), repeats=False)
    except CanonError:
        return None
    graph, known = fx.Graph(), dict[fx.Node, fx.Node]()
    modules = dict(model.named_modules())
    for node in program.graph.nodes:
        if node.op == "placeholder":
            if node.name in program.names:
                if node.users:
                    known[node] = graph.get_attr(program.names[node.name])
            elif node.name.startswith("input_"):
                known[node] = graph.placeholder(node.name)
            else:
                return None
        elif node.op == "output":
            given = fx.map_arg(node.args[0], known.__getitem__)
            graph.output(given[0] if len(given) == 1 else given)
        else:
            path = next(iter(node.meta["nn_module_stack"]), "")
            values = [n for n in node.all_input_nodes if n.name not in program.names]
            if type(modules.get(path)) in LEAVES and len(values) == 1 and len(node.all_input_nodes) > 1:
                known[node] = graph.call_module(path, (known[values[0]],))
            else:
                known[node] = graph.node_copy(node, known.__getitem__)
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op == "get_attr":
            graph.erase_node(node)
    return graph
