"""Find the redundancy that function-preserving obfuscation must leave, and take it out."""

from canon.recovery.pipeline import RecoveryResult as RecoveryResult
from canon.recovery.pipeline import recover as recover
from canon.recovery.probe import ProbeOptions as ProbeOptions
from canon.recovery.report import Decision as Decision
from canon.recovery.report import RecoveryReport as RecoveryReport
from canon.recovery.report import SpaceReport as SpaceReport
from canon.recovery.tolerance import Tolerance as Tolerance

__all__ = [
    "Decision", "ProbeOptions", "RecoveryReport", "RecoveryResult", "SpaceReport", "Tolerance", "recover",
]  # fmt: skip
