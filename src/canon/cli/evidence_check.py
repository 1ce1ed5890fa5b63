"""`canon evidence check`: work out again everything in a document that follows from other figures in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from canon.cli.console import Talker
from canon.cli.examples import examples
from canon.cli.exit_codes import ExitCode
from canon.cli.options import AsJson

EXAMPLES = examples("canon evidence check evidence.json", "canon evidence check evidence.json --json")
EvidenceFile = Annotated[
    Path, typer.Argument(metavar="FILE", dir_okay=False, help="A document that `canon verify` wrote.")
]


def check(file: EvidenceFile, as_json: AsJson = False) -> None:
    """Work out again what follows from other figures in FILE, the verdict first of all, and say what holds.

    A document that passes is consistent. That it is true only a repeated run shows, and whose it is only a signature.
    Exit status: 0 consistent, 1 contradicts itself or was changed, 2 no evidence that can be read.
    """
    from canon.api import examine_evidence, load_document

    document = load_document(file)
    findings = examine_evidence(document)
    holds = all(finding.holds for finding in findings)
    lines = []
    for finding in findings:
        lines.append(
            Text(f"{'holds' if finding.holds else 'FAILS':6} {finding.what}", style="" if finding.holds else "bold red")
        )
        if finding.problem is not None:
            lines.append(Text(f"       {finding.problem}"))
    kind = document["verdict"].get("kind")
    end = (
        Text(f"consistent: the verdict '{kind}' follows from the document's own figures", style="bold green")
        if holds
        else Text("not consistent: nothing in this document can be relied on", style="bold red")
    )
    found = {
        "file": file,
        "consistent": holds,
        "verdict": kind if holds else None,
        "digest": document["digest"],
        "checks": findings,
    }
    Talker(as_json).result(found, Group(*lines, end))
    raise typer.Exit(ExitCode.OK if holds else ExitCode.REFUTED)
