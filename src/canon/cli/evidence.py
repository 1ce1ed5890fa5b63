"""`canon evidence`: check a document that a verification wrote, make its page again, repeat its run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.text import Text

from canon._files import check_outputs
from canon.cli.claiming import Roots
from canon.cli.console import Talker
from canon.cli.evidence_rerun import rerun
from canon.cli.exit_codes import ExitCode
from canon.cli.groups import verb
from canon.cli.options import AsJson, EvidenceFile, Force

if TYPE_CHECKING:
    from canon.api import Finding

app = typer.Typer(no_args_is_help=True, help="Check evidence, make its page again, repeat its run.")

PageOut = Annotated[Path, typer.Option("--out", "-o", dir_okay=False, help="The page to write, as HTML.")]
SignerKey = Annotated[
    Path | None,
    typer.Option("--key", metavar="PEM", dir_okay=False, exists=True, help="The public key that must have signed it."),
]
Stamp = Annotated[
    Path | None,
    typer.Option("--stamp", dir_okay=False, exists=True, help="A time-stamp of the file, checked against --root."),
]


@app.command()
@verb("canon evidence check evidence.json", "canon evidence check evidence.json --json")
def check(
    file: EvidenceFile, key: SignerKey = None, stamp: Stamp = None, root: Roots = None, as_json: AsJson = False
) -> None:
    """Work out again what follows from other figures in FILE, the verdict first of all, and say what holds.

    A document that passes is consistent. That it is true only a repeated run shows, and whose it is only a signature.
    Exit status: 0 consistent, 1 contradicts itself or was changed, 2 no evidence that can be read.
    """
    from canon.api import Finding, examine_evidence, load_document, signer_of

    document = load_document(file)
    findings = [*examine_evidence(document)]
    signer = signer_of(file)
    if key is not None:
        same = signer is not None and signer.strip() == key.read_text(encoding="utf-8").strip()
        problem = None if same else "nobody signed it" if signer is None else "another key signed it"
        findings.append(Finding("it was signed with the key that was given", same, problem))
    if stamp is not None:
        findings.append(_stamped(file, stamp, root or []))
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
        "signed_by": signer,
        "checks": findings,
    }
    if signer is not None and key is None:
        lines.append(Text("signed; whose key it is only --key can tell"))
    Talker(as_json).result(found, Group(*lines, end))
    raise typer.Exit(ExitCode.OK if holds else ExitCode.REFUTED)


@app.command()
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


app.command()(rerun)


def _stamped(file: Path, stamp: Path, roots: list[Path]) -> Finding:
    """Whether a time-stamp beside the file holds, and since when."""
    from canon.api import Finding
    from canon.claims import Trust, check_stamp
    from canon.errors import ClaimError

    try:
        shown = check_stamp(file.read_bytes(), stamp.read_bytes(), Trust.load(roots))
    except ClaimError as error:
        return Finding("it was time-stamped", False, str(error))
    return Finding(f"it was time-stamped {shown.time:%Y-%m-%d %H:%M:%S} UTC by {shown.authority}", True, None)
