"""`canon attack`: hide a model as a thief would, to see whether a watermark survives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from canon._files import atomic_path, check_output, write_text
from canon.cli.console import Talker
from canon.cli.models import Architecture, load_model, save_tensors
from canon.cli.options import AsJson, Force, Seed

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A torchvision or timm model name, such as resnet18, or a safetensors file."),
]
Ops = Annotated[
    list[str] | None,
    typer.Option("--op", help="nso_zero, nso_clique, nso_split, in the order given; or mix-opseq[-per-merge-group]."),
]
Ratio = Annotated[float, typer.Option("--ratio", help="How many channels each primitive adds, in (0, 1].")]
Permute = Annotated[bool, typer.Option("--permute/--no-permute", help="Shuffle channels.")]
Scale = Annotated[bool, typer.Option("--scale/--no-scale", help="Scale channels where that changes nothing.")]
Kernels = Annotated[bool, typer.Option("--expand-kernels", help="Grow convolution kernels from k to k+2.")]
Select = Annotated[
    list[str] | None, typer.Option("--select", help="Only layers or spaces of this pattern; repeatable.")
]
Length = Annotated[int, typer.Option("--sequence-length", min=1, help="Primitives that a mix samples.")]
ModelFile = Annotated[Path, typer.Option("--out", "-o", dir_okay=False, help="Where to write the attacked weights.")]
LogFile = Annotated[Path | None, typer.Option("--log", dir_okay=False, help="Where to write what was done, as JSON.")]


def attack(
    model: Model,
    out: ModelFile,
    log: LogFile = None,
    arch: Architecture = None,
    op: Ops = None,
    ratio: Ratio = 0.2,
    seed: Seed = 0,
    permute: Permute = True,
    scale: Scale = True,
    expand_kernels: Kernels = False,
    select: Select = None,
    sequence_length: Length = 3,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Inject, shuffle and scale channels so that MODEL computes the same and looks like another."""
    from canon import zoo
    from canon.attacks import AttackOptions, attack_with

    talker = Talker(as_json)
    options = AttackOptions(
        ops=tuple(op or ["mix-opseq-per-merge-group"]),
        ratio=ratio,
        seed=seed,
        permute=permute,
        scale=scale,
        expand_kernels=expand_kernels,
        select=tuple(select or ()),
        sequence_length=sequence_length,
    )
    for target in filter(None, (out, log)):
        check_output(target, force=force)
    loaded = load_model(model, arch)
    name = loaded.architecture
    example = zoo.example_input(name).to(next(loaded.model.parameters()).dtype)
    with talker.progress(f"attacking {name}", 100) as advance:
        done = 0

        def told(written: int, total: int) -> None:
            nonlocal done
            while done < 100 * written // total:
                done += 1
                advance()

        result = attack_with(loaded.model, example, options, told)
    with atomic_path(out, force=force) as path:
        save_tensors(result.model, path)
    if log is not None:
        write_text(log, result.log.to_json() + "\n", force=force)
    before = sum(space.before for space in result.log.spaces)
    after = sum(space.after for space in result.log.spaces)
    document: dict[str, Any] = {
        "model": name,
        "weights": out,
        "log": log,
        "spaces": len(result.log.spaces),
        "channels_before": before,
        "channels_after": after,
        "parameters": result.log.parameters,
        "pinned": result.log.pinned,
    }
    talker.result(
        document,
        Text(
            f"{name}: {before} channels in {len(result.log.spaces)} spaces became {after}, "
            f"{result.log.parameters:,} parameters; {len(result.log.pinned)} spaces must stay\nwritten to {out}"
        ),
    )
