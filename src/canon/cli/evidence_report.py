"""`canon evidence report`: the page of a document, made again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from canon._files import check_outputs
from canon.cli.console import Talker
from canon.cli.evidence_check import EvidenceFile
from canon.cli.groups import verb
from canon.cli.options import AsJson, Force

PageOut = Annotated[Path, typer.Option("--out", "-o", dir_okay=False, help="The page to write, as HTML.")]


@verb(
    "canon evidence report evidence.json --out found.html",
    "canon evidence report evidence.json -o found.html --force --json",
)
def report(file: EvidenceFile, out: PageOut, force: Force = False, as_json: AsJson = False) -> None:
    """Make the page for people to read, from FILE alone. A document that contradicts itself gets none."""
    from canon.api import load_document
    from canon.report import check_report, write_report

    check_outputs([out], [file], force=force)
    check_report(out, force=force)
    document = load_document(file)
    write_report(document, out, force=force)
    found = {"evidence": file, "report": out, "verdict": document["verdict"]["kind"], "digest": document["digest"]}
    Talker(as_json).result(found, Text(f"{out}: {document['verdict']['kind']}, from {file}"))
