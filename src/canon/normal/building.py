"""The owner's program as a model with other numbers: layers under the owner's names, as wide as the numbers are."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from canon.graph import ChannelGraph
from canon.graph.experts import channel_tensors
from canon.graph.sizes import update_sizes
from canon.normal.chains import Written
from canon.normal.nodes import Affine, Linear, Node, NotNormal, numbers

MOST_BLANK: Final = 1 << 28
"""Numbers of the largest tensor that stands where the suspect has none."""


class Builder:
    """Builds models that have one owner's program."""

    def __init__(self, owner: nn.Module, program: fx.Graph, graph: ChannelGraph) -> None:
        self.owner, self.program, self.graph = owner, program, graph
        self.shapes = {name: tuple(t.shape) for name, t in channel_tensors(owner).items()}
        self.made: dict[str, Any] = {}
        self.like = torch.empty(0)

    def build(self, values: Mapping[Node, Written], tensors: Mapping[Node, Mapping[str, Tensor]]) -> fx.GraphModule:
        """A model with these numbers, and zeros where there are none.

        Args:
            values: By linear map of the owner's program.
            tensors: By other layer or tensor of it.
        """
        known = [v.weight for v in values.values() if isinstance(v, Linear)]
        if known:  # casts are no part of a normal form: all numbers get the type that most layers have
            kind = Counter(weight.dtype for weight in known).most_common(1)[0][0]
            self.like = torch.empty(0, dtype=kind, device=known[0].device)
        for owner, layer in whole_layers(values):
            if owner.tensors:
                self.bare_layer(owner, layer)
            else:
                self.put(owner.name, _layer(self.owner.get_submodule(owner.name), layer))
        norms: dict[str, tuple[Node, Written]] = {}
        for node, value in values.items():
            if isinstance(value, Linear):
                continue
            if "running_var" in dict(node.value.sources):
                self.bare_norm(node.value, value)
            else:
                for kind, name in node.value.sources:
                    if kind == "norm":
                        norms[name] = (node, value)
                    elif isinstance(value, Affine):
                        self.put(name, self.constant(name, value.scale if kind == "scale" else value.shift))
        for name, (_, value) in norms.items():
            self.put(name, self.norm(self.owner.get_submodule(name), value))
        for node, given in tensors.items():
            if node.kind == "tensor":
                self.put(node.name, given[""])
            elif node.value is not None:
                for key, name in node.value.items():
                    self.put(name, self.constant(name, given[key]))
            else:
                self.put(node.name, _with_tensors(self.owner.get_submodule(node.name), given))
        self.blanks()
        return self.module()

    def put(self, name: str, what: Any) -> None:
        """Register a layer or tensor; one that is used twice must be the same both times."""
        if name in self.made:
            one, two = (_state(x) for x in (self.made[name], what))
            if one.keys() != two.keys() or any(not torch.equal(one[k], two[k]) for k in one):
                raise NotNormal("the owner's program uses a layer twice, and the suspect has two", where=name)
        self.made[name] = what

    def bare_layer(self, owner: Linear, value: Linear) -> None:
        """Tensors that a function of the owner's program reads."""
        weight, bias = owner.tensors
        owner = owner.whole or owner
        said = [(v.groups, v.dilation, v.padding) for v in (owner, value)]
        if said[0] != said[1] or (not bias and value.bias is not None):
            raise NotNormal("the owner's program says more of a layer than the suspect's numbers allow", where=weight)
        self.put(weight, (value.weight.detach().t() if owner.turned else value.weight.detach()).contiguous())
        if bias:
            self.put(bias, numbers(value.bias, value.weight).to(value.weight.dtype))

    def bare_norm(self, owner: Affine, value: Written) -> None:
        """Tensors of a norm that is a function of the owner's program."""
        assert isinstance(value, Affine), "norms are affine"
        assert owner.norm is not None, "it is a norm"
        names, eps, own = dict(owner.sources), owner.norm["eps"], value.norm
        if own is None or own["eps"] != eps or any(own[key] is None for key in names):
            width = max(value.scale.numel(), value.shift.numel())
            width = owner.norm["running_var"].numel() if value.scale.ndim == value.shift.ndim == 0 else width
            zeros = torch.zeros(width, dtype=self.like.dtype, device=self.like.device)
            own = {
                "running_mean": zeros, "running_var": torch.ones_like(zeros), "bias": value.shift.expand(width),
                "weight": value.scale.expand(width) * (1 + eps) ** 0.5,
            }  # fmt: skip
        for key, name in names.items():
            self.put(name, own[key].detach().to(self.like).contiguous())

    def constant(self, name: str, numbers: Tensor) -> Tensor:
        """Numbers in the shape of one of the owner's tensors."""
        shape = [1 if n == 1 else -1 for n in self.shapes[name]]
        if numbers.ndim == 0:
            numbers = numbers.expand(max(self.shapes[name], default=1))
        return numbers.reshape(shape if -1 in shape else self.shapes[name]).to(self.like)

    def norm(self, owner: Any, value: Written) -> nn.Module:
        """A norm with a suspect's own tensors, one that says the same with others, or none."""
        if value is None:
            return nn.Identity()
        assert isinstance(value, Affine), "norms are affine"
        if value.norm is not None:
            made: Any = _bare(owner)
            made.eps = value.norm["eps"]
            for key in ("weight", "bias", "running_mean", "running_var"):
                _set(made, key, value.norm[key])
        else:
            width = max(value.scale.numel(), value.shift.numel(), 1)
            if value.scale.ndim == 0 and value.shift.ndim == 0:
                width = owner.num_features
            made = _bare(owner)
            made.eps = owner.eps
            zeros = torch.zeros(width, dtype=self.like.dtype, device=self.like.device)
            _set(made, "weight", (value.scale.expand(width) * (1 + owner.eps) ** 0.5).to(self.like), parameter=True)
            _set(made, "bias", value.shift.expand(width).to(self.like), parameter=True)
            _set(made, "running_mean", zeros)
            _set(made, "running_var", torch.ones_like(zeros))
        if made._buffers.get("num_batches_tracked") is not None:
            made._buffers["num_batches_tracked"] = torch.tensor(0)
        made.affine, made.num_features = made.weight is not None, made.running_mean.shape[0]
        return made  # type: ignore[no-any-return]

    def blanks(self) -> None:
        """Zeros for all that the program uses and nobody has."""
        widths = self.widths()
        for node in self.program.nodes:
            name = str(node.target)
            made = name in self.made or name.rpartition(".")[0] in self.made
            if made or node.op not in ("call_module", "get_attr"):
                continue
            found: Any = self.owner
            for part in name.split("."):
                found = getattr(found, part)
            if isinstance(found, Tensor):
                shape = self.wide(name, tuple(found.shape), widths)
                self.made[name] = torch.zeros(shape, dtype=self.like.dtype, device=self.like.device)
            elif isinstance(found, nn.Module):
                kept = {**dict(found.named_parameters()), **dict(found.named_buffers())}
                zeros = {}
                for key, tensor in kept.items():
                    shape = self.wide(f"{name}.{key}", tuple(tensor.shape), widths)
                    kind = self.like.dtype if tensor.is_floating_point() else tensor.dtype
                    fill = torch.ones if key.endswith("running_var") else torch.zeros
                    zeros[key] = fill(shape, dtype=kind, device=self.like.device)
                self.made[name] = _with_tensors(found, zeros) if kept else copy.deepcopy(found)

    def widths(self) -> dict[int, int]:
        """By channel space of the owner's: how wide the suspect's is, where one of its layers says so."""
        found: dict[int, int] = {}
        for linear in self.graph.maps:
            layer = self.made.get(linear.name)
            weight = getattr(layer, "weight", None)
            if weight is None:
                continue
            rows = weight.shape[linear.row_axis]
            if len(linear.rows) == 1:
                found.setdefault(linear.rows[0].space, rows // linear.rows[0].repeat)
            if linear.columns is not None and len(linear.columns) == 1 and linear.groups == 1:
                found.setdefault(linear.columns[0].space, weight.shape[linear.column_axis] // linear.columns[0].repeat)
        return found

    def wide(self, name: str, shape: tuple[int, ...], widths: Mapping[int, int]) -> tuple[int, ...]:
        """The shape of one of the owner's tensors where channels are as many as the suspect has."""
        made, name = list(shape), self.graph.aliases.get(name, name)
        for linear in self.graph.maps:
            if linear.weight == name:
                made[linear.row_axis] = self.length(linear.rows, widths)
                if linear.columns is not None and linear.groups == 1:
                    made[linear.column_axis] = self.length(linear.columns, widths)
            elif linear.bias == name:
                made[0] = self.length(linear.rows, widths)
        for space in self.graph.spaces:
            for stage in space.stages:
                if name in stage.params.values():
                    grown = widths.get(space.id, space.width) - space.width
                    made[stage.axis] += grown * stage.repeat
        if prod(made) > MOST_BLANK:
            raise NotNormal("a layer without a counterpart is too large", where=name)
        return tuple(made)

    def length(self, segments: Any, widths: Mapping[int, int]) -> int:
        """Entries of an axis that is made of some segments of the owner's."""
        return sum(widths.get(s.space, s.length // s.repeat) * s.repeat for s in segments)

    def module(self) -> fx.GraphModule:
        """All of it as a graph module."""
        graph = fx.Graph()
        output = graph.graph_copy(self.program, {})
        graph.output(output)
        used = {str(n.target) for n in self.program.nodes if n.op in ("call_module", "get_attr")}
        result = fx.GraphModule({name: self.made[name] for name in used}, graph)
        for module in result.modules():
            if not isinstance(module, fx.GraphModule):
                update_sizes(module)
        for tensor in (*result.parameters(), *result.buffers()):
            if tensor.is_floating_point() and tensor.dtype != self.like.dtype:
                tensor.data = tensor.data.to(self.like.dtype)
        return result.eval()


def whole_layers(values: Mapping[Node, Written]) -> Iterator[tuple[Linear, Linear]]:
    """The owner's layers, each with numbers for all of its rows: parts are put together."""
    parts: dict[Linear, list[tuple[Tensor, Linear]]] = defaultdict(list)
    for node, value in values.items():
        if isinstance(value, Linear) and node.value.part is None:
            yield node.value, value
        elif isinstance(value, Linear):
            whole, rows = node.value.part
            parts[whole].append((rows, value))
    for whole, found in parts.items():
        found.sort(key=lambda part: int(part[0][0]))
        rows = torch.cat([rows for rows, _ in found])
        if len(rows) < len(whole.weight):
            continue  # some have no counterpart: zeros stand there
        weight, bias = (
            torch.cat([numbers.detach() for numbers in side])
            for side in (
                [value.weight for _, value in found],
                [value.weight.new_zeros(len(value.weight)) if value.bias is None else value.bias for _, value in found],
            )
        )
        if not bool((rows.diff() == 1).all()):
            if len(weight) != len(rows):
                raise NotNormal(
                    "parts of the owner's layer stand between each other, and have other widths", where=whole.name
                )
            weight, bias = weight[rows.argsort()], bias[rows.argsort()]
        given = None if all(value.bias is None for _, value in found) else bias
        yield whole, found[0][1].with_numbers(weight, given)


def _layer(owner: nn.Module, value: Linear) -> nn.Module:
    made: Any = _bare(owner)
    _set(made, "weight", value.weight, parameter=True)
    bias = value.bias
    if bias is None and getattr(owner, "bias", None) is not None:
        rows = value.weight.shape[0] if value.transposed is None else value.weight.shape[1] * value.groups
        bias = torch.zeros(rows, dtype=value.weight.dtype, device=value.weight.device)
    _set(made, "bias", bias, parameter=True)
    if value.rank:
        made.groups, made.dilation = value.groups, tuple(value.dilation)
        made.kernel_size = tuple(value.weight.shape[2:])
        made.padding = tuple(a for a, _ in value.padding)
        made._reversed_padding_repeated_twice = tuple(p for p in reversed(made.padding) for _ in range(2))
        made.in_channels = value.weight.shape[1] * value.groups
        made.out_channels = value.weight.shape[0]
        if value.transposed is not None:
            made.in_channels, made.out_channels = value.weight.shape[0], value.weight.shape[1] * value.groups
    return made  # type: ignore[no-any-return]


def _bare(owner: nn.Module) -> nn.Module:
    """A layer of the owner's kind and settings, without its tensors."""
    if owner._modules:
        memo = {id(t): _EMPTY for t in (*owner.parameters(), *owner.buffers())}
        return copy.deepcopy(owner, memo).eval()
    made = copy.copy(owner)
    made.__dict__.update({key: copy.copy(value) for key, value in vars(owner).items() if isinstance(value, dict)})
    for held in (made._parameters, made._buffers):
        held.update({key: None if tensor is None else _EMPTY for key, tensor in held.items()})
    return made.eval()


_EMPTY = nn.Parameter(torch.empty(0), requires_grad=False)


def _set(module: Any, key: str, tensor: Tensor | None, *, parameter: bool = False) -> None:
    kept = None if tensor is None else tensor.detach().clone(memory_format=torch.contiguous_format)
    if kept is not None and (parameter or isinstance(tensor, nn.Parameter)):
        kept = nn.Parameter(kept, requires_grad=False)
    if key in module._parameters:
        module._parameters[key] = kept if kept is None or isinstance(kept, nn.Parameter) else nn.Parameter(kept, False)
    else:
        module._buffers[key] = None if kept is None else kept.detach()


def _with_tensors(owner: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    made = _bare(owner)
    for name, tensor in tensors.items():
        path, _, key = name.rpartition(".")
        _set(made.get_submodule(path), key, tensor)
    return made


def _state(what: Any) -> dict[str, Tensor]:
    if isinstance(what, Tensor):
        return {"": what.detach()}
    return {name: t.detach() for name, t in (*what.named_parameters(), *what.named_buffers())}
