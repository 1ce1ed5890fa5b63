"""Find the redundancy that function-preserving obfuscation must leave, and take it out."""

from canon.recovery.pipeline import RecoveryResult, recover
from canon.recovery.probe import ProbeOptions
from canon.recovery.report import Decision, RecoveryReport, SpaceReport
from canon.recovery.tolerance import Tolerance

__all__ = [
    "Decision", "ProbeOptions", "RecoveryReport", "RecoveryResult", "SpaceReport", "Tolerance", "recover",
]  # fmt: skip
