"""A sealed case: one folder that holds what a verification rests on, with a list of digests and a signature on it."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from canon.claims.canonical import parse
from canon.claims.envelope import open_sealed, seal
from canon.claims.keys import signer_pem
from canon.claims.timestamps import check_stamp
from canon.claims.tokens import fetch
from canon.claims.trust import Trust
from canon.errors import ClaimError

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner

SUMS: Final = "SHA256SUMS"
SEAL: Final = "SHA256SUMS.dsse"
STAMP: Final = ".tsr"
KEY: Final = "signer.pem"
EVIDENCE: Final = "evidence.json"


def write_case(
    folder: str | Path,
    *,
    evidence: bytes,
    command: Sequence[str],
    key: CryptoSigner,
    report: bytes | None = None,
    claims: Mapping[str, bytes] | None = None,
    attachments: Mapping[str, bytes] | None = None,
    timestamps: Sequence[str] = (),
) -> Path:
    """Write a sealed case folder, whole or not at all.

    Args:
        folder: The folder to make; it must not exist.
        evidence: The evidence document, as written.
        command: The command that was run, word by word.
        key: Whose signature seals the case.
        report: The page for people.
        claims: Claims and the openings that were used, by file name: `Claim.encode()`, `Opening.encode()`.
        attachments: Anything else, such as the roots that time-stamps were checked against.
        timestamps: Addresses of authorities that stamp the seal.
    """
    target = Path(folder)
    if target.exists():
        raise ClaimError("the case folder exists already", where=str(target), hint="Name another")
    if not target.parent.is_dir():
        raise ClaimError("the folder of the case does not exist", where=str(target.parent), hint="Create it first")
    files = {EVIDENCE: evidence, "command.txt": (shlex.join(command) + "\n").encode()}
    files |= {} if report is None else {"report.html": report}
    files |= {KEY: signer_pem(key).encode()}
    for name, data in {**(claims or {}), **(attachments or {})}.items():
        if name in (*files, SUMS) or name.startswith((SEAL, ".")) or Path(name).name != name:
            raise ClaimError(f"'{name:.80}' cannot stand in a case: it is a path, hidden, or taken")
        files[name] = data
    sums = _sums(files)
    sealed = seal(sums.decode(), key)
    stamps = {f"{SEAL}.{index + 1}{STAMP}": fetch(url, sealed) for index, url in enumerate(timestamps)}
    with tempfile.TemporaryDirectory(prefix=".canon-", dir=target.parent) as temporary:
        made = Path(temporary) / target.name
        made.mkdir()
        for name, data in {**files, SUMS: sums, SEAL: sealed, **stamps}.items():
            (made / name).write_bytes(data)
        os.rename(made, target)
    return target


def check_case(folder: str | Path, key: str | None = None, trust: Trust | None = None) -> dict[str, Any]:
    """Check a sealed case: every file is listed and as it was, and the signature holds.

    Args:
        folder: The case.
        key: PEM text of the public key that must have sealed it; None: the one in the folder, which shows only that
            nothing was changed since.
        trust: Whose time-stamps of the seal count.

    Raises:
        ClaimError: A file was changed, added or taken away, or the seal does not hold.
    """
    place = Path(folder)
    try:
        found = {path.name: path.read_bytes() if path.is_file() else b"" for path in place.iterdir()}
        sums, sealed = found.pop(SUMS), found.pop(SEAL)
    except (OSError, KeyError) as error:
        raise ClaimError("the folder is no sealed case", where=str(place)) from error
    document, signer = open_sealed(sealed, key)
    if not isinstance(document, str) or document != sums.decode("utf-8", "replace"):
        raise ClaimError(f"{SUMS} was changed after the case was sealed", where=str(place))
    stamps = {name: found.pop(name) for name in sorted(found) if name.startswith(f"{SEAL}.") and name.endswith(STAMP)}
    listed = {line[66:]: line[:64] for line in document.splitlines()}
    for name in sorted(listed.keys() | found.keys()):
        if name not in found:
            raise ClaimError(f"the file '{name:.80}' was taken away after the case was sealed", where=str(place))
        if name not in listed:
            raise ClaimError(f"the file '{name:.80}' was added after the case was sealed", where=str(place))
        if sha256(found[name]).hexdigest() != listed[name]:
            raise ClaimError(f"the file '{name:.80}' was changed after the case was sealed", where=str(place))
    if found.get(KEY) != signer.encode():
        raise ClaimError("the case names another key than the one that sealed it", where=str(place))
    if EVIDENCE not in found:
        raise ClaimError("the case holds no evidence", where=str(place))
    return {
        "signer": signer,
        "files": listed,
        "evidence": parse(found[EVIDENCE], "evidence"),
        "timestamps": [_stamp(sealed, token, trust or Trust()) for token in stamps.values()],
    }


def _stamp(sealed: bytes, token: bytes, trust: Trust) -> dict[str, Any]:
    try:
        return check_stamp(sealed, token, trust).shown()
    except ClaimError as error:
        return {"wrong": error.message}


def _sums(files: Mapping[str, bytes]) -> bytes:
    return "".join(f"{sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files)).encode()
