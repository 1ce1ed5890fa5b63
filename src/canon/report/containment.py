"""Where the owner's network stands in the suspect: whose channels they are, space by space and layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from canon.report import charts
from canon.report.answers import owned
from canon.report.network import Part, stretches
from canon.report.words import count, number, percent

Content = dict[str, Any]

WHOSE: Final = {
    "owned": "the owner's",
    "copied": "further copies of the owner's",
    "surplus": "nobody's",
    "missing": "the owner's, not found",
}
"""What a channel of a space is."""


@dataclass(frozen=True)
class SpaceBar:
    """A space as it is drawn."""

    name: str
    parts: tuple[Part, ...]
    label: str


def containment_content(document: Mapping[str, Any]) -> Content:
    """What the section says and shows."""
    found = document["containment"]
    spaces, layers = found["spaces"], found["layers"]
    pieces = {space["name"]: _pieces(space, found["answer"]) for space in spaces}
    totals = {kind: sum(each[kind] for each in pieces.values()) for kind in WHOSE}
    widest = max((sum(each.values()) for each in pieces.values()), default=1)
    bars = [
        SpaceBar(name, stretches(each, widest), f"{each['owned']:,} of {each['owned'] + each['missing']:,}")
        for name, each in sorted(pieces.items(), key=lambda item: -item[1]["missing"])[: charts.SHOWN]
    ]
    counted = "; ".join(f"{many:,} {WHOSE[kind]}" for kind, many in totals.items())
    return {
        "contained": found,
        "whose": [{"id": kind, "name": WHOSE[kind], "channels": many} for kind, many in totals.items() if many],
        "space_bars": bars,
        "contained_label": f"Channels of all spaces: {counted}.",
        "surplus_sentence": _surplus(found, totals),
        "contained_rows": [*_facts(found)],
        "owner_space_rows": [
            (s["name"], s["owner"], pieces[s["name"]]["owned"], s["distinct"], s["suspect"], s["copies"],
             pieces[s["name"]]["surplus"], "yes" if s["pinned"] else "no")
            for s in spaces
        ],
        "owner_layer_rows": [
            (x["name"], x["channels"], x["distinct"], number(x["median"]) if x["found"] else "",
             number(x["worst"]) if x["found"] else "", f"{x['chance']:.2f}", "yes" if x["first"] else "no")
            for x in layers
        ],
        "fixed_rows": [(name, _residual(value)) for name, value in found["fixed"].items()],
        "update_rows": [
            (f"ancestor {index}", f"{update['cosine']:.3f}", number(update["size"]))
            for index, update in enumerate(found["ancestors"], 1)
        ],
    }  # fmt: skip


def _pieces(space: Mapping[str, Any], answer: str) -> dict[str, int]:
    has = owned(space, answer)
    return {
        "owned": has,
        "copied": space["copies"],
        "surplus": space["surplus"] + space["found"] - has,
        "missing": space["owner"] - has,
    }


def _surplus(found: Mapping[str, Any], totals: Mapping[str, int]) -> str:
    """What is to be said of channels that are nobody's."""
    many = totals["surplus"]
    if not many:
        return "Every channel of the suspect is one of the owner's or a copy of one."
    are = "1 channel of the suspect is" if many == 1 else f"{many:,} channels of the suspect are"
    if found["answer"] == "contained":
        return f"{are} nobody's: without them, what was taken out of the suspect computes the same."
    return f"{are} nobody's: they resemble no channel of the owner's beyond chance."


def _facts(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("the owner's channels found, distinctly and beyond chance", percent(found["coverage"])),
        ("the same, without layers that read the input", percent(found["deep"])),
        ("layers that count for the word derived", f"{found['layers_found']:,} of {found['layers_in_all']:,}"),
        ("numbers that count for it", f"{found['numbers_found']:,} of {found['numbers']:,}"),
        ("largest residual of a channel that was compared", _residual(found["residual"])),
        ("median of the layers' median residuals", _residual(found["median"])),
        ("tolerance for tensors without channels", number(found["tolerance"])),
        ("layers refitted on the suspect's own activations", f"{len(found['refitted']):,}"),
    ]
    for name, title in (("agreement", "the suspect"), ("owner_agreement", "the owner's model")):
        figures = found[name]
        if figures is not None:
            said = f"{_residual(figures['difference'])}, on {count(figures['probes'], 'probe')}"
            rows.append((f"what was taken out against {title}: largest difference of outputs", said))
    for item in found["function"]:
        said = f"not compared: {item['problem']}" if item["difference"] is None else number(item["difference"])
        rows.append((f"what was taken out against the owner's outputs, {item['source']} probes", said))
    return rows


def _residual(value: float | None) -> str:
    return "none" if value is None else number(value)
