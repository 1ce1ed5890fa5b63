"""The suspect against the owner's model, number by number, and what was not compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from canon.report import charts
from canon.report.answers import FORMS, owner_of
from canon.report.words import count, number, percent, sentence
from canon.verify.answering import quoted, unequal

Content = dict[str, Any]


def comparison_content(document: Mapping[str, Any]) -> Content:
    """What the section says and shows."""
    certificate, alignment, equality = document["certificate"], document["alignment"], document["equality"]
    content: Content = {
        "certificate": certificate,
        "alignment": alignment,
        "owner": owner_of(document),
        "equality_sentence": _equality(document),
        "equality_rows": _equality_rows(equality, document["precision"]),
        "histogram": None,
        "space_chart": None,
        "norm_rows": _norms(document["form"]),
        "tensor_rows": [(name, number(value)) for name, value in equality["fixed"].items()],
    }
    if certificate is not None:
        content |= _certificate(certificate)
    if alignment is not None:
        spaces = alignment["spaces"]
        chart = charts.residuals([(space["name"], space["worst"]) for space in spaces], equality["tolerance"])
        content["space_chart"] = chart
        content["spaces_label"] = f"The largest distance of any space is {chart.bars[0].label}." if chart.bars else ""
        content["match_rows"] = [
            (s["name"], s["width"], number(s["worst"]), number(s["median"]), percent(s["distinct"]), s["ambiguous"],
             "yes" if s["pinned"] else "no")
            for s in spaces
        ]  # fmt: skip
    return content


def coverage_content(document: Mapping[str, Any]) -> Content:
    """What was left out, or not found, and why."""
    answer, equality, containment = document["answers"]["network"], document["equality"], document["containment"]
    located = containment is not None and answer["answer"] != "equal"
    uncompared = [] if equality is None else equality["coverage"]["uncompared"]
    rows = [(item["what"], number(item["numbers"]), item["why"]) for item in uncompared]
    lost = [(item["what"], number(item["numbers"]), item["why"]) for item in answer["missing"]] if located else []
    if document["structure"] is not None:
        says = f"Nothing of the weights was compared: {quoted(document['structure'])}"
    elif located:
        found, all_of_it = containment["numbers_found"], containment["numbers"]
        says = (
            f"{all_of_it - found:,} of the owner's {all_of_it:,} numbers ({percent(1 - found / max(1, all_of_it))}) "
            "belong to channels and tensors that nothing in the suspect could be held against"
        )
    elif equality is None or not equality["numbers"]:
        says = "Nothing of the weights was compared number by number"
    elif uncompared:
        share = percent(equality["share"])
        says = f"{share} of the {equality['numbers']:,} numbers that the forward pass uses were compared"
    else:
        says = f"Nothing was left out: all {equality['numbers']:,} numbers that the forward pass uses were compared"
    if document["options"].get("layers") is not None:
        says += f". Only {count(len(document['options']['layers']), 'layer')} had been asked for"
    return {"coverage_sentence": sentence(says), "uncompared_rows": rows, "lost_rows": lost}


def _equality(document: Mapping[str, Any]) -> str:
    equality, owner = document["equality"], owner_of(document)
    if equality["passed"]:
        chosen = "Within the layers that were asked for, the suspect" if equality["narrowed"] else "The suspect"
        return (
            f"{chosen} equals {owner} up to the order and scale of channels{FORMS[equality['form']]}: no number "
            f"differs by more than {number(equality['worst'])}, where {number(equality['tolerance'])} is allowed."
        )
    after = "" if document["containment"] is None else " The section before this one says what was found nevertheless."
    return f"{sentence(f'The suspect is not equal to {owner}: {unequal(document)}')}{after}"


def _equality_rows(equality: Mapping[str, Any], precision: Mapping[str, Any]) -> list[tuple[str, str]]:
    worst = equality["worst"]
    rows = [("compared with", "the owner's model" if equality["by"] == "reference" else "the owner's layout key")]
    if equality["numbers"]:
        rows += [
            ("numbers that the forward pass uses", number(equality["numbers"])),
            ("share of them that was compared", percent(equality["share"])),
            ("the weights alone decide the order of channels", "yes" if equality["established"] else "no"),
        ]
    return [
        *rows,
        ("largest difference", "not every number could be compared" if worst is None else number(worst)),
        ("largest difference allowed", number(equality["tolerance"])),
        ("float types of suspect and owner", f"{precision['suspect']} and {precision['owner']}"),
        ("compared at the precision of", str(precision["compared"])),
    ]


def _norms(form: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    kinds = {"restored": "folded away in the suspect", "folded": "not in the owner's model"}
    return [(pair["norm"], pair["layer"], kinds[kind]) for kind in kinds for pair in form[kind]]


def _certificate(certificate: Mapping[str, Any]) -> Content:
    layers, tolerance = certificate["layers"], certificate["tolerance"]
    passed = sum(layer["passed"] for layer in layers)
    chart = charts.residuals([(layer["name"], layer["max_rel_err"]) for layer in layers], tolerance)
    comparable = any(layer["max_rel_err"] is not None for layer in layers)
    says = _agreeing(passed, len(layers), tolerance)
    if not comparable:
        says = "The layers could not be compared one by one: their widths differ."
    found = charts.histogram(certificate)
    content: Content = {
        "layers_sentence": says,
        "layer_chart": chart,
        "comparable": comparable,
        "layers_label": f"{says} The largest difference is {number(certificate['max_rel_err'])}.",
        "layer_rows": [
            (x["name"], x["width"], "" if x["max_rel_err"] is None else number(x["max_rel_err"]),
             percent(x["match_frac"]), "agrees" if x["passed"] else "differs")
            for x in layers
        ],
        "parameter_rows": [(name, number(value)) for name, value in certificate["parameters"].items()],
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
    return content


def _agreeing(passed: int, total: int, tolerance: float) -> str:
    if total == 1:
        return f"The one layer {'agrees' if passed else 'does not agree'} within the tolerance of {number(tolerance)}."
    many = f"All {total} layers" if passed == total else f"{passed or 'None'} of the {total} layers"
    return f"{many} {'agrees' if passed == 1 else 'agree'} within the tolerance of {number(tolerance)}."
