"""`canon evidence rerun`: repeat the run that a document speaks of, and say what was reproduced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from canon._files import write_text
from canon.cli.console import Talker
from canon.cli.exhibits import Marked, load_exhibits
from canon.cli.exit_codes import ExitCode
from canon.cli.groups import verb
from canon.cli.models import ReadOptions
from canon.cli.options import AsJson, Device, EvidenceFile, Force

if TYPE_CHECKING:
    from canon.api.rerunning import Field, Reproduction

SuspectFile = Annotated[
    str, typer.Option("--suspect", "-s", metavar="MODEL", help="The suspect: a file of any format.")
]
AgainOut = Annotated[
    Path | None, typer.Option("--out", "-o", dir_okay=False, help="Where to write the evidence of the repeated run.")
]

MOST_LINES = 40
"""Differences that are listed for a person."""


@verb(
    "canon evidence rerun evidence.json --suspect suspect.safetensors --arch resnet18 --reference owner.safetensors",
    "canon evidence rerun evidence.json --suspect suspect.safetensors -r owner.safetensors --out again.json --json",
)
def rerun(
    file: EvidenceFile,
    suspect: SuspectFile,
    owned: Marked,
    reading: ReadOptions,
    device: Device = "cpu",
    out: AgainOut = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Repeat the run of FILE with its own options on the models given, and say field by field what was reproduced.

    Digests of the inputs are compared first. Numbers count as reproduced within what floating point allows; other
    versions are named and are no difference by themselves. Exit status: 0 reproduced, 1 something differs, 2 wrong
    usage or input.
    """
    from canon.api import check_evidence, load_document
    from canon.api.rerunning import compare_inputs
    from canon.api.rerunning import rerun as run_again

    talker = Talker(as_json)
    document = load_document(file)
    check_evidence(document)
    exhibits = load_exhibits(talker, suspect, owned, reading, device, outputs=[out], also_read=[file], force=force)
    for field in compare_inputs(_files(document["inputs"]), _files(exhibits.inputs)):
        if field.word == "differs":
            talker.note(f"another input: {field.name} is {field.found}, and the document says {field.said}")
    with talker.status(f"repeating the run of {file.name}"):
        found, again = run_again(document, **exhibits.arguments(device))
    if out is not None:
        write_text(out, json.dumps(again, indent=2, allow_nan=False) + "\n", force=force)
    result: dict[str, Any] = {
        "evidence": file,
        "reproduced": found.reproduced,
        "inputs": found.inputs,
        "different": found.different,
        "versions": found.versions,
        "parts": {part: _counts(fields) for part, fields in found.by_part().items()},
        "verdict": {"said": document["verdict"]["kind"], "found": again["verdict"]["kind"]},
    }
    talker.result(result, Group(*_lines(found, document, again)))
    raise typer.Exit(ExitCode.OK if found.reproduced else ExitCode.REFUTED)


def _files(inputs: Any) -> dict[str, dict[str, str]]:
    """Digests of files alone: those of tensors are known only after the run."""
    return {
        role: {name: value for name, value in names.items() if name.startswith("sha256")}
        for role, names in inputs.items()
    }


def _counts(fields: list[Field]) -> dict[str, int]:
    words = [field.word for field in fields]
    return {"same": words.count("same"), "near": words.count("near"), "differs": words.count("differs")}


def _many(fields: int) -> str:
    return f"{fields} field" if fields == 1 else f"{fields} fields"


def _lines(found: Reproduction, document: Any, again: Any) -> Iterator[Text]:
    for field in found.inputs:
        if field.word == "differs":
            yield Text(
                f"other input  {field.name}: the document says {field.said}, here it is {field.found}", style="bold red"
            )
    if all(field.word == "same" for field in found.inputs):
        yield Text("inputs       all digests are those of the document")
    for part, fields in found.by_part().items():
        counts = _counts(fields)
        near = f", {counts['near']} within what floating point or fresh draws allow" if counts["near"] else ""
        if counts["differs"]:
            yield Text(f"differs      {part}: {counts['differs']} of {len(fields)} fields{near}", style="bold red")
        else:
            yield Text(f"reproduced   {part}: {_many(len(fields))}{near}")
    differing = [field for field in found.fields if field.word == "differs"]
    for field in differing[:MOST_LINES]:
        yield Text(f"  {field.name}: {field.said!s:.160} → {field.found!s:.160}")
    if len(differing) > MOST_LINES:
        yield Text(f"  … and {len(differing) - MOST_LINES} more; --json lists all")
    for field in found.versions:
        yield Text(f"version      {field.name}: {field.said} then, {field.found} now")
    said, now = document["verdict"]["kind"], again["verdict"]["kind"]
    if found.reproduced:
        yield Text(f"reproduced: the verdict '{said}' with all that it rests on", style="bold green")
    else:
        yield Text(f"not reproduced: the document says '{said}', the repeated run '{now}'", style="bold red")
