"""A suspect judged twice: by the owner's model, and by its layout key alone."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from torch import nn

from canon import LayoutKey, judge
from canon_benchmarks.grid import Record


def judged_both_ways(
    suspect: nn.Module, example: Any, reference: nn.Module, key: LayoutKey, good: Collection[str]
) -> Record:
    """Both answers, with a reason where the network is neither equal nor contained, and whether both are `good`."""
    record: Record = {
        "reference": _judged(suspect, example, reference=reference),
        "key": _judged(suspect, example, layout_key=key),
    }
    return {**record, "good": all(answer["network"] in good for answer in record.values())}


def _judged(suspect: nn.Module, example: Any, **anchor: Any) -> Record:
    started = time.process_time()
    found = judge(suspect, example, **anchor)
    record: Record = {"network": found.answers.network.answer, "function": found.answers.function.answer}
    if record["network"] not in ("equal", "contained"):
        record["reason"] = found.answers.network.reason
    return {**record, "seconds": round(time.process_time() - started, 1)}
