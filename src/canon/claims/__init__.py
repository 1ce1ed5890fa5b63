"""Claims: what an owner fixed before a suspect existed, signed and time-stamped, and opened when it matters."""

from __future__ import annotations

from canon.claims.case import check_case, write_case
from canon.claims.claim import Claim, Statement
from canon.claims.committing import Committed, attach, commit
from canon.claims.deriving import Derivation, load_secret, make_secret, message_of, new_secret, rederive, save_secret
from canon.claims.envelope import open_sealed, seal
from canon.claims.examining import examine, inspect
from canon.claims.keys import load_key, new_key
from canon.claims.opening import Opening
from canon.claims.presented import Presented, Rival, Used, parse_date
from canon.claims.signed_models import SignedModel, check_signed_model, find_signature, provenance_of, read_signature
from canon.claims.timestamps import Stamp, check_stamp, verify_all
from canon.claims.tokens import fetch, query
from canon.claims.trust import Trust

__all__ = [
    "commit", "attach", "Committed", "Claim", "Statement", "Opening", "load_key", "new_key",
    "examine", "inspect", "Presented", "Rival", "Used", "parse_date", "Trust", "Stamp",
    "query", "fetch", "check_stamp", "verify_all",
    "new_secret", "make_secret", "save_secret", "load_secret", "message_of", "rederive", "Derivation",
    "seal", "open_sealed", "write_case", "check_case",
    "SignedModel", "find_signature", "read_signature", "provenance_of", "check_signed_model",
]  # fmt: skip
