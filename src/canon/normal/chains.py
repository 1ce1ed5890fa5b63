"""A suspect's chain of linear maps written as the owner's: merged where it has more layers, in the owner's kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice, pairwise
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from canon.normal.items import geometry
from canon.normal.kernels import behind, dense, in_groups, preceded, scaled, spread
from canon.normal.nodes import Affine, Linear, Node
from canon.normal.positions import in_place_of

MOST_WAYS: Final = 64
"""Ways to divide a chain that are tried."""

SAME_NUMBER: Final = 1e-12
"""Numbers of two programs are one if they differ by less: `x / √8` and `x · 8^-½`."""

Written = Linear | Affine | None
"""What the owner's layer holds then; None: nothing, because the layer before it has taken it up."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """A chain in the owner's form."""

    values: dict[Node, Written]
    """By linear map of the owner's."""

    said: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class _Link:
    layer: Linear
    after: tuple[Affine, ...] = ()
    names: tuple[str, ...] = ()


def fit(owner: Sequence[Node], suspect: Sequence[Node]) -> Fitted | None:
    """A suspect's chain as the owner's; None where it cannot be written like that."""
    if [n.kind for n in owner] == [n.kind for n in suspect]:
        found = _one_by_one(owner, suspect)
        if found is not None:
            return Fitted(found)
    lead, links = _links(owner)
    their_lead, their_links = _links(suspect)
    if len(their_links) < len(links) or (not links and their_links):
        return None
    for merged in _ways(links, their_links):
        done = _assembled(owner, lead, links, their_lead, merged)
        if done is not None:
            return done
    return None


def _one_by_one(owner: Sequence[Node], suspect: Sequence[Node]) -> dict[Node, Written] | None:
    found: dict[Node, Written] = {}
    values = [node.value for node in suspect]
    for place, (mine, following) in enumerate(pairwise([*owner, None])):
        assert mine is not None, "the last of a pair alone"
        value = values[place]
        if mine.kind == "linear":
            if mine.value.bias is None and value.bias is not None and following is not None and _is_norm(following):
                # The owner's layer has no bias, and the norm behind it can hold it.
                values[place + 1] = _after_bias(values[place + 1], value.bias)
                value = value.with_numbers(value.weight, None)
            written = like(value, mine.value)
            if written is None:
                return None
            found[mine] = written
        elif not holds(mine.value, value):
            return None
        else:
            found[mine] = value
    return found


def _is_norm(node: Node) -> bool:
    return node.kind == "affine" and "norm" in {kind for kind, _ in node.value.sources}


def _after_bias(value: Affine, bias: Tensor) -> Affine:
    """What a norm does to a layer's output with this bias, as a norm of the output without it."""
    shift, norm = value.shift + value.scale * bias.to(value.scale.dtype), value.norm
    if norm is not None and norm.get("running_mean") is not None:
        norm = {**norm, "running_mean": norm["running_mean"] - bias.to(norm["running_mean"].dtype)}
    return replace(value, shift=shift, norm=norm)


def holds(place: Affine, value: Affine) -> bool:
    """Whether numbers can stand where the owner's program has some."""
    kinds = {kind for kind, _ in place.sources}
    if "norm" in kinds or {"running_var", "weight", "bias"} <= kinds:
        return True
    if kinds == {"scale"}:
        return not bool(value.shift.any())
    if kinds == {"shift"}:
        return bool((value.scale == 1).all())
    pairs = ((place.scale, value.scale), (place.shift, value.shift))
    return all(
        not a.is_meta and a.shape == b.shape and torch.allclose(a, b, rtol=SAME_NUMBER, atol=0) for a, b in pairs
    )


def _links(chain: Sequence[Node]) -> tuple[tuple[Affine, ...], list[_Link]]:
    lead: list[Affine] = []
    links: list[_Link] = []
    for node in chain:
        if node.kind == "linear":
            links.append(_Link(node.value, (), (node.name,)))
        elif links:
            links[-1] = replace(links[-1], after=(*links[-1].after, node.value))
        else:
            lead.append(node.value)
    return tuple(lead), links


def _ways(owner: Sequence[_Link], suspect: Sequence[_Link]) -> Iterator[list[_Link]]:
    """The suspect's layers in as many groups as the owner has layers, each group as one layer; likely ways first."""
    if len(owner) == len(suspect):
        yield list(suspect)
        return

    def unlikely(cuts: tuple[int, ...]) -> int:
        # Where the owner has a norm behind a layer, the suspect's layer that ends there probably has one too.
        ends = [suspect[cut - 1] for cut in (*cuts, len(suspect))]
        return sum(bool(mine.after) != bool(end.after) for mine, end in zip(owner, ends, strict=True))

    every = islice(combinations(range(1, len(suspect)), len(owner) - 1), 4 * MOST_WAYS)
    for cuts in sorted(every, key=unlikely)[:MOST_WAYS]:
        borders = (0, *cuts, len(suspect))
        groups = [suspect[a:b] for a, b in pairwise(borders)]
        if any(
            geometry([link.layer for link in group]) != geometry([mine.layer])
            for group, mine in zip(groups, owner, strict=True)
        ):
            continue
        merged = [_merged(group) for group in groups]
        whole = [link for link in merged if link is not None]
        if len(whole) == len(merged):
            yield whole


def _merged(group: Sequence[_Link]) -> _Link | None:
    if len(group) == 1:
        return group[0]
    layer: Linear | None = _taken_up(group[0])
    for link in group[1:-1]:
        together = None if layer is None else behind(layer, link.layer)
        layer = None if together is None else _taken_up(replace(link, layer=together))
    together = None if layer is None else behind(layer, group[-1].layer)
    names = tuple(name for link in group for name in link.names)
    return None if together is None else _Link(together, group[-1].after, names)


def _taken_up(link: _Link) -> Linear:
    layer = link.layer
    for affine in link.after:
        layer = scaled(layer, affine)
    return layer


def composed(maps: Sequence[Affine]) -> Affine | None:
    """Affine maps one behind the other as one."""
    if len(maps) <= 1:
        return maps[0] if maps else None
    scale, shift = maps[0].scale, maps[0].shift
    for following in maps[1:]:
        scale, shift = following.scale * scale, following.scale * shift + following.shift
    scale, shift = torch.broadcast_tensors(scale, shift)
    return Affine(scale.clone(), shift.clone())


def _assembled(
    owner: Sequence[Node],
    lead: Sequence[Affine],
    links: Sequence[_Link],
    their_lead: Sequence[Affine],
    merged: Sequence[_Link],
) -> Fitted | None:
    said = [
        f"{len(link.names)} layers one behind the other are one: " + ", ".join(f"'{name}'" for name in link.names)
        for link in merged
        if len(link.names) > 1
    ]
    waiting = list(owner)
    values: dict[Node, Written] = {}
    before = composed(their_lead)
    if lead or not links:
        if not _place(values, [waiting.pop(0) for _ in lead], before, behind_layer=False):
            return None
        before = None
    for mine, yours in zip(links, merged, strict=True):
        layer: Linear | None = yours.layer
        if before is not None:
            layer = preceded(before, yours.layer)
            before = None
        after = composed(yours.after)
        if layer is not None and not mine.after and after is not None:
            layer = scaled(layer, after)
        written = None if layer is None else like(layer, mine.layer)
        if written is None:
            return None
        values[waiting.pop(0)] = written
        places = [waiting.pop(0) for _ in mine.after]
        if places and not _place(values, places, after, behind_layer=True):
            return None
    return Fitted(values, tuple(said))


def _place(values: dict[Node, Written], places: Sequence[Node], value: Affine | None, *, behind_layer: bool) -> bool:
    """Give an affine map to the first of the owner's that can hold it; the others do nothing."""
    first = next((p for p in places if value is not None and holds(p.value, value)), None)
    if value is not None and first is None:
        return False
    for place in places:
        if place is first:
            values[place] = value
        elif "norm" in {kind for kind, _ in place.value.sources} and behind_layer:
            values[place] = None
        else:
            nothing = Affine(torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64))
            if not holds(place.value, nothing):
                return False
            values[place] = nothing
    return True


def like(value: Linear, owner: Linear) -> Linear | None:
    """A layer with the owner's groups, gaps and at least its kernel; None where it computes something else."""
    if owner.whole is not None:
        return in_place_of(value, owner.whole)
    if value.transposed is not None or owner.transposed is not None:
        mine, yours = (
            (v.transposed, v.stride, v.padding, v.dilation, v.groups, v.weight.shape[2:]) for v in (value, owner)
        )
        return value if mine == yours else None
    if value.rank != owner.rank or value.stride != owner.stride or value.mode != owner.mode:
        return None
    columns = owner.weight.shape[1] * owner.groups
    grouped: Linear | None = value
    if owner.groups == 1:
        grouped = dense(value)
    elif owner.groups == columns:
        grouped = in_groups(value, value.weight.shape[1] * value.groups)
    else:
        grouped = in_groups(value, owner.groups)
    if grouped is None or not owner.rank:
        return grouped
    sized = _dilated(grouped, owner)
    return None if sized is None else _grown(sized, owner)


def _dilated(value: Linear, owner: Linear) -> Linear | None:
    """A kernel with the owner's gaps."""
    sizes = value.weight.shape[2:]
    wanted = tuple(d if n > 1 else 1 for d, n in zip(owner.dilation, owner.weight.shape[2:], strict=True))
    if all(d == w or n == 1 for d, w, n in zip(value.dilation, wanted, sizes, strict=True)):
        return replace(value, dilation=wanted)
    wide = spread(value)
    if any((n - 1) % d for n, d in zip(wide.weight.shape[2:], wanted, strict=True)):
        return None
    weight = wide.weight[(slice(None), slice(None), *(slice(None, None, d) for d in wanted))]
    if int(torch.count_nonzero(weight)) != int(torch.count_nonzero(wide.weight)):
        return None
    return value.with_numbers(weight.contiguous(), value.bias, dilation=wanted)


def _grown(value: Linear, owner: Linear) -> Linear | None:
    """A kernel that is no smaller than the owner's, and whose zeros stand around it as torch's layers can have them."""
    pads: list[int] = []
    padding: list[tuple[int, int]] = []
    weight: Tensor = value.weight.detach()
    for axis in reversed(range(owner.rank)):
        step, (front, back) = value.dilation[axis], value.padding[axis]
        missing = owner.weight.shape[2 + axis] - weight.shape[2 + axis]
        before = (owner.padding[axis][0] - front) // step if missing > 0 else 0
        behind_it = missing - before if missing > 0 else 0
        if before < 0 or behind_it < 0:
            return None
        pads += [before, behind_it]
        padding.append((front + before * step, back + behind_it * step))
    padding.reverse()
    outer = owner.outer or ((0, 0),) * owner.rank
    inner = [(a - c, b - d) for (a, b), (c, d) in zip(padding, outer, strict=True)]
    if any(a != b or a < 0 for a, b in inner):
        return None
    if any(pads):
        weight = functional.pad(weight, pads)
    return value.with_numbers(weight, value.bias, padding=tuple(inner), outer=())
