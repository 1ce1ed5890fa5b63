"""`canon inspect`: what a file is, the channel spaces of its model, and why some of them must stay as they are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.markup import escape
from rich.text import Text

from canon.cli.console import Talker, table
from canon.cli.facts import file_facts, file_report
from canon.cli.groups import verb
from canon.cli.models import Model, ReadOptions, load_model
from canon.cli.options import AsJson, parse_limits

if TYPE_CHECKING:
    from canon.graph import ChannelGraph, Space
    from canon.io import LoadedModel


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


@verb(
    "canon inspect resnet18",
    "canon inspect suspect.safetensors --arch resnet18",
    "canon inspect suspect.pt2 --json",
    "canon inspect layout.key",
)
def inspect(model: Model, reading: ReadOptions, as_json: AsJson = False) -> None:
    """Show what a file or an architecture is: its tensors, its channel spaces, and what pins some of them.

    Key files and weights without a known architecture are described by their tensors alone.
    """
    from canon.graph import trace

    talker = Talker(as_json)
    facts = None if reading.trust_pickle else file_facts(model, reading.arch, parse_limits(reading.limit))
    if facts is not None:
        talker.result(facts, file_report(facts))
        return
    loaded = load_model(talker, model, reading)
    graph = trace(loaded.model, loaded.example)
    rows = [row_of(graph, space) for space in graph.spaces]
    found = document(loaded, graph, rows)
    talker.result(found, report(found, rows))


def row_of(graph: ChannelGraph, space: Space) -> SpaceRow:
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


def document(loaded: LoadedModel, graph: ChannelGraph, rows: list[SpaceRow]) -> dict[str, Any]:
    """The result for a program."""
    from canon.graph.experts import channel_tensors
    from canon.graph.outline import seen_share
    from canon.verify.coverage import used_tensors

    producers = {linear.weight for linear in graph.maps}
    free = {graph.maps[p.map].weight for space in graph.free for p in space.producers}
    held = {graph.maps[p.map].weight for space in graph.spaces if space.pins for p in space.producers}
    tensors = loaded.model.state_dict()
    used = used_tensors(loaded.model, loaded.example)
    seen = seen_share(graph, {name: tensor.numel() for name, tensor in channel_tensors(loaded.model).items()}, used)
    return {
        "model": loaded.name,
        "format": loaded.format,
        "architecture": loaded.architecture,
        **loaded.origin,
        "tensors": len(tensors),
        "bytes": sum(t.numel() * t.element_size() for t in tensors.values()),
        "parameters": sum(p.numel() for p in loaded.model.parameters()),
        "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in loaded.model.parameters()}),
        "inputs": [list(x.shape) for x in loaded.example if hasattr(x, "shape")],
        "front_end": graph.method,
        "free_spaces": len(graph.free),
        "free_producers": len(free - held),
        "producers": len(producers),
        "numbers_seen": seen,
        "held": {name: pin.reason for name, pin in graph.held.items()},
        "spaces": rows,
    }


def report(found: dict[str, Any], rows: list[SpaceRow]) -> Group:
    """The result for a person."""
    words = ("space", "producers", "consumers", "scaling")
    spaces = table("space", "width", "groups", "producers", "consumers", "taps", "scaling", words=words)
    for row in rows:
        cells = (str(row.width), str(row.groups), shorten(row.producers), shorten(row.consumers), str(row.taps))
        style = "dim" if row.pins else None
        spaces.add_row(escape(row.name), *map(escape, cells), scaling(row), style=style)
    head = Text(
        f"{found['model']}: {found['free_spaces']} free spaces of {len(rows)}, {found['free_producers']} free producers"
        f" of {found['producers']}, traced with torch.{found['front_end']};"
        f" {_share(found['numbers_seen'])} of the numbers that the forward pass uses have a place"
    )
    inputs = ", ".join("×".join(map(str, shape)) for shape in found["inputs"])
    about = Text(
        f"{found['format']}; {found['parameters']:,} parameters in {found['tensors']} tensors, {found['bytes']:,} bytes"
        f" of {', '.join(found['dtypes'])}; input {inputs}"
    )
    digest = [Text(f"sha256 {found['sha256']}")] if "sha256" in found else []
    return Group(head, about, *digest, Text(), spaces, Text(), *pins(rows), *held(found["held"]))


def _share(seen: float) -> str:
    """A share that is called 100% only where it is."""
    return "100%" if seen == 1 else f"{min(seen, 0.9999):.2%}"


def held(tensors: dict[str, str]) -> list[Text]:
    """The tensors that no channel goes along with, by what reads them."""
    reasons: dict[str, list[str]] = {}
    for name, reason in tensors.items():
        reasons.setdefault(reason, []).append(name)
    if not reasons:
        return []
    lines = [Text("Tensors without channels of their own", style="bold")]
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        lines.append(Text(f"  {len(names)} {reason}"))
        lines.append(Text(f"    {shorten(tuple(names))}", style="dim"))
    return lines


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
