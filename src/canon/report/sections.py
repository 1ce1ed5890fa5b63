"""What every section of the page says and shows, from a document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from canon.report import charts
from canon.report.network import Drawing, Row, draw
from canon.report.story import tell, tell_recovery
from canon.report.words import count, number, odds, percent

Content = dict[str, Any]

KINDS: Final = {
    "silent": "added, silent",
    "cancelling": "added, cancelling each other",
    "copied": "added copies",
    "surplus": "more than the owner's model has",
    "missing": "missing against the owner's model",
}
"""What a part of a bar is called."""

INPUTS: Final = {
    "file": "file",
    "name": "architecture",
    "sha256": "SHA-256 of the file",
    "tensors": "SHA-256 of its tensors",
    "registered_model": "SHA-256 of the registered tensors",
}
"""What an input's entries are called."""


@dataclass(frozen=True)
class Section:
    """A part of the page and how the menu calls it."""

    id: str
    short: str


def fill(document: Mapping[str, Any]) -> Content:
    """Everything that the templates need."""
    verified = "verdict" in document
    agreed = document.get("agreement") or {}
    wanted = {
        "network": ("What was done", bool(document.get("network"))),
        "message": ("The message", document.get("watermark") is not None),
        "comparison": ("Comparison", verified),
        "function": ("Function", bool(_models(agreed))),
        "limits": ("Limits", True),
        "provenance": ("Provenance", True),
    }
    sections = [Section(name, short) for name, (short, shown) in wanted.items() if shown]
    inputs = document.get("inputs", {})
    suspect = inputs.get("suspect", {})
    content: Content = {
        "document": document,
        "verified": verified,
        "story": tell(document) if verified else tell_recovery(document),
        "sections": sections,
        "suspect_name": suspect.get("file") or suspect.get("name"),
        "inputs": inputs,
        "input_names": INPUTS,
        "environment": document.get("environment", {}),
        "option_rows": [(name, _plain(value)) for name, value in document.get("options", {}).items()],
    }
    fillers = {"network": _network, "message": _message, "comparison": _comparison, "function": _function}
    for section in sections:
        if section.id in fillers:
            content |= fillers[section.id](document)
    return content


def _network(document: Mapping[str, Any]) -> Content:
    recovery, layers = document["recovery"], document["network"]
    drawing = draw(layers, recovery)
    gone = 0 if recovery is None else recovery["removed"] + recovery["merged"]
    owner_known = all(layer.get("reference") is not None for layer in layers)
    heads = ["layer", "as given", "silent", "cancelling", "copies", "after"] + ["owner's"] * owner_known
    rows = [
        (row.name, row.given, *row.counts.values(), row.recovered) + ((row.reference,) if owner_known else ())
        for row in _each(drawing)
    ]
    spaces = () if recovery is None else recovery["spaces"]
    order = ("zero-in", "zero-out", "constant", "clique", "duplicate")
    return {
        "recovery": recovery,
        "gone": gone,
        "drawing": drawing,
        "stages": any(row.inside for row in drawing.rows),
        "kinds": _kinds(drawing, spaces),
        "network_label": f"The network from input to output, {count(len(layers), 'layer')}. {_label(drawing)} "
        "The table below has the figures of every layer.",
        "network_heads": heads,
        "network_rows": rows,
        "owner_known": owner_known,
        "space_rows": [
            (s["name"], s["before"], s["after"], *(s["counts"].get(kind, 0) for kind in order), s["kept_ambiguous"])
            for s in spaces
            if s["before"] != s["after"] or s["counts"] or s["kept_ambiguous"]
        ],
    }


def _each(drawing: Drawing) -> Iterable[Row]:
    for row in drawing.rows:
        yield from _each(row.inside) if row.inside else (row,)


def _kinds(drawing: Drawing, spaces: Iterable[Mapping[str, Any]]) -> list[Content]:
    """The kinds that occur. Channels are counted by space, since several layers may write the same ones."""
    groups = {"silent": ("zero-in", "zero-out", "constant"), "cancelling": ("clique",), "copied": ("duplicate",)}
    found = {
        group: sum(space["counts"].get(kind, 0) for space in spaces for kind in kinds)
        for group, kinds in groups.items()
    }
    for row in _each(drawing):
        for part in row.parts:
            if part.kind in ("surplus", "missing"):
                found[part.kind] = found.get(part.kind, 0) + part.channels
    return [{"id": kind, "name": KINDS[kind], "channels": many} for kind, many in found.items() if many]


def _label(drawing: Drawing) -> str:
    rows = [*_each(drawing)]
    changed = sum(row.given != row.recovered for row in rows)
    if not changed:
        return "No layer changed its width."
    return f"{count(changed, 'layer')} became narrower when added channels were taken out."


def _message(document: Mapping[str, Any]) -> Content:
    mark = document["watermark"]
    bars = charts.similarities(mark, document["certificate"] is not None)
    found = charts.bits(mark)
    label = (
        f"{found.needed_bits} or more right bits of {mark['total']} happen by luck with a chance of at most "
        f"{number(mark['alpha'])}."
        if found.needed <= 100
        else f"{mark['total']} bits are too few to rule out luck with a chance of {number(mark['alpha'])}."
    )
    ruled_out = "is" if mark["p_value"] <= mark["alpha"] else "is not"
    label += (
        f" This model has {mark['matched']} right, for which the chance is {odds(mark['p_value'])} "
        f"(p = {mark['p_value']:.2g}): luck {ruled_out} ruled out."
    )
    tier2 = mark["tier2"]
    rows = [
        ("scheme", mark["scheme"]),
        ("bits right", f"{mark['matched']} of {mark['total']}"),
        ("p-value (binomial, one-sided)", f"{mark['p_value']:.3g}"),
        ("largest p-value that proves a mark (α)", f"{mark['alpha']:g}"),
        ("similarity of the owner's model (c)", f"{tier2['clean']:.4f}"),
        ("similarity of the suspect as given (a)", f"{tier2['attacked']:.4f}"),
        ("similarity after recovery (r)", f"{tier2['recovered']:.4f}"),
        ("chance level", f"{charts.CHANCE:g}"),
        ("part of the loss that must come back (λ)", f"{tier2['fraction']:g}"),
        ("room for rounding (δ)", f"{tier2['slack']:g}"),
        ("Tier 2: r − a ≥ λ · max(0, c − a) − δ", "holds" if tier2["passed"] else "does not hold"),
        ("read from", f"the {mark['read_from']} model"),
    ]
    return {
        "mark": mark,
        "similarity": bars,
        "similarity_label": "; ".join(f"{bar.name}: {bar.label}" for bar in bars) + "; chance level: 50%",
        "bits": found,
        "bits_label": label,
        "message_rows": rows,
    }


def _comparison(document: Mapping[str, Any]) -> Content:
    certificate, alignment = document["certificate"], document["alignment"]
    content: Content = {
        "certificate": certificate,
        "alignment": alignment,
        "owner": "the owner's model" if certificate is not None else "the registered model",
        "histogram": None,
        "space_chart": None,
        "norm_rows": _norms(document["form"]),
    }
    if certificate is not None:
        content |= _certificate(certificate, document["watermark"] is not None)
    if alignment is not None:
        spaces, tolerance = alignment["spaces"], document["options"].get("tolerance", 1e-3)
        chart = charts.residuals([(space["name"], space["worst"]) for space in spaces], tolerance)
        content["space_chart"] = chart
        content["spaces_label"] = f"The largest distance of any space is {chart.bars[0].label}." if chart.bars else ""
        content["match_rows"] = [
            (s["name"], s["width"], number(s["worst"]), number(s["median"]), percent(s["distinct"]), s["ambiguous"],
             "yes" if s["pinned"] else "no")
            for s in spaces
        ]  # fmt: skip
    return content


def _norms(form: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    kinds = {"restored": "folded away in the suspect", "folded": "not in the owner's model"}
    return [(pair["norm"], pair["layer"], kinds[kind]) for kind in kinds for pair in form[kind]]


def _certificate(certificate: Mapping[str, Any], marked: bool) -> Content:
    layers, tolerance = certificate["layers"], certificate["tolerance"]
    passed = sum(layer["passed"] for layer in layers)
    chart = charts.residuals([(layer["name"], layer["max_rel_err"]) for layer in layers], tolerance)
    sentence = _agreeing(passed, len(layers), "that bear the message" if marked else "of the model", tolerance)
    comparable = any(layer["max_rel_err"] is not None for layer in layers)
    if not comparable:
        sentence = "The layers could not be compared: their widths differ."
    found = charts.histogram(certificate)
    content: Content = {
        "layers_sentence": sentence,
        "layer_chart": chart,
        "comparable": comparable,
        "layers_label": f"{sentence} The largest difference is {number(certificate['max_rel_err'])}.",
        "layer_rows": [
            (x["name"], x["width"], number(x["max_rel_err"]), percent(x["match_frac"]),
             "agrees" if x["passed"] else "differs", x["reason"] or "")
            for x in layers
        ],
        "histogram": found,
    }  # fmt: skip
    if found is not None:
        content["histogram_label"] = (
            f"{found.within:,} of {count(found.channels, 'output channel')} are within the tolerance. Relative "
            "difference from the owner's channel, on a logarithmic scale."
        )
        content["histogram_rows"] = [(bar.name, bar.label) for bar in found.bars if bar.at]
        content["sweep_rows"] = [
            (number(row["tolerance"]), percent(row["match_frac"]), "passes" if row["passed"] else "fails")
            for row in certificate["sweep"]
        ]
        content["parameter_rows"] = [(name, number(value)) for name, value in certificate["parameters"].items()]
    return content


def _agreeing(passed: int, total: int, which: str, tolerance: float) -> str:
    if total == 1:
        return (
            f"The layer {which} {'agrees' if passed else 'does not agree'} within the tolerance of {number(tolerance)}."
        )
    many = f"All {total} layers" if passed == total else f"{passed or 'None'} of the {total} layers"
    return f"{many} {which} {'agrees' if passed == 1 else 'agree'} within the tolerance of {number(tolerance)}."


def _models(agreement: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {name: found for name, found in agreement.items() if isinstance(found, Mapping)}


def _function(document: Mapping[str, Any]) -> Content:
    agreement = document["agreement"]
    names = {
        "recovered": "The suspect after recovery",
        "aligned": "The same in the owner's layout",
        "reference": "The owner's model",
    }
    found = {names.get(name, name): figures for name, figures in _models(agreement).items()}
    bars = [
        charts.Bar(name, 100 * (figures["same_decision"] or 0.0), percent(figures["same_decision"]))
        for name, figures in found.items()
    ]
    return {
        "agreement": agreement,
        "agreements": bars,
        "agreement_label": "; ".join(f"{bar.name}: {bar.label}" for bar in bars),
        "agreement_rows": [
            (name, percent(figures["same_decision"]), f"{number(figures['largest_difference'])} of the largest output")
            for name, figures in found.items()
        ],
    }


def _plain(value: object) -> str:
    if value is None:
        return "default"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
