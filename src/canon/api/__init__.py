"""What takes more than one part of Canon: recovery by name, certificates on canonical forms, the way to a verdict."""

from canon.api.certifying import certify as certify
from canon.api.checking import check_evidence as check_evidence
from canon.api.checking import read_evidence as read_evidence
from canon.api.documents import RECOVERY_FORMAT as RECOVERY_FORMAT
from canon.api.documents import recovery_document as recovery_document
from canon.api.examining import Finding as Finding
from canon.api.examining import examine_evidence as examine_evidence
from canon.api.examining import load_document as load_document
from canon.api.examining import signer_of as signer_of
from canon.api.judging import Judgement as Judgement
from canon.api.judging import JudgeOptions as JudgeOptions
from canon.api.judging import judge as judge
from canon.api.recovering import recover as recover
from canon.api.rerunning import Reproduction as Reproduction
from canon.api.rerunning import compare_documents as compare_documents
from canon.api.rerunning import rerun as rerun

__all__ = [
    "Finding", "Judgement", "JudgeOptions", "RECOVERY_FORMAT", "Reproduction", "certify", "check_evidence",
    "compare_documents", "examine_evidence", "judge", "load_document", "read_evidence", "recover", "recovery_document",
    "rerun", "signer_of",
]  # fmt: skip
