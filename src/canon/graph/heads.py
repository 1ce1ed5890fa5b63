"""Attention as data: which rows of which maps make queries, keys and values of each head, and what reads them.

Nothing is known by name. From attention in a recorded forward pass, values are followed back to the maps that make them
and on to the map that reads them, and what lies between is run on numbers of our own: where these come out says which
rows belong to which head, and how positions turn them. What is not understood is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from canon.errors import TraceError
from canon.graph.attention import ATEN, Core, core_of, unread
from canon.graph.frontend import FrontendError
from canon.graph.inputs import Example, arguments
from canon.graph.recorded import record
from canon.graph.stretches import MAPS, Stretches, UnknownError, need
from canon.graph.tensors import tensor_names


@dataclass(frozen=True, eq=False)
class Projection:
    """Rows of a map that make queries, keys or values, or the columns of the map that reads what heads give."""

    weight: str
    axis: int
    """Of the weight, along which heads stand."""

    bias: str | None
    """What is added to these rows; None for columns."""

    index: Tensor
    """`heads x entries`: where each entry of a head stands on the axis."""


def _named(part: Projection) -> tuple[str, int, str | None]:
    return part.weight, part.axis, part.bias


@dataclass(frozen=True, eq=False)
class Attention:
    """The heads of one attention; those that share keys and values stand side by side."""

    query: Projection
    key: Projection
    value: Projection
    output: Projection
    movable: bool
    """Whether heads are free to change places: nothing else is added to their scores head by head."""

    loose: Tensor
    """Entries of queries and keys on which any invertible map may act."""

    pairs: Tensor
    """`pairs x 2`: entries that positions turn together, on which a complex number may act."""

    @property
    def heads(self) -> int:
        """Heads with queries of their own."""
        return len(self.query.index)

    @property
    def groups(self) -> int:
        """Heads with keys and values of their own."""
        return len(self.key.index)

    @property
    def parts(self) -> tuple[Projection, ...]:
        """Rows and columns that belong to these heads."""
        return self.query, self.key, self.value, self.output

    @property
    def tensors(self) -> frozenset[str]:
        """Everything that they are a part of."""
        return frozenset(name for part in self.parts for name in (part.weight, part.bias) if name is not None)

    @property
    def kind(self) -> object:
        """What says all of it, to compare by."""
        tables = (*(part.index for part in self.parts), self.loose, self.pairs)
        return self.movable, *(tuple(table.flatten().tolist()) for table in tables), *map(_named, self.parts)


def attention_layers(model: nn.Module, example: Example) -> tuple[Attention, ...]:
    """Every attention that is understood and shares no tensor with another one; one called twice counts once."""
    if sum(tensor.ndim == 2 for tensor in tensor_names(model)[0].values()) < 2:
        return ()  # a packed map and one that reads heads: with less, nothing has to be recorded
    given = arguments(model, example)
    try:
        program = record(model, given if isinstance(given, tuple) else (given,))
    except (FrontendError, TraceError):
        return ()
    reader = _Reader(model, program, given if isinstance(given, tuple) else (given,))
    found: dict[object, Attention] = {}
    for node in program.graph.nodes:
        core = core_of(node)
        if core is not None:
            try:
                one = reader.read(core)
                found.setdefault(one.kind, one)
            except (UnknownError, RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
                continue
    every = [*found.values()]
    return tuple(one for one in every if not any(one is not other and one.tensors & other.tensors for other in every))


class _Reader(Stretches):
    """Reads attention from a program by running stretches of it."""

    def read(self, core: Core) -> Attention:
        """What is known of one attention."""
        maps = [self.map_before(operand) for operand in core.operands]
        self.check_closed({one for one, _ in maps}, {n for _, between in maps for n in between}, set(core.readers))
        query, key, value = (one for one, _ in maps)
        values = self.gathered(core.operands[2], value)
        queries, turns = self.turned(core.operands[0], query, False)
        keys, key_turns = self.turned(core.operands[1], key, core.turned)
        reader, columns = self.read_by(core)
        keys, values = (x.repeat_interleave(len(queries) // len(x), 0) for x in (keys, values))
        need(len({len(x) for x in (queries, keys, values, columns)}) == 1)
        queries, keys, values, columns = _apart(queries, keys, values, columns)
        heads = len(queries)
        group = torch.unique(torch.cat([keys, values], 1), dim=0, return_inverse=True)[1]
        order, counts = torch.argsort(group, stable=True), torch.bincount(group)
        every = len(counts)
        need(bool((counts == heads // every).all()) and keys.shape[1] == queries.shape[1])
        first = order[:: heads // every]
        first = first[torch.argsort(first)]
        order = torch.cat([torch.nonzero(group == group[h]).flatten() for h in first])
        loose, pairs = _freedom(turns, key_turns, queries.shape[1])
        return Attention(
            self.projection(query, queries[order]),
            self.projection(key, keys[first]),
            self.projection(value, values[first]),
            Projection(*reader, None, columns[order]),
            core.alike,
            loose,
            pairs,
        )

    def check_closed(self, maps: set[fx.Node], between: set[fx.Node], readers: set[fx.Node]) -> None:
        """Nothing else may read what the maps make."""
        follow = set(maps)
        for node in sorted(between, key=self.place.__getitem__):
            if any(source in follow for source in node.all_input_nodes):
                follow.add(node)
        need(all(user in follow or user in readers or unread(user) for node in follow for user in node.users))

    def gathered(self, operand: fx.Node, source: fx.Node) -> Tensor:
        """`heads x entries`: which entry of the map's result stands where in values."""
        drawn = self.drawn(source.meta["val"].shape[-1])
        out = self.run(operand, {source: drawn.expand(source.meta["val"].shape).contiguous()})
        need(bool((out == out[..., :1, :]).all()))
        return _heads(_places(out[..., 0, :], drawn))

    def turned(self, operand: fx.Node, source: fx.Node, turned: bool) -> tuple[Tensor, Tensor | None]:
        """`heads x entries`: what of the map's result makes a head; `positions x entries x entries`: what acts on it.

        None where that is not one linear map for every head.
        """
        shape = source.meta["val"].shape

        def made(x: Tensor) -> Tensor:
            out = self.run(operand, {source: x})
            return out.transpose(-1, -2) if turned else out

        x, rows = self.drawn(*shape), []
        with torch.enable_grad():
            out = made(x.requires_grad_())
            units = out[0] if out.ndim > 3 else out
            weigh = self.drawn(*units.shape)
            for head in range(len(units)):
                (slope,) = torch.autograd.grad((units[head] * weigh[head]).sum(), x, retain_graph=True)
                rows.append(torch.nonzero(slope.reshape(-1, shape[-1]).abs().sum(0)).flatten())
        need(len({len(one) for one in rows}) == 1 and len(rows[0]) == out.shape[-1])
        index = torch.stack(rows)
        with torch.no_grad():
            other = self.drawn(*shape)
            straight = made(x.detach() + 2 * other) - made(x.detach()) - 2 * made(other)
            if float(straight.abs().max()) > 1e-9 * float(out.abs().max()):
                return index, None
            parts = []
            for entry in range(index.shape[1]):
                x = torch.zeros(shape, dtype=torch.float64)
                x[..., index[:, entry]] = 1.0
                parts.append(made(x).flatten(0, -3))
        every = torch.stack(parts, -1)
        same = bool((every - every[:1]).abs().max() <= 1e-9)
        return index, every[0] if same else None

    def read_by(self, core: Core) -> tuple[tuple[str, int], Tensor]:
        """The map that reads what heads give, and by head which of its columns do."""
        shape = core.result.meta["val"].shape
        follow, found = {core.result}, None
        for node in self.nodes[self.place[core.result] + 1 :]:
            if not any(source in follow for source in node.all_input_nodes):
                continue
            if self.is_map(node):
                need(found is None)
                found = node
            else:
                need(node.op != "output" and len(follow) < 12 and found is None)
                follow.add(node)
            if all(user in follow or user is found for one in follow for user in one.users):
                break
        need(found is not None)
        assert found is not None, "it was just asked"
        inputs = found.args[1] if found.target is ATEN.addmm.default else found.args[0]
        drawn = self.drawn(*shape[:-2], 1, shape[-1])
        with torch.no_grad():
            read = self.run(inputs, {core.result: drawn.expand(shape).contiguous()})
        width = read.shape[-1]
        table = _places(read.reshape(-1, width), drawn.flatten())  # where each column comes from
        columns = torch.full((drawn.numel(),), -1)
        columns[table.flatten()] = torch.arange(width).expand(table.shape).flatten()
        need(bool((columns[table] == torch.arange(width)).all()) and bool((columns >= 0).all()))
        weight = found.args[MAPS[found.target][0]]
        name, axis, entries = self.rows_of(weight, 1 if found.target is ATEN.linear.default else 0)
        by_head = columns.view(*shape[:-2], -1)
        return (name, axis), entries[_heads(by_head)]

    def projection(self, node: fx.Node, index: Tensor) -> Projection:
        """Rows of a map, as they stand in the model's tensors."""
        at, bias_at = MAPS[node.target]
        name, axis, entries = self.rows_of(node.args[at], 0 if node.target is ATEN.linear.default else 1)
        bias = node.args[bias_at] if bias_at < len(node.args) else node.kwargs.get("bias")
        if bias is None:
            return Projection(name, axis, None, entries[index])
        called, _, places = self.rows_of(bias, 0)
        need(torch.equal(places, entries))
        return Projection(name, axis, called, entries[index])


def _places(seen: Tensor, drawn: Tensor) -> Tensor:
    """Which of some numbers others are."""
    ordered, order = drawn.flatten().sort()
    at = torch.searchsorted(ordered, seen.contiguous()).clamp(max=len(ordered) - 1)
    need(bool((ordered[at] == seen).all()))
    return order[at]


def _heads(table: Tensor) -> Tensor:
    """`heads x entries` of one in the batch."""
    table = table[0] if table.ndim > 2 else table
    need(table.ndim == 2)
    return table


def _apart(*tables: Tensor) -> tuple[Tensor, ...]:
    """Each head once, where the batch was folded into the heads."""
    rows = torch.cat(tables, 1)
    seen = {tuple(row): index for index, row in reversed(list(enumerate(rows.tolist())))}
    kept = torch.tensor(sorted(seen.values()))
    return tuple(table[kept] for table in tables)


def _freedom(queries: Tensor | None, keys: Tensor | None, width: int) -> tuple[Tensor, Tensor]:
    """Entries of queries and keys on which anything, and pairs on which a complex number, changes no score."""
    nothing = torch.empty(0, dtype=torch.int64), torch.empty(0, 2, dtype=torch.int64)
    if queries is None or keys is None or min(len(queries), len(keys)) < 2:
        return nothing
    products = [q.T @ k for q, k in _positions(queries, keys)]
    same = products[0]
    size = float(same[0, 0])
    eye = torch.eye(width, dtype=torch.float64)
    if size == 0 or float((same / size - eye).abs().max()) > 1e-9:
        return nothing
    apart = torch.stack([product / size - eye for product in products[1:]])
    linked = apart.abs().amax(0) > 1e-9
    linked |= linked.T.clone()
    loose = torch.nonzero(~linked.any(1)).flatten()
    partner = (linked & ~torch.eye(width, dtype=torch.bool)).int()
    pairs = [(i, int(partner[i].argmax())) for i in range(width) if int(partner[i].sum()) == 1]
    kept = [(i, j) for i, j in pairs if i < j and (j, i) in pairs and _turns(apart[:, [i, j]][:, :, [i, j]])]
    return loose, torch.tensor(kept, dtype=torch.int64).view(-1, 2)


def _turns(blocks: Tensor) -> bool:
    """Whether two by two matrices are complex numbers."""
    even = (blocks[:, 0, 0] - blocks[:, 1, 1]).abs().max()
    odd = (blocks[:, 0, 1] + blocks[:, 1, 0]).abs().max()
    return float(torch.maximum(even, odd)) <= 1e-9


def _positions(queries: Tensor, keys: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """What is done at a few places; first twice the same place."""
    last = min(len(queries), len(keys)) - 1
    for s, t in ((0, 0), (0, 1), (1, 0), (0, last), (last, 0), (last // 2, last)):
        yield queries[s], keys[t]


__all__ = ["Attention", "Projection", "attention_layers"]
