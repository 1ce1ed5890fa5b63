"""Records as suites would give them, made up, for pages and tables to be tested with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from canon.bench.cases import Case, Recovery
from canon.bench.records import Record
from canon_benchmarks.cases import Clean

ENVIRONMENT = {"canon": "0", "torch": "2", "python": "3", "machine": "a lathe, 2 cores", "device": "cpu"}
FIGURES: Mapping[str, Any] = {
    "good": True, "clean_similarity": 1.0, "attacked_similarity": 0.5312, "recovered_similarity": 0.4688,
    "aligned_similarity": 1.0, "tier1_passed": True, "tier1_max_rel_err": 2e-7, "tier1_all_max_rel_err": 3e-7,
    "tier2_passed": False, "p_value": 1e-30, "verdict": "proved, tier 1", "key_passed": True, "key_bytes": 20000,
    "key_all_max_rel_err": 4e-7, "key_verdict": "proved, tier 1", "wrong_key_verdict": "refuted",
    "wrong_owner_verdict": "refuted", "attacked_delta_accuracy": 0.0, "recovered_delta_accuracy": 0.0,
    "recovered_gap": 1e-6, "recovered_agreement": 1.0, "parameters_attacked": 10**7,
}  # fmt: skip


def recovery(attack: str, scheme: str = "uchida17") -> Recovery:
    return Recovery(dataset="mnist", model="resnet18", scheme=scheme, attack=attack, ratio=0.2)


def done(case: Case, **changes: Any) -> Record:
    return Record(case, "done", {**FIGURES, **changes}, {"recover": 1.5, "cpu": 2.0}, ENVIRONMENT)


def records() -> list[Record]:
    """A good case, a bad one, one refused and one failed, and a clean one."""
    clean = {
        "good": True, "untouched": True, "parameter_false_positives": 0.0, "layers": 21, "layers_changed": 0,
        "delta_similarity": 0.0, "recovered_delta_accuracy": 0.0, "tier1_passed": True, "tier1_layers": 2,
        "tier1_layers_passed": 2,
    }  # fmt: skip
    return [
        done(recovery("nso_zero")),
        done(recovery("nso_clique"), good=False, tier1_passed=False, tier1_max_rel_err=0.25),
        Record(recovery("nso_split"), "refused", error="too many parameters", environment=ENVIRONMENT),
        Record(recovery("mix-opseq"), "failed", error="ValueError: <oh>", environment=ENVIRONMENT),
        Record(Clean(dataset="mnist", model="resnet18", scheme="riga21"), "done", clean, {}, ENVIRONMENT),
    ]
