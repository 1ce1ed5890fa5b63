"""A suspect judged twice: by the owner's model, and by its layout key alone."""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from torch import nn

from canon import LayoutKey, judge, register, zoo
from canon.bench.measures.sheet import Sheet
from canon_benchmarks.subjects import subject, with_statistics


@lru_cache(maxsize=1)
def owned(name: str) -> tuple[nn.Module, LayoutKey]:
    """An owner's network whose norms know what they are given, and its layout key."""
    example = zoo.example_input(name)
    reference = with_statistics(subject(name), example)
    return reference, register(reference, example, seed=0)


def judge_both_ways(
    sheet: Sheet, suspect: nn.Module, example: Any, reference: nn.Module, key: LayoutKey, good: Collection[str]
) -> None:
    """Note both answers, with a reason where the network is neither equal nor contained; whether both are `good`."""
    found = {
        "reference": _judged(suspect, example, reference=reference),
        "key": _judged(suspect, example, layout_key=key),
    }
    sheet.note(**found, good=all(answer["network"] in good for answer in found.values()))


def _judged(suspect: nn.Module, example: Any, **anchor: Any) -> dict[str, Any]:
    started = time.process_time()
    found = judge(suspect, example, **anchor)
    record: dict[str, Any] = {"network": found.answers.network.answer, "function": found.answers.function.answer}
    if record["network"] not in ("equal", "contained"):
        record["reason"] = found.answers.network.reason
    return {**record, "seconds": round(time.process_time() - started, 1)}
