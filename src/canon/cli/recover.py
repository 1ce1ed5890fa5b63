"""`canon recover`: take the obfuscation out of a model, from the model alone, and say what was found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.markup import escape
from rich.text import Text

from canon._files import check_outputs, write_text
from canon.cli import completion
from canon.cli.console import Talker, table
from canon.cli.groups import verb
from canon.cli.inputs import moved
from canon.cli.models import Model, ModelOut, ReadOptions, digested, load_model, save_model
from canon.cli.options import AsJson, Device, Force, Seed, parse_device, parse_limits

if TYPE_CHECKING:
    from torch import Tensor

    from canon.recovery import RecoveryReport

ReportFile = Annotated[
    Path | None,
    typer.Option("--report", dir_okay=False, help="Where to write what was found: a page (.html) or every decision."),
]
Method = Annotated[
    str,
    typer.Option(
        "--method",
        "-m",
        autocompletion=completion.methods,
        help="exact (from the weights) or probe (from activations).",
    ),
]
Widths = Annotated[
    str | None,
    typer.Option("--widths", help="The clean widths, if known: a model name, or a file of the original."),
]
Check = Annotated[bool, typer.Option("--check/--no-check", help="Run both models and compare their outputs.")]

KINDS = ("zero-in", "zero-out", "clique", "duplicate", "constant")


@verb(
    "canon recover suspect.safetensors --arch resnet18 -o recovered.safetensors",
    "canon recover suspect.pt2 -o recovered.pt2 --report found.html",
    "canon recover suspect.safetensors -o recovered.pt2 --widths resnet18 --report found.json --json",
    "canon recover suspect.safetensors -o probed.safetensors --method probe --seed 3",
)
def recover(
    model: Model,
    out: ModelOut,
    reading: ReadOptions,
    method: Method = "exact",
    widths: Widths = None,
    report: ReportFile = None,
    check: Check = True,
    seed: Seed = 0,
    device: Device = "cpu",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Undo structural obfuscation of MODEL and write an ordinary, compact model. The input file is not changed."""
    from canon import api
    from canon.io import check_format
    from canon.recovery.pipeline import METHODS
    from canon.recovery.probe import ProbeOptions
    from canon.report import check_report, write_report

    talker = Talker(as_json)
    if method not in METHODS:
        raise typer.BadParameter(f"unknown recovery method '{method}'; choose one of: {', '.join(METHODS)}")
    place = parse_device(device)
    check_format(out)
    is_page = report is not None and report.suffix.lower() in (".html", ".htm")
    check_outputs([out, report], [widths], force=force)
    if report is not None and is_page:
        check_report(report, force=force)
    suspect = load_model(talker, model, reading, outputs=[out, report], force=force)
    known = None if widths is None else known_widths(widths, reading.limit)
    inputs = moved(suspect.example, place)
    with talker.progress(f"recovering {suspect.name}") as advance:
        result = api.recover(
            suspect.model.to(place),
            inputs,
            method,
            widths=known,
            sanity_check=check,
            options=ProbeOptions(seed=seed) if method == "probe" else None,
            progress=lambda stage, done, total: advance(done / max(1, total)),
        )
    for one in (suspect.model, result.model):
        one.cpu()
    chosen = {
        "verb": "recover", "method": method, "widths": digested(widths), "check": check, "seed": seed,
        "device": str(place), "example": digested(reading.example), "size": reading.size,
    }  # fmt: skip
    save_model(talker, result.model, out, suspect, chosen, force=force)
    if report is not None and is_page:
        options = {"method": method, "widths": widths, "check": check}
        origins = {"suspect": suspect.origin}
        page = api.recovery_document(suspect.model, result, suspect.example, inputs=origins, options=options)
        write_report(page, report, force=force)
    elif report is not None:
        write_text(report, result.report.to_json() + "\n", force=force)
    document: dict[str, Any] = {"model": model, "weights": out, **result.report.to_dict(decisions=False)}
    talker.result(document, summary(result.report, suspect.name, out))


def known_widths(given: str, limit: list[str] | None) -> str | dict[str, Tensor]:
    """Widths from a file, or the name of an architecture for the zoo to look up."""
    from canon.io import read_weights

    path = Path(given)
    return read_weights(path, limits=parse_limits(limit)) if path.suffix or path.exists() else given


def summary(report: RecoveryReport, name: str, out: Path) -> Group:
    """The result for a person."""
    if not report.changed:
        return Group(Text(f"{name}: nothing found, nothing changed"), Text(f"written to {out}"))
    spaces = table("space", "before", "after", *KINDS)
    for space in report.spaces:
        if space.before != space.after:
            counts = (str(space.counts.get(kind, "")) for kind in KINDS)
            spaces.add_row(escape(space.name), str(space.before), str(space.after), *counts)
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
    return Group(spaces, Text(), *lines, Text(f"written to {out}"))
