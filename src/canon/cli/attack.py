"""`canon attack`: hide a model as a thief would, to see whether a watermark survives."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from canon._files import write_text
from canon.cli import completion
from canon.cli.console import Talker
from canon.cli.groups import verb
from canon.cli.inputs import moved
from canon.cli.models import Model, ModelOut, ReadOptions, digested, load_model, save_model
from canon.cli.options import AsJson, Device, Force, Seed, parse_device

if TYPE_CHECKING:
    from canon.attacks import AttackLog, Step

Ops = Annotated[
    list[str] | None,
    typer.Option(
        "--op",
        autocompletion=completion.operations,
        help="nso_zero, nso_clique, nso_split, dead_range, dead_data, odd_group, odd_replace, entangled, tiny_column, "
        "noisy_clique, idle_layer, idle_branch, grown_kernel, wide_basis, constant, endless, in the order given; or "
        "mix-opseq[-per-merge-group].",
    ),
]
After = Annotated[
    list[str] | None,
    typer.Option(
        "--after",
        help="What to do to the weights afterwards, in the order given: noise:relative=0.2, noise:absolute=0.02, "
        "prune=0.3, round=8, float16, bfloat16, finetune:dataset=digits,epochs=1,rate=0.01.",
    ),
]
Ratio = Annotated[float, typer.Option("--ratio", help="How many channels each primitive adds, in (0, 1].")]
Permute = Annotated[
    bool, typer.Option("--permute/--no-permute", help="Shuffle channels; otherwise new ones stand between the others.")
]
Scale = Annotated[bool, typer.Option("--scale/--no-scale", help="Scale channels where that changes nothing.")]
Kernels = Annotated[bool, typer.Option("--expand-kernels", help="Grow convolution kernels from k to k+2.")]
Select = Annotated[
    list[str] | None, typer.Option("--select", help="Only layers or spaces of this pattern; repeatable.")
]
Length = Annotated[int, typer.Option("--sequence-length", min=1, help="Primitives that a mix samples.")]
LogFile = Annotated[Path | None, typer.Option("--log", dir_okay=False, help="Where to write what was done, as JSON.")]


@verb(
    "canon attack owner.safetensors --arch resnet18 -o suspect.safetensors --seed 7",
    "canon attack owner.safetensors -o suspect.pt2 --op nso_zero --op nso_clique --ratio 0.5 --log attack.json",
    "canon attack resnet18 -o hidden.safetensors --op mix-opseq --no-scale --json",
    "canon attack owner.safetensors -o hidden.safetensors --op dead_range --after noise:relative=0.05 --after round=8",
)
def attack(
    model: Model,
    out: ModelOut,
    reading: ReadOptions,
    log: LogFile = None,
    op: Ops = None,
    ratio: Ratio = 0.2,
    seed: Seed = 0,
    permute: Permute = True,
    scale: Scale = True,
    expand_kernels: Kernels = False,
    select: Select = None,
    sequence_length: Length = 3,
    after: After = None,
    device: Device = "cpu",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Inject, shuffle and scale channels so that MODEL computes the same and looks like another."""
    from canon.attacks import AttackOptions, attack_with
    from canon.attacks.after import as_steps
    from canon.attacks.pipeline import check_ops
    from canon.io import check_format

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
    check_ops(options.ops)
    steps = as_steps(after or ())
    place = parse_device(device)
    check_format(out)
    loaded = load_model(talker, model, reading, outputs=[out, log], force=force)
    inputs = moved(loaded.example, place)
    with talker.progress(f"attacking {loaded.name}") as advance:
        result = attack_with(
            loaded.model.to(place),
            inputs,
            options,
            lambda done, total: advance(done / total),
            after=[_with_data(step, loaded.example) for step in steps],
        )
    result.model.cpu()
    chosen = {"verb": "attack", **asdict(options), "after": after, "device": str(place), "size": reading.size}
    save_model(talker, result.model, out, loaded, {**chosen, "example": digested(reading.example)}, force=force)
    if log is not None:
        write_text(log, result.log.to_json() + "\n", force=force)
    narrow = sum(space.before for space in result.log.spaces)
    wide = sum(space.after for space in result.log.spaces)
    document: dict[str, Any] = {
        "model": loaded.name,
        "weights": out,
        "log": log,
        "spaces": len(result.log.spaces),
        "channels_before": narrow,
        "channels_after": wide,
        "parameters": result.log.parameters,
        "pinned": result.log.pinned,
        "skipped": {space.name: space.skipped for space in result.log.spaces if space.skipped},
        "preserves": result.log.preserves,
        "change": result.log.change,
        "after": [asdict(step) for step in result.log.after],
    }
    talker.result(
        document,
        Text(
            f"{loaded.name}: {narrow} channels in {len(result.log.spaces)} spaces became {wide}, "
            f"{result.log.parameters:,} parameters; spaces that must stay: {len(result.log.pinned)}\n"
            + "\n".join([*_changes(result.log), f"written to {out}"])
        ),
    )


def _changes(log: AttackLog) -> list[str]:
    """How far outputs moved, a line for each cause."""
    skipped = sum(bool(space.skipped) for space in log.spaces)
    lines = [f"{skipped} spaces do not allow all of it; the log says why"] if skipped else []
    if log.change is not None:
        words = "only on data like the probes" if log.preserves == "on data" else "nearly"
        lines.append(f"the function is kept {words}: outputs moved by {log.change:.1e} of the largest")
    return [*lines, *(f"{step.step}: outputs moved by {step.change:.1e} of the largest" for step in log.after)]


def _with_data(step: Step, example: tuple[Any, ...]) -> Step:
    """A step that trains is given the dataset that it names, in the size that the model takes."""
    from canon.attacks.after import Finetune

    if not isinstance(step, Finetune) or not step.dataset:
        return step
    from canon import zoo

    data = zoo.dataset(step.dataset)
    side = example[0].shape[-1] if example[0].ndim == 4 else None
    images = data.train_images if side is None else data.resized(side).images_at(data.train_images, "cpu")
    return replace(step, data=(images, data.train_labels))
