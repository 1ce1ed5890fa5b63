"""The page on strangers, innocents, thieves and copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from canon_benchmarks.measures.changed import RELATED

Record = dict[str, Any]

CHANCE: Final = 0.01
"""Share of the channels beyond the first layers that may be found in a stranger."""

UNLIKE: Final = ("stranger", "same first weights")

INTRODUCTION: Final = """# Strangers, innocents and thieves

Made by `python -m canon_benchmarks relatives --page` from `relatives.json`, which the same command without it writes.
All models are trained. Digits: AdamW, 20 passes over the training images. CIFAR-100: a resnet18 with a stem for small
images; the public ancestor learns one half of the training images for 20 epochs, the owner fine-tunes it on the other
half for 5 at a rate of 0.02, and strangers learn the owner's half from other first weights. Everybody is judged with
the owner's model, and located with the robust layout key. *Beyond the first*: the share of the owner's channels that
was found in layers that do not read the input. *Same first weights*: trained apart from the owner's first weights.
"""


def page(records: Sequence[Record]) -> tuple[str, int]:
    """Markdown, and how many records are not as they should be."""
    lines = [INTRODUCTION]
    unlike = [r for r in records if r["kind"] in UNLIKE]
    copies = [r for r in records if r["kind"].startswith("copy")]
    tuned = [r for r in records if r["kind"].startswith(("innocent", "thief"))]
    if unlike:
        lines += _strangers(unlike)
    if tuned:
        lines += _family(tuned)
    if copies:
        lines += _copies(copies)
    bad = [r for r in records if why_bad(r)]
    lines += ["## What is not as it should be", ""]
    lines += [f"- {r['dataset']}, {r['model']}, {r['kind']}, seed {r['seed']}: {why_bad(r)}" for r in bad] or [
        "Nothing."
    ]
    return "\n".join(lines) + "\n", len(bad)


def why_bad(record: Record) -> str:
    """What a record breaks; empty where all is well."""
    kind, alone, robust = record["kind"], record["alone"], record["robust"]
    if kind in UNLIKE:
        believed = [w for w in (alone, robust) if w["network"] in RELATED]
        most = max(alone.get("deep", 0.0), robust["deep"])
        return "believed" if believed else f"{most:.2%} found beyond the first layers" if most > CHANCE else ""
    if kind.startswith("innocent"):
        if record["with_ancestor"]["network"] in RELATED:
            return f"{record['with_ancestor']['network']} although the ancestor was given"
        silent = alone["network"] in RELATED and not alone["names_ancestor"]
        return "a common ancestor is not named as an explanation" if silent else ""
    if kind == "thief: one mild epoch" and record["with_ancestor"]["network"] not in RELATED:
        return f"{record['with_ancestor']['network']} with the ancestor given"
    if kind.startswith("copy") and (alone["coverage"] < 0.99 or robust["coverage"] < 0.95):
        return f"coverage {alone['coverage']:g} by the model, {robust['coverage']:g} by the robust key"
    return ""


def _strangers(records: Sequence[Record]) -> list[str]:
    lines = [
        "## Strangers", "",
        "Wanted: *unrelated* or *not decided*, and at most 1% beyond the first layers.", "",
        "| data | model | who | models | accuracy | by the model | most beyond the first | by the robust key | "
        "most beyond the first | first weights given as ancestor |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for data, model, kind in dict.fromkeys((r["dataset"], r["model"], r["kind"]) for r in records):
        mine = [r for r in records if (r["dataset"], r["model"], r["kind"]) == (data, model, kind)]
        span = f"{min(r['accuracy'] for r in mine):.3f} to {max(r['accuracy'] for r in mine):.3f}"
        cells = [data, model, kind, str(len(mine)), span]
        for way in ("alone", "robust"):
            cells += [_words(mine, way), f"{max(r[way].get('deep', 0.0) for r in mine):.2%}"]
        given = [r for r in mine if "with_ancestor" in r]
        cells.append(_words(given, "with_ancestor") if given else "")
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _words(records: Sequence[Record], way: str) -> str:
    counts = Counter(r[way]["network"] for r in records)
    return ", ".join(f"{count} {word}" for word, count in counts.most_common())


def _family(records: Sequence[Record]) -> list[str]:
    lines = [
        "## Innocents and thieves", "",
        "All come from one public ancestor, without a disguise. Wanted: with the ancestor given no innocent is equal, "
        "contained or derived, and a mildly fine-tuned copy stays derived; without it the answer names a common "
        "ancestor as an explanation. *Updates*: cosine of what the suspect and the owner added to the ancestor.", "",
        "| who | models | accuracy | coverage | without the ancestor | explanation named | with the ancestor | "
        "updates |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for kind in dict.fromkeys(r["kind"] for r in records):
        mine = [r for r in records if r["kind"] == kind]
        cosines = [cosine for r in mine for cosine in r["with_ancestor"].get("updates", ())]
        cells = [
            kind,
            str(len(mine)),
            f"{min(r['accuracy'] for r in mine):.3f} to {max(r['accuracy'] for r in mine):.3f}",
            f"{min(r['alone']['coverage'] for r in mine):.3f}",
            _words(mine, "alone"),
            f"{sum(r['alone']['names_ancestor'] for r in mine)}/{len(mine)}",
            _words(mine, "with_ancestor"),
            f"{min(cosines):.2f} to {max(cosines):.2f}" if cosines else "none",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _copies(records: Sequence[Record]) -> list[str]:
    lines = [
        "## Copies of a trained network", "",
        "The owner's model, disguised with mix-opseq at ρ = 0.2, permuted and scaled, and changed before or after. "
        "Fine-tuning: two epochs on the owner's data, at a rate of 0.01 after the disguise, 0.02 before it. Wanted: "
        "coverage of 0.99 by the model, 0.95 by the robust key.", "",
        "| copy | accuracy | owner's | verdict | coverage | residual | robust key | coverage |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in records:
        alone, robust = r["alone"], r["robust"]
        residual = "" if alone.get("residual") is None else f"{alone['residual']:g}"
        lines.append(
            f"| {r['model']}, {r['dataset']}: {r['kind'].removeprefix('copy: ')} | {r['accuracy']:.3f} | "
            f"{r['owner_accuracy']:.3f} | {alone['verdict']}, {alone['network']} | "
            f"{_marked(alone['coverage'], 0.99)} | {residual} | {robust['network']} | "
            f"{_marked(robust['coverage'], 0.95)} |"
        )
    return [*lines, ""]


def _marked(coverage: float, wanted: float) -> str:
    return f"{coverage:.4f}" if coverage >= wanted else f"**{coverage:.4f}**"
