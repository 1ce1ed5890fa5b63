"""What takes more than one part of Canon: recovery by name, certificates on canonical forms, the way to a verdict."""

from canon.api.certifying import certify
from canon.api.checking import check_evidence
from canon.api.documents import RECOVERY_FORMAT, recovery_document
from canon.api.examining import Finding, examine_evidence, load_document, read_evidence, signer_of
from canon.api.judging import Judgement, JudgeOptions, judge
from canon.api.recovering import recover
from canon.api.rerunning import Reproduction, compare_documents, rerun

__all__ = [
    "Finding", "Judgement", "JudgeOptions", "RECOVERY_FORMAT", "Reproduction", "certify", "check_evidence",
    "compare_documents", "examine_evidence", "judge", "load_document", "read_evidence", "recover", "recovery_document",
    "rerun", "signer_of",
]  # fmt: skip
