"""What every section of the page says and shows, from a document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from canon.report.answers import questions
from canon.report.comparison import comparison_content, coverage_content
from canon.report.containment import containment_content
from canon.report.function import function_content
from canon.report.message import message_content
from canon.report.network import GROUPS, Drawing, Row, draw
from canon.report.story import tell, tell_recovery
from canon.report.words import count
from canon.verify.verdict import table_lines

Content = dict[str, Any]

KINDS: Final = {"silent": "silent", "cancelling": "cancelling each other", "copied": "copies"}
"""What a part of a bar is called that recovery took out."""

INPUTS: Final = {
    "file": "file",
    "name": "architecture",
    "sha256": "SHA-256 of the file",
    "tensors": "SHA-256 of its tensors",
    "registered_model": "SHA-256 of the registered tensors",
}
"""What an input's entries are called."""

RECORD: Final = {"created": "made at (UTC)", "case": "case", "examiner": "examiner", "command": "command"}
"""What the notes of a record are called, in the order in which they are shown."""


@dataclass(frozen=True)
class Section:
    """A part of the page and how the menu calls it."""

    id: str
    short: str


def fill(document: Mapping[str, Any]) -> Content:
    """Everything that the templates need."""
    verified = "verdict" in document
    wanted = {
        "containment": ("Inside the suspect", bool(document.get("containment"))),
        "comparison": ("Number by number", verified and document["equality"] is not None),
        "coverage": ("Not compared", verified),
        "function": ("Function", verified),
        "message": ("Message", document.get("watermark") is not None),
        "network": ("Recovery", bool(document.get("network"))),
        "rules": ("Rules", verified),
        "limits": ("Limits", True),
        "provenance": ("Provenance", True),
    }
    sections = [Section(name, short) for name, (short, shown) in wanted.items() if shown]
    inputs = document.get("inputs", {})
    suspect = inputs.get("suspect", {})
    content: Content = {
        "document": document,
        "verified": verified,
        "questions": questions(document) if verified else (),
        "story": tell(document) if verified else tell_recovery(document),
        "sections": sections,
        "suspect_name": suspect.get("file") or suspect.get("name"),
        "inputs": inputs,
        "input_names": INPUTS,
        "record_rows": _record(document.get("record", {})),
        "environment": document.get("environment", {}),
        "option_rows": [(name, _plain(value)) for name, value in document.get("options", {}).items()],
    }
    for section in sections:
        if section.id in FILLERS:
            content |= FILLERS[section.id](document)
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
        "surplus": _surplus(document),
        "drawing": drawing,
        "stages": any(row.inside for row in drawing.rows),
        "kinds": _kinds(spaces),
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


def _surplus(document: Mapping[str, Any]) -> int:
    """Channels that recovery could not take out and that are nobody's."""
    found = document.get("containment")
    return 0 if found is None else sum(space["surplus"] for space in found["spaces"])


def _each(drawing: Drawing) -> Iterable[Row]:
    for row in drawing.rows:
        yield from _each(row.inside) if row.inside else (row,)


def _kinds(spaces: Iterable[Mapping[str, Any]]) -> list[Content]:
    """The kinds that occur. Channels are counted by space, since several layers may write the same ones."""
    found = {
        group: sum(space["counts"].get(kind, 0) for space in spaces for kind in kinds)
        for group, kinds in GROUPS.items()
    }
    return [{"id": kind, "name": KINDS[kind], "channels": many} for kind, many in found.items() if many]


def _label(drawing: Drawing) -> str:
    changed = sum(row.given != row.recovered for row in _each(drawing))
    if not changed:
        return "Recovery changed the width of no layer."
    return f"{count(changed, 'layer')} became narrower when channels were taken out."


def _rules(document: Mapping[str, Any]) -> Content:
    from canon.report.story import rule_of
    from canon.verify.verdict import TABLE

    decided = TABLE.index(rule_of(document))
    rows = [
        ("this one" if index == decided else f"line {index + 1}", *cells)
        for index, cells in enumerate(table_lines(_words))
    ]
    return {"rule_rows": rows, "decided": decided + 1}


def _words(words: Iterable[str]) -> str:
    chosen = [*words]
    everything = ({"first", "not first", "nothing shown"}, {"agree", "disagree", "not decided"})
    return "any" if set(chosen) in everything else " or ".join(chosen)


def _record(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    known = [name for name in RECORD if name in record]
    return [(RECORD.get(name, name), _plain(record[name])) for name in (*known, *(n for n in record if n not in known))]


def _plain(value: object) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


FILLERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Content]]] = {
    "containment": containment_content,
    "comparison": comparison_content,
    "coverage": coverage_content,
    "function": function_content,
    "message": message_content,
    "network": _network,
    "rules": _rules,
}
