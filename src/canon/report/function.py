"""Whether the models compute the same: outputs on probes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from canon.report import charts
from canon.report.answers import owner_of
from canon.report.words import number, percent
from canon.verify.answering import DISAGREE, agreeing

Content = dict[str, Any]


def function_content(document: Mapping[str, Any]) -> Content:
    """What the section says and shows."""
    figures = document["function"]
    against = owner_of(document)
    shown = [(f"the suspect, {item['source']} probes", item) for item in figures["comparisons"]]
    shown += [("the suspect after recovery, against the suspect", item) for item in figures["recovered"]]
    known = [(name, item["difference"]) for name, item in shown if item["difference"] is not None]
    agree = agreeing(figures, document["precision"])
    apart = max(DISAGREE, agree)
    chart = charts.residuals(known, agree)
    label = "; ".join(f"{name}: {number(value)}" for name, value in known)
    return {
        "function_against": against,
        "function_chart": chart if known else None,
        "function_label": f"Largest difference of outputs, of their range: {label}.",
        "function_limits": f"Up to {number(agree)} outputs agree; from more than {number(apart)} on they disagree.",
        "function_rows": [
            (name, item["probes"], "not compared" if item["difference"] is None else number(item["difference"]),
             "not compared" if item["same_decision"] is None else percent(item["same_decision"]), item["problem"] or "")
            for name, item in shown
        ],
    }  # fmt: skip
