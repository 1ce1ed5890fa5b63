"""`canon inspect`: the channel spaces of a model, and why some of them must stay as they are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from canon.cli.console import Talker
from canon.cli.options import AsJson

if TYPE_CHECKING:
    from canon.graph import ChannelGraph, Space

Name = Annotated[str, typer.Argument(metavar="MODEL", help="A torchvision or timm model name, such as resnet18.")]
Size = Annotated[
    int | None, typer.Option("--size", min=1, help="Height and width of the images; default: what the model is fed.")
]


@dataclass(frozen=True)
class SpaceRow:
    """One space as the user sees it."""

    name: str
    width: int
    groups: int
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    taps: int
    scalable_taps: int
    """Taps through which positive scale passes."""

    pins: tuple[dict[str, str], ...]


def inspect(name: Name, size: Size = None, as_json: AsJson = False) -> None:
    """Show the channel spaces of a model: what may be rewritten, and what pins the rest."""
    import torch

    from canon import zoo
    from canon.graph import trace

    talker = Talker(as_json)
    model = zoo.model(name)
    side = size or zoo.input_size(name)
    graph = trace(model, torch.randn(2, 3, side, side))
    rows = [describe(graph, space) for space in graph.spaces]
    talker.result(document(name, graph, rows), report(name, graph, rows))


def describe(graph: ChannelGraph, space: Space) -> SpaceRow:
    """What there is to say about one space."""
    taps = graph.space_taps(space)
    return SpaceRow(
        name=space.name,
        width=space.width,
        groups=space.groups,
        producers=tuple(dict.fromkeys(graph.maps[p.map].name for p in space.producers)),
        consumers=tuple(dict.fromkeys(graph.maps[c.map].name for c in space.consumers)),
        taps=len(taps),
        scalable_taps=sum(tap not in graph.fixed_taps for tap in taps),
        pins=tuple({"reason": pin.reason, "node": pin.node} for pin in space.pins),
    )


def document(name: str, graph: ChannelGraph, rows: list[SpaceRow]) -> dict[str, Any]:
    """The result for a program."""
    producers = {linear.weight for linear in graph.maps}
    free = {graph.maps[p.map].weight for space in graph.free for p in space.producers}
    held = {graph.maps[p.map].weight for space in graph.spaces if space.pins for p in space.producers}
    return {
        "model": name,
        "front_end": graph.method,
        "free_spaces": len(graph.free),
        "free_producers": len(free - held),
        "producers": len(producers),
        "spaces": rows,
    }


def report(name: str, graph: ChannelGraph, rows: list[SpaceRow]) -> Group:
    """The result for a person."""
    summary = document(name, graph, rows)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("space", "width", "groups", "producers", "consumers", "taps", "scaling"):
        table.add_column(title, justify="right" if title in ("width", "groups", "taps") else "left", overflow="fold")
    for row in rows:
        cells = (str(row.width), str(row.groups), shorten(row.producers), shorten(row.consumers), str(row.taps))
        style = "dim" if row.pins else None
        table.add_row(escape(row.name), *map(escape, cells), scaling(row), style=style)
    head = Text(
        f"{name}: {summary['free_spaces']} free spaces of {len(rows)}, {summary['free_producers']} free producers of "
        f"{summary['producers']}, traced with torch.{graph.method}"
    )
    return Group(head, Text(), table, Text(), *pins(rows))


def scaling(row: SpaceRow) -> str:
    """Whether scale may pass."""
    if row.pins:
        return "pinned"
    if row.scalable_taps == row.taps:
        return "yes"
    return f"at {row.scalable_taps} of {row.taps} taps" if row.scalable_taps else "no"


def shorten(names: tuple[str, ...]) -> str:
    """The first name, and how many more there are."""
    return f"{names[0]} +{len(names) - 1}" if len(names) > 1 else "".join(names)


def pins(rows: list[SpaceRow]) -> list[Text]:
    """Every reason once, with the nodes that caused it and how many spaces it holds."""
    nodes: dict[str, dict[str, None]] = {}
    spaces: Counter[str] = Counter()
    for row in rows:
        spaces.update({pin["reason"] for pin in row.pins})
        for pin in row.pins:
            nodes.setdefault(pin["reason"], {})[pin["node"]] = None
    if not spaces:
        return [Text("No pins.")]
    lines = [Text("Pins", style="bold")]
    for reason, number in spaces.most_common():
        lines.append(Text(f"  {number} space{'s' if number > 1 else ''}: {reason}"))
        lines.append(Text(f"    at {', '.join(nodes[reason])}", style="dim"))
    return lines
