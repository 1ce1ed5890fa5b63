"""`python -m canon_benchmarks attack_grid`: does every attack keep the function of every model?

One JSON file holds one record per case: model × variant × ratio × precision, with all camouflage on. Cases that have a
record are not run again, so the grid can be stopped, split over processes by model (`--models`, `--out`), put together
(`--merge`), and continued.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from canon import zoo
from canon._files import write_text
from canon._version import __version__
from canon.attacks import AttackOptions, attack_with
from canon.errors import AttackError

MODELS: Final = tuple(
    "resnet18 efficientnet_b0 inception_v3 densenet121 vgg11_bn mobilenet_v2 mobilenet_v3_small googlenet "
    "squeezenet1_1 resnext50_32x4d regnet_y_400mf convnext_tiny vit_b_16".split()
)
VARIANTS: Final = ("nso_zero", "nso_clique", "nso_split", "mix-opseq", "mix-opseq-per-merge-group")
RATIOS: Final = (0.2, 0.5, 1.0)
TOLERANCES: Final = {"float32": 1e-5, "float64": 1e-9}
"""Largest difference of an output, relative to the largest output, by precision."""


@dataclass(frozen=True, order=True)
class Case:
    """One attack on one model."""

    model: str
    variant: str
    ratio: float
    dtype: str
    expand_kernels: bool


@dataclass(frozen=True)
class Record:
    """What came of a case."""

    case: Case
    status: str
    """same, different, or refused."""

    error: float | None = None
    """Largest difference of an output, relative to the largest output."""

    seconds: float | None = None
    """Time of the attack."""

    parameters: int | None = None
    """Entries of the attacked model's tensors."""

    reason: str = ""
    """Why it was refused."""

    limit: int | None = None
    """The size above which it was refused."""

    device: str = "cpu"
    """Where it ran."""


def cases(
    models: Iterable[str], variants: Iterable[str], ratios: Iterable[float], dtypes: Iterable[str]
) -> Iterator[Case]:
    """Every combination, with kernels that grow."""
    for model, dtype, variant, ratio in product(models, dtypes, variants, ratios):
        yield Case(model, variant, ratio, dtype, expand_kernels=True)


@torch.no_grad()
def randomize_norms(model: nn.Module, seed: int = 1) -> None:
    """Give the norms of a new model statistics as training would: without them, mistakes about norms do not show."""
    generator = torch.Generator().manual_seed(seed)

    def draw(tensor: Tensor, spread: float, centre: float) -> None:
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * spread + centre)

    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.running_mean is not None and module.running_var is not None:
                draw(module.running_mean, 0.1, 0.0)
                module.running_var.copy_(torch.rand(module.running_var.shape, generator=generator) + 0.5)
            if module.affine:
                draw(module.weight, 0.3, 1.0)
                draw(module.bias, 0.1, 0.0)


@torch.no_grad()
def fill_empty_weights(model: nn.Module, seed: int = 2) -> None:
    """Fill weights that begin as nothing: heads of zeros, layer scales of a millionth.

    A layer that is multiplied by nothing shows no mistake. Biases of zero stay: they would only drown the differences.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1 and float(parameter.abs().max()) < 1e-3:
            noise = torch.randn(parameter.shape, generator=generator)
            scale = parameter.numel() == parameter.shape[0]
            parameter.copy_(0.5 + 0.1 * noise if scale else noise * parameter[0].numel() ** -0.5)


@lru_cache(maxsize=1)
def _prepared(name: str, dtype: str, device: str) -> tuple[nn.Module, Tensor]:
    model = zoo.model(name)
    randomize_norms(model)
    fill_empty_weights(model)
    wanted = getattr(torch, dtype)
    return model.to(device, wanted), zoo.example_input(name).to(device, wanted)


@torch.no_grad()
def run_case(case: Case, device: str, max_parameters: int) -> Record:
    """Attack one model and compare what it computes."""
    model, example = _prepared(case.model, case.dtype, device)
    options = AttackOptions(
        ops=(case.variant,), ratio=case.ratio, expand_kernels=case.expand_kernels, max_parameters=max_parameters
    )
    started = time.perf_counter()
    try:
        attacked = attack_with(model, example, options)
    except AttackError as refusal:
        return Record(case, "refused", reason=refusal.message, limit=max_parameters, device=device)
    seconds = time.perf_counter() - started
    error = relative_difference(attacked.model(example), model(example))
    status = "same" if error <= TOLERANCES[case.dtype] else "different"
    return Record(case, status, error, seconds, attacked.log.parameters, device=device)


def relative_difference(got: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest output; infinite when an output is not finite."""
    difference = float((got - expected).abs().max() / expected.abs().max())
    return difference if difference == difference else float("inf")


def run_grid(
    todo: Iterable[Case], path: Path, device: str, max_parameters: int, report: Callable[[str], None]
) -> list[Record]:
    """Run what has no record yet, keeping each record as soon as it is there; returns all records of the file.

    Where growing kernels makes a model too large, the case is run without them as well. What was refused under a lower
    limit is tried again.
    """
    records = {record.case: record for record in load(path)} if path.exists() else {}
    for case in todo:
        wanted = [case]
        while wanted:
            now = wanted.pop()
            if now not in records or (records[now].limit or max_parameters) < max_parameters:
                records[now] = run_case(now, device, max_parameters)
                save(records.values(), path)
                report(line(records[now]))
                gc.collect()
            if records[now].status == "refused" and now.expand_kernels:
                wanted.append(replace(now, expand_kernels=False))
    return list(records.values())


def line(record: Record) -> str:
    """A record in one line."""
    case = record.case
    kernels = "kernels grow" if case.expand_kernels else "kernels stay"
    head = f"{case.model} {case.variant} {case.ratio} {case.dtype} ({kernels}): {record.status}"
    if record.error is None:
        return f"{head}, {record.reason}"
    return f"{head}, {record.error:.1e}, {record.parameters:,} parameters, {record.seconds:.2f} s"


def save(records: Iterable[Record], path: Path) -> None:
    """Write all records to one file."""
    environment = {"canon": __version__, "torch": torch.__version__, "python": platform.python_version()}
    ordered = sorted(records, key=lambda record: record.case)
    document = {"environment": environment, "tolerances": TOLERANCES, "records": [asdict(r) for r in ordered]}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(document, indent=1) + "\n", force=True)


def load(path: Path) -> list[Record]:
    """Read what `save` wrote."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return [Record(**{**record, "case": Case(**record["case"])}) for record in document["records"]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid of attacks; the status is 1 when an attack changed a function."""
    parser = argparse.ArgumentParser(prog="python -m canon_benchmarks attack_grid", description=main.__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--variants", nargs="+", default=VARIANTS)
    parser.add_argument("--ratios", nargs="+", type=float, default=RATIOS)
    parser.add_argument("--dtypes", nargs="+", choices=TOLERANCES, default=tuple(TOLERANCES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="threads that torch may use")
    parser.add_argument("--max-parameters", type=int, default=10**9, help="refuse larger attacked models")
    parser.add_argument("--out", type=Path, default=Path("docs/results/attack_grid.json"))
    parser.add_argument("--merge", nargs="+", type=Path, default=(), help="files whose records are taken over first")
    parser.add_argument("--fresh", action="store_true", help="forget the records of an earlier run")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    torch.backends.cudnn.allow_tf32 = False  # float32 means float32
    torch.backends.cuda.matmul.allow_tf32 = False
    if chosen.fresh:
        chosen.out.unlink(missing_ok=True)
    if chosen.merge:
        known = {r.case: r for path in (chosen.out, *chosen.merge) if path.exists() for r in load(path)}
        save(known.values(), chosen.out)
    todo = cases(chosen.models, chosen.variants, chosen.ratios, chosen.dtypes)
    records = run_grid(todo, chosen.out, chosen.device, chosen.max_parameters, print_line)
    different = [record for record in records if record.status == "different"]
    refused = [record for record in records if record.status == "refused"]
    print_line(f"{len(records)} cases: {len(different)} different, {len(refused)} refused for their size")
    return 1 if different else 0


def print_line(text: str) -> None:
    """Say how far the grid is."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
