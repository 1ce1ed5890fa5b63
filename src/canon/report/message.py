"""The owner's message: what the key reads, what it reads from models that cannot bear it, and whether luck would do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from canon.report import charts
from canon.report.words import count, number, odds, percent
from canon.watermarks import Controls

Content = dict[str, Any]


def message_content(document: Mapping[str, Any]) -> Content:
    """What the section says and shows."""
    mark = document["watermark"]
    content: Content = {"mark": mark, "mark_answer": document["answers"]["mark"]["answer"]}
    if mark["refused"] is not None:
        return content
    controls = controls_of(mark["controls"])
    bars = charts.similarities(mark, document["function"]["against"] == "the reference")
    found = charts.luck(mark["matched"], controls, mark["alternatives"], mark["alpha"])
    return {
        **content,
        "similarity": bars,
        "similarity_label": "; ".join(f"{bar.name}: {bar.label}" for bar in bars),
        "similarity_sentence": _back(mark["tier2"], content["mark_answer"]),
        "luck": found,
        "luck_label": _luck(mark, controls, found),
        "controls_sentence": _controls(controls),
        "message_rows": _rows(mark, controls),
    }


def controls_of(figures: Mapping[str, Any]) -> Controls:
    """The controls that a document speaks of."""
    kinds = tuple(kind for kind, many in figures["kinds"].items() for _ in range(many))
    return Controls(
        figures["scheme"], figures["seed"], kinds, tuple(figures["matched"]), figures["total"], figures["carries_alone"]
    )


def _back(tier2: Mapping[str, Any], answer: str) -> str:
    """What became of the similarity, in words that hold whatever the numbers are."""
    if answer != "read":
        return "These figures show no mark; what luck gives stands below."
    lost, back = tier2["drop"], tier2["recovered"] - tier2["attacked"]
    if lost <= tier2["slack"]:
        return "The suspect as it was given reads no worse than the owner's model: nothing had to come back."
    reads = f"The suspect as it was given reads {number(lost)} less than the owner's model"
    if back <= 0:
        return f"{reads}, and nothing of that came back."
    enough = "enough" if tier2["passed"] else "not enough"
    return f"{reads}; {number(min(back, lost))} of that came back, which is {enough}."


def _predicate(tier2: Mapping[str, Any], controls: Controls) -> str:
    """Whether enough came back, and where that says nothing."""
    if controls.void:
        return "says nothing, the key is void"
    if not tier2["drop"]:
        return "holds, since nothing was lost that had to come back"
    return "holds" if tier2["passed"] else "does not hold"


def _luck(mark: Mapping[str, Any], controls: Controls, found: charts.Luck) -> str:
    limit, enough = number(mark["alpha"]), found.needed_bits
    needed = (
        f"No number of right bits rules out luck with a chance of {limit}."
        if enough is None
        else f"{enough:,} or more right bits of {mark['total']:,} happen by luck with a chance of at most {limit}."
    )
    chance = f"{odds(mark['p_value'])} (p = {mark['p_value']:.2g})"
    model = f"This model has {mark['matched']:,} right, for which the chance is {chance}"
    if controls.void:
        return f"{needed} {model}. The key is void, so this shows nothing."
    ruled = "luck is ruled out" if mark["p_value"] <= mark["alpha"] else "luck is not ruled out by this figure"
    return f"{needed} {model}: {ruled}."


def _controls(controls: Controls) -> str:
    many = count(controls.count, "model")
    says = (
        f"The key was also read from {many} that cannot bear the mark: the suspect itself, with the marked places "
        f"drawn anew, moved to other channels, or with signs changed. They have {percent(controls.mean)} of the bits "
        f"right on average and {max(controls.matched):,} of {controls.total:,} at most."
    )
    return f"{says} The key is void: {controls.reason}." if controls.void else f"{says} That is what luck gives."


def _rows(mark: Mapping[str, Any], controls: Controls) -> list[tuple[str, str]]:
    tier2, given = mark["tier2"], mark["as_given"]
    return [
        ("scheme", mark["scheme"]),
        ("read from", f"the {mark['read_from']} model"),
        ("channel spaces of the marked layers", ", ".join(mark["spaces"]) or "none"),
        ("bits right", f"{mark['matched']:,} of {mark['total']:,}"),
        ("bits right in the suspect as given", f"{given['matched']:,} of {given['total']:,}"),
        ("marked layers of other shapes in the suspect as given", f"{given['other_shapes']:,}"),
        ("places that the key was free to choose from", f"{mark['alternatives']:,}"),
        ("p-value, with the controls' chance and scatter", f"{mark['p_value']:.3g}"),
        ("p-value of independent fair coins (binomial)", f"{mark['binomial']:.3g}"),
        ("largest p-value that shows a mark (α)", f"{mark['alpha']:g}"),
        ("in this scheme, bits of a key drawn at random are fair coins", "yes" if mark["carries_alone"] else "no"),
        ("controls", ", ".join(f"{many:,} {kind}" for kind, many in mark["controls"]["kinds"].items())),
        ("seed of the controls", f"{controls.seed}"),
        ("mean share of right bits of the controls", f"{controls.mean:.4f}"),
        ("scatter of the controls, 1: as independent bits", f"{controls.dispersion:.3f}"),
        ("similarity of the owner's model (c)", f"{tier2['clean']:.4f}"),
        ("similarity of the suspect as given (a)", f"{tier2['attacked']:.4f}"),
        ("similarity where it was read (r)", f"{tier2['recovered']:.4f}"),
        ("part of the loss that must come back (λ)", f"{tier2['fraction']:g}"),
        ("room for rounding (δ)", f"{tier2['slack']:g}"),
        ("r − a ≥ λ · max(0, c − a) − δ", _predicate(tier2, controls)),
    ]
