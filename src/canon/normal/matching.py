"""Two normal forms matched as graphs: colours from the inputs on and from the outputs back.

A colour from the inputs stands for all that a value is computed from, one from the outputs for all that is made of it.
Where two programs are one network, the values that they give have the same colour, and everything behind them falls
into place. Where something was added, left out or replaced, what comes before it still has its colour from the inputs,
and what comes behind it that from the outputs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from canon.normal.items import Item

MOST_STEPS: Final = 2_000_000
"""Edges that matching looks at before it gives up."""


class BudgetSpent(Exception):
    """Matching two programs takes longer than it may."""


@dataclass(frozen=True, eq=False)
class Match:
    """Which item of a suspect stands for which of the owner's."""

    pairs: dict[Item, Item]
    """By item of the owner's."""

    outputs: tuple[int | None, ...]
    """By output of the owner's: the suspect's; None: it has no counterpart."""

    whole: bool
    """Whether every output of the owner's is computed by the same operations from the same inputs."""

    orders: dict[Item, list[int]] = field(default_factory=dict)
    """By item of the owner's whose operands have no order: which operand of the suspect's stands where."""

    ties: tuple[Item, ...] = ()
    """Operands of the owner's that structure does not tell from others: taken in the order in which they stand."""


class _Colours:
    """Numbers for what is the same; both programs share one table."""

    def __init__(self) -> None:
        self.table: dict[Hashable, int] = {}
        self.left = MOST_STEPS

    def number(self, key: Hashable) -> int:
        return self.table.setdefault(key, len(self.table))

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise BudgetSpent

    def forward(self, items: Sequence[Item], base: dict[Item, Hashable]) -> dict[Item, int]:
        """By item: what it is computed from."""
        found: dict[Item, int] = {}
        for item in items:
            edges = [(how, found[source]) for how, source in item.edges()]
            self.spend(1 + len(edges))
            found[item] = self.number(("from", base[item], tuple(sorted(edges) if item.commutes else edges)))
        return found

    def backward(self, items: Sequence[Item], outputs: Sequence[Item], base: dict[Item, Hashable]) -> dict[Item, int]:
        """By item: what is made of it."""
        users: dict[Item, list[Hashable]] = defaultdict(list)
        for place, item in enumerate(outputs):
            users[item].append(("given", place))
        found: dict[Item, int] = {}
        for item in reversed(items):
            edges = item.edges()
            self.spend(1 + len(edges))
            found[item] = self.number(("for", base[item], tuple(sorted(map(repr, users[item])))))
            for how, source in edges:
                users[source].append((found[item], how))
        return found


def match(
    owner: Sequence[Item],
    owner_outputs: Sequence[Item],
    suspect: Sequence[Item],
    suspect_outputs: Sequence[Item],
    turned: Set[int] = frozenset(),
) -> Match:
    """Match two programs.

    Args:
        owner: Items of the owner's.
        owner_outputs: Those that it gives.
        suspect: Items of the suspect's.
        suspect_outputs: Those that it gives.
        turned: Ties, by number, in which not the first operand is to be taken that fits, but the next.

    Raises:
        BudgetSpent: They are too large for that.
    """
    colours = _Colours()
    sides = ((owner, owner_outputs), (suspect, suspect_outputs))
    labels: list[dict[Item, Hashable]]
    outputs: tuple[int | None, ...] = ()
    # Kernel sizes tell more apart, but a disguise may have changed them.
    for sized in (True, False):
        labels = [{item: (item.label, item.sizes if sized else ()) for item in items} for items, _ in sides]
        first = [colours.forward(items, base) for (items, _), base in zip(sides, labels, strict=True)]
        outputs = _counterparts([first[0][o] for o in owner_outputs], [first[1][s] for s in suspect_outputs])
        if all(place is not None for place in outputs):
            found = _wholly(colours, sides, outputs, first, turned)
            if found is not None:
                return found
    best: dict[Item, Item] = {}
    # What asks for less must bring more.
    for sized, named in ((True, True), (False, True), (False, False)):
        labels = [
            {item: (item.label if named else item.loose, item.sizes if sized else ()) for item in items}
            for items, _ in sides
        ]
        forward = [colours.forward(items, base) for (items, _), base in zip(sides, labels, strict=True)]
        backward = [colours.backward(items, given, base) for (items, given), base in zip(sides, labels, strict=True)]
        pairs = _partly(owner, suspect, forward, backward)
        _extend(owner, pairs, colours)
        _in_order(owner, suspect, pairs)
        best = max(best, pairs, key=len)
    return Match(best, outputs, False)


def _wholly(
    colours: _Colours,
    sides: Sequence[tuple[Sequence[Item], Sequence[Item]]],
    outputs: tuple[int | None, ...],
    first: list[dict[Item, int]],
    turned: Set[int],
) -> Match | None:
    """Programs whose outputs have the same colours, operation by operation; None where that does not come out even."""
    (owner, owner_outputs), (suspect, suspect_outputs) = sides
    # What else a suspect gives (features, say) must not count among the uses of what it shares with the owner's.
    chosen = [suspect_outputs[place] for place in outputs if place is not None]
    kept = _needed(chosen, suspect)
    # A few rounds there and back tell apart what differs in its surroundings only.
    for _ in range(2):
        back = [
            colours.backward(items, given, {item: colour[item] for item in items})
            for items, given, colour in ((owner, owner_outputs, first[0]), (kept, chosen, first[1]))
        ]
        first = [
            colours.forward(items, {item: colour[item] for item in items})
            for items, colour in zip((owner, kept), back, strict=True)
        ]
    start = list(zip(owner_outputs, chosen, strict=True))
    pairs, orders, ties = _descend(colours, start, first[0], first[1], turned)
    return None if pairs is None else Match(pairs, outputs, True, orders, tuple(ties))


def _counterparts(owner: list[int], suspect: list[int]) -> tuple[int | None, ...]:
    """By output of the owner's: an output of the same colour, the one at its place if that is one."""
    taken: set[int] = set()
    found: list[int | None] = []
    for place, colour in enumerate(owner):
        same = [i for i, other in enumerate(suspect) if other == colour and i not in taken]
        choice = place if place in same else same[0] if same else None
        found.append(choice)
        if choice is not None:
            taken.add(choice)
    return tuple(found)


def _needed(outputs: Sequence[Item], items: Sequence[Item]) -> list[Item]:
    needed = set(outputs)
    for item in reversed(items):
        if item in needed:
            needed.update(item.inputs)
    return [item for item in items if item in needed]


def _descend(
    colours: _Colours,
    start: list[tuple[Item, Item]],
    ours: dict[Item, int],
    theirs: dict[Item, int],
    turned: Set[int],
) -> tuple[dict[Item, Item] | None, dict[Item, list[int]], list[Item]]:
    """From outputs to inputs: operands of the same colour stand for each other."""
    pairs: dict[Item, Item] = {}
    orders: dict[Item, list[int]] = {}
    ties: list[Item] = []
    stack = list(reversed(start))
    while stack:
        mine, yours = stack.pop()
        if mine in pairs:
            if pairs[mine] is not yours:
                return None, {}, []
            continue
        pairs[mine] = yours
        edges, others = mine.edges(), yours.edges()
        colours.spend(len(edges))
        if len(edges) != len(others):
            return None, {}, []
        order = list(range(len(edges)))
        if mine.commutes:
            waiting: dict[Hashable, list[int]] = defaultdict(list)
            for place, (how, item) in enumerate(others):
                waiting[how, theirs[item]].append(place)
            order = []
            for how, item in edges:
                known = waiting[how, ours[item]]
                # An operand that was paired by another way comes first, then the order in which they stand.
                settled = next((p for p in known if pairs.get(item) is others[p][1]), None)
                if not known:
                    return None, {}, []
                choice = known[0] if settled is None else settled
                if len(known) > 1 and settled is None:
                    choice = known[1] if len(ties) in turned else choice
                    ties.append(item)
                known.remove(choice)
                order.append(choice)
            orders[mine] = order
        for (_, item), place in zip(edges, order, strict=True):
            stack.append((item, others[place][1]))
    return pairs, orders, ties


def _partly(
    owner: Sequence[Item], suspect: Sequence[Item], forward: list[dict[Item, int]], backward: list[dict[Item, int]]
) -> dict[Item, Item]:
    """What is computed from the same, and what the same is made of; whichever says more comes first."""
    found: dict[Item, Item] = {}
    taken: set[Item] = set()

    def shared(colour: list[dict[Item, int]]) -> int:
        return (Counter(colour[0].values()) & Counter(colour[1].values())).total()

    for colour in sorted((forward, backward), key=shared, reverse=True):
        waiting: dict[int, list[Item]] = defaultdict(list)
        for item in suspect:
            if item not in taken:
                waiting[colour[1][item]].append(item)
        for item in owner:
            if item.node.kind == "tensor" and colour is forward:
                continue  # tensors are made from nothing: that does not tell one from another
            if item not in found and waiting[colour[0][item]]:
                other = waiting[colour[0][item]].pop(0)
                found[item] = other
                taken.add(other)
    return found


def _in_order(owner: Sequence[Item], suspect: Sequence[Item], found: dict[Item, Item]) -> None:
    """What is left over with numbers, as many on both sides: one by one. Whether it fits, the numbers say."""
    taken = set(found.values())
    left: list[dict[Hashable, list[Item]]] = [defaultdict(list), defaultdict(list)]
    for items, gone, waiting in ((owner, found.keys(), left[0]), (suspect, taken, left[1])):
        # A tensor stands where it is read: the order of operands says when it was fetched, and no more.
        read = [one for item in items for one in (*item.inputs, *([item] if item.node.kind != "tensor" else []))]
        for item in dict.fromkeys(read):
            if item not in gone and (item.node.kind in ("linear", "affine", "tensor") or item.node.tensors):
                waiting[item.label, item.sizes].append(item)
    for label, mine in left[0].items():
        if len(mine) == len(left[1][label]):
            found.update(zip(mine, left[1][label], strict=True))


def _extend(owner: Sequence[Item], found: dict[Item, Item], colours: _Colours) -> None:
    """Neighbours of what was matched, where label and place leave no choice."""
    taken = set(found.values())
    changed = True
    while changed:
        changed = False
        for item in owner:
            if item not in found:
                continue
            mine, yours = item.edges(), found[item].edges()
            colours.spend(len(mine) + len(yours))
            free = [(how, source) for how, source in mine if source not in found]
            others = [(how, source) for how, source in yours if source not in taken]
            for how, source in free:
                same = [s for h, s in others if s.label == source.label and h == how and s not in taken]
                alike = [s for h, s in free if s.label == source.label and h == how]
                if len(same) == 1 and len(alike) == 1:
                    found[source] = same[0]
                    taken.add(same[0])
                    changed = True
