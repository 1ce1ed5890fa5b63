"""`canon recover`: take the obfuscation out of a model, from the model alone, and say what was found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from canon._files import atomic_path, check_output, write_text
from canon.cli.console import Talker
from canon.cli.models import Architecture, load_model, read_tensors, save_tensors
from canon.cli.options import AsJson, Device, Force, parse_device

if TYPE_CHECKING:
    from torch import Tensor

    from canon.recovery import RecoveryReport

EXAMPLES = """Examples:

  canon recover suspect.safetensors --arch resnet18 -o recovered.safetensors

  canon recover suspect.safetensors --arch resnet18 -o recovered.safetensors --widths resnet18 --report found.html

  canon recover suspect.safetensors --arch vgg11_bn -o recovered.safetensors --method probe --json
"""

Suspect = Annotated[str, typer.Argument(metavar="MODEL", help="A safetensors file (with --arch), or a model name.")]
ModelFile = Annotated[Path, typer.Option("--out", "-o", dir_okay=False, help="Where to write the recovered weights.")]
ReportFile = Annotated[
    Path | None,
    typer.Option("--report", dir_okay=False, help="Where to write what was found: a page (.html) or every decision."),
]
Method = Annotated[str, typer.Option("--method", "-m", help="exact (from the weights) or probe (from activations).")]
Widths = Annotated[
    str | None,
    typer.Option("--widths", help="The clean widths, if known: a model name, or a safetensors file of the original."),
]
Check = Annotated[bool, typer.Option("--check/--no-check", help="Run both models and compare their outputs.")]

KINDS = ("zero-in", "zero-out", "clique", "duplicate", "constant")


def recover(
    model: Suspect,
    out: ModelFile,
    arch: Architecture = None,
    method: Method = "exact",
    widths: Widths = None,
    report: ReportFile = None,
    check: Check = True,
    device: Device = "cpu",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Undo structural obfuscation of MODEL and write an ordinary, compact model. The input file is not changed."""
    from canon import api, zoo
    from canon.report import check_report, write_report

    talker = Talker(as_json)
    place = parse_device(device)
    for target in filter(None, (out, report)):
        check_output(target, force=force)
    is_page = report is not None and report.suffix.lower() in (".html", ".htm")
    if report is not None and is_page:
        check_report(report, force=force)
    suspect = load_model(model, arch)
    known = None if widths is None else known_widths(widths)
    example = zoo.example_input(suspect.architecture).to(place)
    dtype = next(suspect.model.parameters()).dtype
    with talker.progress(f"recovering {suspect.architecture}", 100) as advance:
        done = 0

        def told(stage: str, finished: int, total: int) -> None:
            nonlocal done
            while done < 100 * finished // max(1, total):
                done += 1
                advance()

        result = api.recover(
            suspect.model.to(place), example.to(dtype), method, widths=known, sanity_check=check, progress=told
        )
    with atomic_path(out, force=force) as path:
        save_tensors(result.model, path)
    if report is not None and is_page:
        options = {"method": method, "widths": widths, "check": check}
        inputs = {"suspect": suspect.origin}
        write_report(
            api.recovery_document(suspect.model, result, example.to(dtype), inputs=inputs, options=options),
            report, force=force,
        )  # fmt: skip
    elif report is not None:
        write_text(report, result.report.to_json() + "\n", force=force)
    document: dict[str, Any] = {"model": model, "weights": out, **result.report.to_dict(decisions=False)}
    talker.result(document, describe(result.report, suspect.architecture, out))


def known_widths(given: str) -> str | dict[str, Tensor]:
    """Widths from a file, or the name of an architecture for the zoo to look up."""
    path = Path(given)
    return read_tensors(path) if path.suffix or path.exists() else given


def describe(report: RecoveryReport, name: str, out: Path) -> Group:
    """The result for a person."""
    if not report.changed:
        return Group(Text(f"{name}: nothing found, nothing changed"), Text(f"written to {out}"))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("space", "before", "after", *KINDS):
        table.add_column(title, justify="left" if title == "space" else "right", overflow="fold")
    for space in report.spaces:
        if space.before != space.after:
            counts = (str(space.counts.get(kind, "")) for kind in KINDS)
            table.add_row(escape(space.name), str(space.before), str(space.after), *counts)
    before, after = report.parameters
    lines = [
        Text(f"{name}: {report.removed} channels removed, {report.merged} merged"),
        Text(f"parameters: {before:,} before, {after:,} after"),
    ]
    if report.cropped:
        lines.append(Text(f"kernels cropped back in {len(report.cropped)} layers"))
    kept = sum(space.kept_ambiguous for space in report.spaces)
    if kept:
        lines.append(Text(f"kept because of known widths or equal groups: {kept} channels"))
    if report.agreement is not None:
        lines.append(Text(f"largest difference of outputs: {report.agreement:.1e} of the largest output"))
    return Group(table, Text(), *lines, Text(f"written to {out}"))
