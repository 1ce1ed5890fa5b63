"""What takes more than one part of Canon: recovery by name, certificates on canonical forms, the way to a verdict."""

from canon.api.certifying import certify as certify
from canon.api.checking import check_evidence as check_evidence
from canon.api.checking import read_evidence as read_evidence
from canon.api.documents import RECOVERY_FORMAT as RECOVERY_FORMAT
from canon.api.documents import recovery_document as recovery_document
from canon.api.judging import Judgement as Judgement
from canon.api.judging import JudgeOptions as JudgeOptions
from canon.api.judging import judge as judge
from canon.api.recovering import recover as recover

__all__ = [
    "Judgement", "JudgeOptions", "RECOVERY_FORMAT", "certify", "check_evidence", "judge",
    "read_evidence", "recover", "recovery_document",
]  # fmt: skip
