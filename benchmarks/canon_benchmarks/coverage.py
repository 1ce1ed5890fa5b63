"""How much of the public architectures a trace can follow: one record per model, and the table made from them.

`python -m canon_benchmarks coverage`. Models are built without weights, on the meta device where their constructor
allows it, so that the largest cost no more than the smallest.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from canon._files import write_text
from canon.errors import CanonError
from canon.graph import ChannelGraph, trace
from canon.zoo import import_timm, import_torchvision
from canon_benchmarks.patterns import PATTERNS

logger = logging.getLogger(__name__)

FAMILIES: Final = Path(__file__).with_name("timm_families.json")
"""The smallest model of every timm family, by number of parameters."""

_TOO_LARGE: Final = "more than 150 million parameters: too much memory for several copies in float64"
NOT_CHECKED: Final = dict.fromkeys(("convnext_large", "regnet_y_128gf", "vit_h_14", "vit_l_16", "vit_l_32"), _TOO_LARGE)
"""Models that are traced but whose rewrites are not run, with the reason."""


@dataclass(frozen=True)
class Coverage:
    """What a trace of one model found, or why there was none."""

    name: str
    source: str
    """The library that builds the model."""

    front_end: str | None = None
    """What traced the model; None when nothing could."""

    free: int = 0
    """Row producers (weights of convolutions and linear layers) whose rows may all change."""

    total: int = 0
    """Row producers."""

    free_spaces: int = 0
    spaces: int = 0
    depthwise: int = 0
    """Depthwise layers, which ride along and are not counted as producers."""

    pins: tuple[tuple[str, int], ...] = ()
    """First reason of every pinned space, with the number of producers it pins."""

    failure: str | None = None
    seconds: float = 0.0
    rigid: int = 0
    """Producers among the free whose number of channels must stay: they change places and scales only."""


def count(graph: ChannelGraph) -> dict[str, Any]:
    """The numbers of a graph."""
    pinned: dict[str, str] = {}
    rigid: set[str] = set()
    for linear in graph.maps:
        for segment in linear.rows:
            pins = graph.spaces[segment.space].pins
            if pins:
                pinned.setdefault(linear.weight, pins[0].reason)
            elif graph.spaces[segment.space].rigid is not None:
                rigid.add(linear.weight)
    weights = {linear.weight for linear in graph.maps}
    kernels = {s.params["weight"] for space in graph.spaces for s in space.stages if s.kind == "depthwise"}
    return {
        "front_end": graph.method,
        "free": len(weights) - len(pinned),
        "total": len(weights),
        "rigid": len(rigid - set(pinned)),
        "free_spaces": len(graph.free) + len(graph.rigid),
        "spaces": len(graph.spaces),
        "depthwise": len(kernels),
        "pins": tuple(Counter(pinned.values()).most_common()),
    }


def build(name: str, source: str) -> tuple[nn.Module, int]:
    """A model without weights, and the height and width of its images."""
    if source == "torchvision":
        options: dict[str, Any] = {}
        if name in ("googlenet", "inception_v3"):
            options = {"init_weights": False, "aux_logits": False}
        # A regnet reads its own tensors while it is built.
        with torch.device("cpu" if name.startswith("regnet") else "meta"):
            model = import_torchvision().models.get_model(name, weights=None, **options)
        return model.eval(), 299 if name == "inception_v3" else 224
    if source == "patterns":
        return PATTERNS[name]().eval(), 64
    timm = import_timm()
    config = timm.get_pretrained_cfg(name)
    size = int(config.input_size[-1]) if config is not None else 224
    try:
        with torch.device("meta"):
            model = timm.create_model(name, pretrained=False)
    except (RuntimeError, NotImplementedError):
        model = timm.create_model(name, pretrained=False)
    return model.eval(), size


def measure(name: str, source: str) -> Coverage:
    """Trace one model by name."""
    started = time.perf_counter()
    try:
        model, size = build(name, source)
        device = next(model.parameters()).device
        started = time.perf_counter()
        numbers = count(trace(model, torch.empty(1, 3, size, size, device=device)))
    except CanonError as error:
        return Coverage(name, source, failure=" ".join(error.message.split())[:300])
    except Exception as error:  # a fault of ours or of the library that builds the model: both belong in the table
        message = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Coverage(name, source, failure=f"could not be built or traced: {message[:200]}")
    return Coverage(name, source, seconds=round(time.perf_counter() - started, 2), **numbers)


def torchvision_names() -> tuple[str, ...]:
    """Every classification model of torchvision."""
    models = import_torchvision().models
    return tuple(sorted(models.list_models(module=models)))


def timm_names() -> tuple[str, ...]:
    """The smallest model of every timm family."""
    families: dict[str, str] = json.loads(FAMILIES.read_text(encoding="utf-8"))
    return tuple(sorted(set(families.values())))


def render(records: Iterable[Coverage]) -> str:
    """The table for people, from the records alone."""
    records = list(records)
    lines = [
        "# Coverage",
        "",
        "Made by `python -m canon_benchmarks coverage` from `results/coverage.json`; do not edit.",
        "",
        "A *producer* is a convolution or linear layer; it is *free* when every channel it makes may be permuted,",
        "scaled where its taps allow it, expanded and merged. In brackets are those of them whose number of channels",
        "is written into the forward pass and must stay: they are permuted and scaled, and no more. Depthwise layers",
        "ride along and are counted apart. Pins come with the number of producers they hold; a classifier's own",
        "outputs are always pinned (model output).",
    ]
    titles = {"torchvision": "torchvision", "timm": "timm: the smallest model of each family"}
    titles["patterns"] = (
        "Written by hand: ResNets for CIFAR with shortcuts filled up with zeros, and a detector like YOLO's"
    )
    for source, title in titles.items():
        chosen = [r for r in records if r.source == source]
        traced = [r for r in chosen if r.failure is None]
        lines += ["", f"## {title}", "", f"{len(traced)} of {len(chosen)} models trace.", ""]
        columns = ("Model", "Free / producers", "Free / spaces", "Depthwise", "Front end", "Pins")
        lines += [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for r in traced:
            pins = "; ".join(f"{reason} ×{number}" for reason, number in r.pins).replace("|", "\\|")
            kept = f" ({r.rigid})" if r.rigid else ""
            numbers = f"{r.free}{kept} / {r.total} | {r.free_spaces} / {r.spaces} | {r.depthwise}"
            lines.append(f"| {r.name} | {numbers} | {r.front_end} | {pins} |")
        failed = [r for r in chosen if r.failure is not None]
        if failed:
            lines += ["", "Not traced:", ""]
            lines += [f"- {r.name}: {r.failure}" for r in failed]
    lines += [
        "",
        "## Rewrites that are run",
        "",
        "For every torchvision model and those written by hand a random permutation, an allowed scaling, planted",
        "copies and their merge are applied to all free spaces at once, and the outputs compared in float64 (relative",
        "difference at most 1e-10), except for:",
        "",
    ]
    lines += [f"- {name}: {reason}" for name, reason in sorted(NOT_CHECKED.items())]
    return "\n".join(lines) + "\n"


def load(path: Path) -> tuple[Coverage, ...]:
    """Records as they were saved."""
    saved = json.loads(path.read_text(encoding="utf-8"))
    return tuple(Coverage(**{**r, "pins": tuple((p[0], p[1]) for p in r["pins"])}) for r in saved["records"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every model and write the records and the table."""
    parser = argparse.ArgumentParser(prog="python -m canon_benchmarks coverage", description=main.__doc__)
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder to write to")
    parser.add_argument("--render", action="store_true", help="only make the table anew, from saved records")
    parser.add_argument("--only", nargs="+", metavar="MODEL", help="measure these anew, and keep all other records")
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    target = chosen.docs / "results" / "coverage.json"
    if not chosen.render:
        target.parent.mkdir(parents=True, exist_ok=True)
        records = []
        known = {(r.name, r.source): asdict(r) for r in load(target)} if chosen.only else {}
        sources = {"torchvision": torchvision_names(), "timm": timm_names(), "patterns": tuple(PATTERNS)}
        for source, names in sources.items():
            for name in names:
                if (name, source) in known and name not in chosen.only:
                    records.append(known[name, source])
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    record = measure(name, source)
                outcome = record.failure or f"{record.free}/{record.total} free, {record.front_end}, {record.seconds} s"
                logger.info("%s: %s", name, outcome)
                records.append(asdict(record))
        versions = {"torch": torch.__version__, "torchvision": import_torchvision().__version__}
        versions["timm"] = import_timm().__version__
        write_text(target, json.dumps({"versions": versions, "records": records}, indent=1) + "\n", force=True)
    write_text(chosen.docs / "coverage.md", render(load(target)), force=True)
    return 0
