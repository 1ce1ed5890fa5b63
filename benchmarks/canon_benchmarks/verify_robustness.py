"""`python -m canon_benchmarks verify_robustness`: what verification says about changed copies and about strangers.

An owner's model is trained with a mark. Copies of it are fine-tuned, quantised or pruned, then attacked; strangers
are trained on the same data from other starts. Each is judged by way of the reference and by way of the layout key,
with the watermark key. The records say how far the residuals spread, at which tolerance Tier 1 would pass, and what
the verdict is.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from canon import watermarks, zoo
from canon._environment import environment
from canon._files import write_text
from canon.api import Judgement, judge
from canon.attacks import attack
from canon.bench.measures.recovery import STRONG
from canon.verify import register
from canon.watermarks import Dataset, TrainOptions
from canon_benchmarks.grid import Record

OUT: Final = Path("docs/results/verify_robustness.json")
BATCH: Final = 64

Change = Callable[[nn.Module], nn.Module]


def tuned(dataset: Dataset, rate: float, steps: int, seed: int) -> Change:
    """Train on, with stochastic gradient descent."""

    def change(model: nn.Module) -> nn.Module:
        generator = torch.Generator().manual_seed(seed)
        result = copy.deepcopy(model).train()
        device = next(result.parameters()).device
        optimizer = torch.optim.SGD(result.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)
        for _ in range(steps):
            chosen = torch.randint(len(dataset.train_images), (BATCH,), generator=generator)
            optimizer.zero_grad()
            images = dataset.images_at(dataset.train_images[chosen], device)
            F.cross_entropy(result(images), dataset.train_labels[chosen].to(device)).backward()
            optimizer.step()
        return result.eval()

    return change


def rounded(dtype: torch.dtype) -> Change:
    """Through a shorter floating-point format."""
    return lambda model: copy.deepcopy(model).to(dtype).float()


def quantised(bits: int) -> Change:
    """Weights to a symmetric grid, one step size per tensor."""

    def to_grid(weight: Tensor) -> Tensor:
        step = weight.abs().max() / (2 ** (bits - 1) - 1)
        grid: Tensor = torch.round(weight / step) * step
        return grid

    return lambda model: _weights(model, to_grid)


def pruned(share: float) -> Change:
    """The smallest weights of every layer to zero."""

    def smallest(weight: Tensor) -> Tensor:
        limit = weight.abs().flatten().kthvalue(max(1, int(share * weight.numel()))).values
        return torch.where(weight.abs() <= limit, 0.0, weight)

    return lambda model: _weights(model, smallest)


def _weights(model: nn.Module, function: Callable[[Tensor], Tensor]) -> nn.Module:
    result = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in result.parameters():
            if parameter.ndim > 1:
                parameter.copy_(function(parameter))
    return result


def changes(dataset: Dataset, steps: int) -> dict[str, Change]:
    """Every change by name."""
    found: dict[str, Change] = {"none": lambda model: model}
    for rate in (1e-4, 1e-3, 1e-2):
        found[f"fine-tuned, rate {rate:g}, {steps} steps"] = tuned(dataset, rate, steps, seed=1)
    found |= {"float16": rounded(torch.float16), "bfloat16": rounded(torch.bfloat16)}
    found |= {f"{bits} bits": quantised(bits) for bits in (8, 6, 4)}
    found |= {f"pruned by {share:.0%}": pruned(share) for share in (0.1, 0.3)}
    return found


def run(name: str, *, device: str, epochs: int, strangers: int, steps: int) -> Iterator[Record]:
    """Train the owner's model, then judge every copy and every stranger."""
    dataset = zoo.dataset("digits")
    if zoo.input_size(name) != zoo.DEFAULT_SIZE:
        dataset = dataset.resized(zoo.input_size(name))
    scheme = watermarks.get("uchida17")
    options = TrainOptions(device=device, epochs=epochs, cooldown=1, accuracy_goal=0.9)
    owner = scheme.embed(zoo.model(name), dataset, seed=0, options=options)
    example = zoo.example_input(name)
    layout = register(owner.model, example)
    for kind, change in changes(dataset, steps).items():
        copied = change(owner.model)
        hidden = attack(copied, example, "mix-opseq", ratio=0.2, seed=2).model
        record = {"kind": kind, "accuracy": _accuracy(copied, dataset)}
        for way, anchor in (("reference", {"reference": owner.model}), ("key", {"layout_key": layout})):
            found = judge(hidden, example, **anchor, watermark_key=owner.key)
            record |= {f"{way}_{key}": value for key, value in _outcome(found).items()}
        yield record
    train = tuned(dataset, 0.02, steps, seed=3)
    for seed in range(strangers):
        other = train(zoo.model(name, seed=1000 + seed).to(device)).cpu()
        record = {"kind": "stranger", "seed": seed, "accuracy": _accuracy(other, dataset)}
        for way, anchor in (("reference", {"reference": owner.model}), ("key", {"layout_key": layout})):
            found = judge(other, example, **anchor, watermark_key=owner.key)
            record |= {f"{way}_{key}": value for key, value in _outcome(found).items()}
        yield record


def _outcome(found: Judgement) -> Record:
    alignment, certificate, mark = found.alignment, found.compared.certificate, found.mark
    record: Record = {"verdict": found.verdict.kind, "network": found.answers.network.answer}
    if alignment is not None:
        record |= {"distinct": round(alignment.distinct, 4), "worst": _short(alignment.worst)}
    if mark is not None:
        record |= {"matched": mark.matched, "total": mark.total, "p_value": _short(mark.p_value)}
    if certificate is not None and certificate.residuals:
        quantiles = certificate.quantiles((0.5, 0.95, 1.0))
        record |= {"median": _short(quantiles[0.5]), "q95": _short(quantiles[0.95]), "max": _short(quantiles[1.0])}
        passing = [row.tolerance for row in certificate.sweep() if row.passed]
        record["passes_at"] = passing[0] if passing else None
    return record


@torch.no_grad()
def _accuracy(model: nn.Module, dataset: Dataset) -> float:
    images = dataset.images_at(dataset.test_images, "cpu")
    return round(float((model.cpu()(images).argmax(1) == dataset.test_labels).float().mean()), 4)


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def page(document: dict[str, Any]) -> str:
    """The measurements as Markdown."""
    records = document["records"]
    copies = [r for r in records if r["kind"] != "stranger"]
    others = [r for r in records if r["kind"] == "stranger"]
    lines = [
        f"# Changed copies and strangers: {document['model']} on digits",
        "",
        "Made by `python -m canon_benchmarks verify_robustness`. Every copy was attacked with mix-opseq, ρ = "
        "0.2, permuted "
        "and scaled.",
        "",
        "| copy | accuracy | residual: median | 95% | max | passes at | bits | verdict, reference | verdict, key |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in copies:
        cells = [r.get(f"reference_{name}") for name in ("median", "q95", "max", "passes_at")]
        shown = " | ".join("none" if cell is None else f"{cell:g}" for cell in cells)
        verdicts = " | ".join(f"{r[f'{way}_verdict']}, {r[f'{way}_network']}" for way in ("reference", "key"))
        bits = f"{r['reference_matched']}/{r['reference_total']}"
        lines.append(f"| {r['kind']} | {r['accuracy']:.3f} | {shown} | {bits} | {verdicts} |")
    if others:
        refuted = sum(r["reference_verdict"] == r["key_verdict"] == "refuted" for r in others)
        closest = max(max(r.get("reference_distinct", 0.0), r.get("key_distinct", 0.0)) for r in others)
        believed = sum(any(r[f"{way}_verdict"] in STRONG for way in ("reference", "key")) for r in others)
        lines += [
            "",
            f"{len(others)} models trained on the same data from other starts (accuracy "
            f"{min(r['accuracy'] for r in others):.3f} to {max(r['accuracy'] for r in others):.3f}): {refuted} refuted "
            f"both ways, {believed} believed; at most "
            f"{closest:.1%} of their channels have a distinct match.",
        ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write; the status is 1 when a stranger is believed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet18", help="architecture of the zoo")
    parser.add_argument("--device", default="cpu", help="where to train")
    parser.add_argument("--epochs", type=int, default=20, help="most epochs for the owner's model")
    parser.add_argument("--steps", type=int, default=60, help="steps of fine-tuning, and of training a stranger")
    parser.add_argument("--strangers", type=int, default=20, help="models trained from other starts")
    parser.add_argument("--out", type=Path, default=OUT, help="the JSON file to write")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    records: list[Record] = []
    document = {"model": chosen.model, "environment": environment(), "records": records}
    for record in run(
        chosen.model, device=chosen.device, epochs=chosen.epochs, strangers=chosen.strangers, steps=chosen.steps
    ):
        records.append(record)
        sys.stderr.write(json.dumps(record) + "\n")
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        write_text(chosen.out, json.dumps(document, indent=1) + "\n", force=True)
        write_text(chosen.out.with_suffix(".md"), page(document), force=True)
    strangers = [r for r in records if r["kind"] == "stranger"]
    return 1 if any(r[f"{way}_verdict"] in STRONG for r in strangers for way in ("reference", "key")) else 0
