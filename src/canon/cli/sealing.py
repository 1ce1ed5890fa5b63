"""Signed evidence, and the folder that a case is sealed in."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from canon.cli.claiming import Claims

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner


@dataclass(frozen=True, eq=False)
class Sealing:
    """Who signs, and where the case goes."""

    key: CryptoSigner
    folder: Path | None
    claims: Claims

    @staticmethod
    def of(sign: Path | None, case: str | None, claims: Claims) -> Sealing | None:
        """What the user asks for; whatever is in the way is said before any work."""
        if sign is None:
            return None
        from canon.claims import load_key

        folder = None if case is None else Path(case)
        if folder is not None and (folder.exists() or not folder.parent.is_dir()):
            what = "exists already" if folder.exists() else "cannot be made: there is no folder to make it in"
            raise typer.BadParameter(f"the case folder '{folder}' {what}")
        return Sealing(load_key(sign), folder, claims)

    def seal(self, evidence: dict[str, Any]) -> bytes:
        """The evidence, signed."""
        from canon.claims import seal

        return seal(evidence, self.key)

    def write_folder(self, sealed: bytes, report: Path | None, command: str) -> None:
        """The case: evidence, report, command, and the claims and roots that were used."""
        if self.folder is None:
            return
        from canon.claims import write_case

        roots = {f"root_{index}.pem": path.read_bytes() for index, path in enumerate(self.claims.root or (), 1)}
        named = {"owner.claim": self.claims.claim, "owner.opening": self.claims.opening}
        for index, path in enumerate(self.claims.rival or (), 1):
            named[f"rival_{index}.claim"] = path
        for index, path in enumerate(self.claims.rival_opening or (), 1):
            named[f"rival_{index}.opening"] = path
        write_case(
            self.folder,
            evidence=sealed,
            command=shlex.split(command),
            key=self.key,
            report=None if report is None else report.read_bytes(),
            claims={name: path.read_bytes() for name, path in named.items() if path is not None},
            attachments=roots,
        )
