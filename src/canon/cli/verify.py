"""`canon verify`: recover a suspect, compare it with what its owner has, and say what has been shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from canon._files import atomic_path
from canon.cli.claiming import Claims
from canon.cli.console import Talker
from canon.cli.exhibits import Marked, load_exhibits
from canon.cli.exit_codes import ExitCode
from canon.cli.groups import verb
from canon.cli.models import ReadOptions, Suspect
from canon.cli.options import AsJson, Device, Force, Report, command_line
from canon.cli.sealing import Sealing

if TYPE_CHECKING:
    from canon.api import Judgement
    from canon.verify.verdict import Verdict

Tolerance = Annotated[float, typer.Option("--tolerance", min=0.0, help="Largest relative residual that passes.")]
Layers = Annotated[list[str] | None, typer.Option("--layer", help="A layer to compare; repeat it for more.")]
Alpha = Annotated[float, typer.Option("--alpha", min=0.0, max=1.0, help="Largest p-value that proves a mark.")]
EvidenceOut = Annotated[Path, typer.Option("--out", "-o", dir_okay=False, help="Where to write the evidence.")]
Recovered = Annotated[bool, typer.Option("--recovered", help="The suspect is recovered already.")]
CaseText = Annotated[
    str | None,
    typer.Option(
        "--case", metavar="CASE", help="Your case, for the record; with --sign, the folder that all of it is sealed in."
    ),
]
Sign = Annotated[
    Path | None,
    typer.Option("--sign", metavar="KEY", dir_okay=False, exists=True, help="Sign the evidence with this private key."),
]
ExaminerText = Annotated[str | None, typer.Option("--examiner", metavar="TEXT", help="Who examines, for the record.")]


@verb(
    "canon verify suspect.safetensors --arch resnet18 --reference owner.safetensors --out evidence.json",
    "canon verify suspect.pt2 --layout-key layout.key --watermark-key owner.key --out found.json --report found.html",
    "canon verify suspect.safetensors -r owner.safetensors --probes photographs.npz --case 2026/17 --out probed.json",
    "canon verify recovered.safetensors --reference owner.safetensors --recovered --json --out again.json",
)
def verify(
    context: typer.Context,
    suspect: Suspect,
    owned: Marked,
    claims: Claims,
    reading: ReadOptions,
    tolerance: Tolerance = 1e-3,
    layer: Layers = None,
    alpha: Alpha = 1e-6,
    recovered: Recovered = False,
    device: Device = "cpu",
    case: CaseText = None,
    examiner: ExaminerText = None,
    sign: Sign = None,
    out: EvidenceOut = Path("evidence.json"),
    report: Report = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say whether SUSPECT holds the owner's network, computes the same and carries the mark; write the evidence.

    Exit status: 0 proved or matches, 1 refuted, 2 wrong usage or input, 3 inconclusive.
    """
    from canon.api import JudgeOptions, judge
    from canon.report import check_report, write_report

    talker = Talker(as_json)
    if report is not None:
        check_report(report, force=force)
    brought = claims.presented()
    sealing = Sealing.of(sign, case, claims)
    exhibits = load_exhibits(
        talker, suspect, owned, reading, device,
        outputs=[out, report], also_read=[*claims.files, *([sign] if sign else [])], force=force,
    )  # fmt: skip
    options = JudgeOptions(
        tolerance=tolerance, layers=tuple(layer) if layer else None, alpha=alpha, recover=not recovered
    )
    notes = {"command": command_line(context), "case": case, "examiner": examiner}
    with talker.status(f"verifying {exhibits.suspect.name}"):
        found = judge(
            **exhibits.arguments(device),
            claim=brought,
            options=options,
            notes={name: text for name, text in notes.items() if text is not None},
        )
    text = (json.dumps(found.evidence, indent=2, allow_nan=False) + "\n").encode()
    if sealing is not None:
        text = sealing.seal(found.evidence)
    with atomic_path(out, force=force) as target:
        target.write_bytes(text)
    if report is not None:
        write_report(found.evidence, report, force=force)
    if sealing is not None:
        sealing.write_folder(text, report, notes["command"] or "")
    talker.result(found.evidence, summary(found, out, report))
    raise typer.Exit(exit_code(found.verdict))


def exit_code(verdict: Verdict) -> ExitCode:
    """What a verdict tells a script."""
    return {
        "proved": ExitCode.OK,
        "matches": ExitCode.OK,
        "refuted": ExitCode.REFUTED,
        "inconclusive": ExitCode.INCONCLUSIVE,
    }[verdict.kind]


QUESTIONS = {
    "network": "same network",
    "function": "same function",
    "mark": "carries the mark",
    "priority": "who was first",
}
STYLES = {"proved": "bold green", "matches": "bold green", "refuted": "bold red", "inconclusive": "bold yellow"}


def summary(found: Judgement, out: Path, page: Path | None = None) -> Group:
    """The verdict for a person: the answers one by one."""
    verdict = found.evidence["verdict"]
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("question")
    table.add_column("answer", style="bold")
    table.add_column("why", overflow="fold")
    for name, question in QUESTIONS.items():
        answer = found.evidence["answers"][name]
        table.add_row(question, answer["answer"], Text(answer["reason"]))
    lines: list[Text | Table] = [Text(verdict["kind"], style=STYLES[verdict["kind"]]), Text(verdict["reason"]), table]
    missing = found.evidence["answers"]["network"]["missing"]
    if missing:
        lines.append(
            Text(f"not compared or not found: {len(missing)}, first {missing[0]['what']}: {missing[0]['why']}")
        )
    lines += [Text(line) for line in _form(found)]
    lines.append(Text(f"evidence: {out}"))
    if page is not None:
        lines.append(Text(f"report: {page}"))
    return Group(*lines)


def _form(found: Judgement) -> Iterator[str]:
    """What a person should know about another program, and about folded norms."""
    housed = found.compared.housed
    if housed is not None:
        yield f"program: another one than the owner's; brought into the owner's in {len(housed.steps)} steps"
        for what, names in (("owner's without a counterpart", housed.missing), ("left out", housed.surplus)):
            if names:
                yield f"  {what}: {len(names)}, first {names[0]}"
    form = found.compared.form
    if form.restored:
        yield f"norms: {len(form.restored)} were folded away in the suspect; both models are compared with norms folded"
        yield "  to read a watermark, rows in front of them are given the owner's scale and sign, and nothing else"
    if form.folded:
        yield f"norms: {len(form.folded)} stand where the owner's model has none; they were folded"
