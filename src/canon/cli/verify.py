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

from canon._files import check_output, write_text
from canon.cli.console import Talker
from canon.cli.examples import examples
from canon.cli.exit_codes import ExitCode
from canon.cli.models import load_model
from canon.cli.options import (
    Architecture,
    AsJson,
    Device,
    Force,
    LimitChanges,
    Report,
    Size,
    TrustPickle,
    parse_device,
)

if TYPE_CHECKING:
    from canon.api import Judgement
    from canon.verify.verdict import Verdict

EXAMPLES = examples(
    "canon verify suspect.safetensors --arch resnet18 --reference owner.safetensors --out evidence.json",
    "canon verify suspect.pt2 --layout-key layout.key --watermark-key owner.key --out found.json --report found.html",
    "canon verify recovered.safetensors --reference owner.safetensors --recovered --json --out again.json",
)
Suspect = Annotated[
    str,
    typer.Argument(
        metavar="SUSPECT",
        help="A file (.safetensors, .index.json, .pt, .pth, .pt2, .onnx), or the name of an architecture.",
    ),
]
Reference = Annotated[
    str | None, typer.Option("--reference", "-r", metavar="MODEL", help="The owner's model: a file of any format.")
]
LayoutFile = Annotated[Path | None, typer.Option("--layout-key", "-l", dir_okay=False, help="Its layout key instead.")]
MarkFile = Annotated[
    Path | None, typer.Option("--watermark-key", "-w", dir_okay=False, help="The owner's watermark key.")
]
Tolerance = Annotated[float, typer.Option("--tolerance", min=0.0, help="Largest relative residual that passes.")]
Layers = Annotated[list[str] | None, typer.Option("--layer", help="A layer to compare; repeat it for more.")]
Alpha = Annotated[float, typer.Option("--alpha", min=0.0, max=1.0, help="Largest p-value that proves a mark.")]
EvidenceOut = Annotated[Path, typer.Option("--out", "-o", dir_okay=False, help="Where to write the evidence.")]
Recovered = Annotated[bool, typer.Option("--recovered", help="The suspect is recovered already.")]


def verify(
    suspect: Suspect,
    reference: Reference = None,
    layout_key: LayoutFile = None,
    watermark_key: MarkFile = None,
    arch: Architecture = None,
    tolerance: Tolerance = 1e-3,
    layer: Layers = None,
    alpha: Alpha = 1e-6,
    recovered: Recovered = False,
    size: Size = None,
    device: Device = "cpu",
    trust_pickle: TrustPickle = False,
    limit: LimitChanges = None,
    out: EvidenceOut = Path("evidence.json"),
    report: Report = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say whether SUSPECT is the owner's model, or carries the owner's mark, and write the evidence.

    Exit status: 0 proved or matches, 1 refuted, 2 wrong usage or input, 3 inconclusive.
    """
    from canon.api import JudgeOptions, judge
    from canon.report import check_report, write_report
    from canon.verify import LayoutKey
    from canon.verify.digest import file_digest
    from canon.watermarks import load_key

    if (reference is None) == (layout_key is None):
        raise typer.BadParameter("give either --reference or --layout-key")
    talker = Talker(as_json)
    place = parse_device(device)
    check_output(out, force=force)
    if report is not None:
        check_report(report, force=force)
    inputs: dict[str, dict[str, str]] = {}
    given = load_model(talker, suspect, arch, size, trust_pickle, limit)
    inputs["suspect"] = given.origin
    owner = None
    if reference is not None:
        owner = load_model(talker, reference, arch or given.architecture, size, trust_pickle, limit)
        inputs["reference"] = owner.origin
    layout = None if layout_key is None else LayoutKey.load(layout_key)
    mark = None if watermark_key is None else load_key(watermark_key)
    for role, path in (("layout_key", layout_key), ("watermark_key", watermark_key)):
        if path is not None:
            inputs[role] = {"file": path.name, "sha256": file_digest(path)}
    options = JudgeOptions(
        tolerance=tolerance, layers=tuple(layer) if layer else None, alpha=alpha, recover=not recovered
    )
    with talker.status(f"verifying {given.name}"):
        found = judge(
            given.model.to(place),
            tuple(x.to(place) for x in given.example),
            reference=None if owner is None else owner.model.to(place),
            layout_key=layout,
            watermark_key=mark,
            options=options,
            inputs=inputs,
        )
    write_text(out, json.dumps(found.evidence, indent=2, allow_nan=False) + "\n", force=force)
    if report is not None:
        write_report(found.evidence, report, force=force)
    talker.result(found.evidence, describe(found, out, report))
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


def describe(found: Judgement, out: Path, page: Path | None = None) -> Group:
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
    """What a person should know about folded norms."""
    form = found.compared.form
    if form.restored:
        yield f"norms: {len(form.restored)} were folded away in the suspect; both models are compared with norms folded"
        yield "  to read a watermark, rows in front of them are given the owner's scale and sign, and nothing else"
    if form.folded:
        yield f"norms: {len(form.folded)} stand where the owner's model has none; they were folded"
