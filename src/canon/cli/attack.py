"""`canon attack`: hide a model as a thief would, to see whether a watermark survives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from canon._files import check_outputs, write_text
from canon.cli.console import Talker
from canon.cli.examples import examples
from canon.cli.models import Model, ModelOut, load_model
from canon.cli.options import (
    Architecture,
    AsJson,
    Device,
    Force,
    LimitChanges,
    Seed,
    Size,
    TrustPickle,
    parse_device,
)

EXAMPLES = examples(
    "canon attack owner.safetensors --arch resnet18 -o suspect.safetensors --seed 7",
    "canon attack owner.safetensors -o suspect.pt2 --op nso_zero --op nso_clique --ratio 0.5 --log attack.json",
    "canon attack resnet18 -o hidden.safetensors --op mix-opseq --no-scale --json",
)
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
LogFile = Annotated[Path | None, typer.Option("--log", dir_okay=False, help="Where to write what was done, as JSON.")]


def attack(
    model: Model,
    out: ModelOut,
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
    size: Size = None,
    device: Device = "cpu",
    trust_pickle: TrustPickle = False,
    limit: LimitChanges = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Inject, shuffle and scale channels so that MODEL computes the same and looks like another."""
    from canon.attacks import AttackOptions, attack_with
    from canon.io import check_format, save

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
    place = parse_device(device)
    check_format(out)
    check_outputs([out, log], [model], force=force)
    loaded = load_model(talker, model, arch, size, trust_pickle, limit)
    check_outputs([out, log], loaded.files, force=force)
    example = tuple(x.to(place) for x in loaded.example)
    with talker.progress(f"attacking {loaded.name}") as advance:
        result = attack_with(loaded.model.to(place), example, options, lambda done, total: advance(done / total))
    result.model.cpu()
    save(result.model, out, example=loaded.example, architecture=loaded.architecture, force=force)
    if log is not None:
        write_text(log, result.log.to_json() + "\n", force=force)
    before = sum(space.before for space in result.log.spaces)
    after = sum(space.after for space in result.log.spaces)
    document: dict[str, Any] = {
        "model": loaded.name,
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
            f"{loaded.name}: {before} channels in {len(result.log.spaces)} spaces became {after}, "
            f"{result.log.parameters:,} parameters; {len(result.log.pinned)} spaces must stay\nwritten to {out}"
        ),
    )
