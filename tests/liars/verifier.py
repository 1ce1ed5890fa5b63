"""How far a key gets, and verifiers that lack a check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from scipy.stats import binom
from torch import nn

from canon import watermarks
from canon.errors import CanonError, KeyFileError
from canon.watermarks import Dataset, Extraction, Key, Reader, Reading, Scheme, interface, key, lottery, qr
from canon.watermarks.signature import SignedStatement
from tests.liars.tables import Forger, Stop

ALPHA = 1e-6


def luck(found: Extraction) -> float:
    """The plain binomial p-value."""
    return min(1.0, max(1, found.alternatives) * float(binom.sf(found.matched - 1, found.total, 0.5)))


def outcome(forger: Forger, model: nn.Module, dataset: Dataset, with_controls: bool = True) -> Stop:
    """What stops a forger's key when it is used on a model."""
    try:
        forged = forger(model, dataset)
    except KeyFileError:
        return "construction"
    scheme = watermarks.get(forger.scheme)
    try:
        found = scheme.extract(model, forged, dataset.train_images[:1])
    except CanonError:
        return "model"
    if found.shape_mismatch:
        return "model"
    if found.unread:
        return "unread"
    controls = scheme.controls(model, forged, seed=1, example=dataset.train_images[:1])
    if controls.void and with_controls:
        return "controls"
    if not with_controls:
        return "nothing" if reads(found) else "luck"
    p_value = controls.p_value(found.matched, found.alternatives)
    weak = p_value > (ALPHA if scheme.carries_alone else 0.01)
    return "luck" if weak else "nothing"


def without_schema(patch: pytest.MonkeyPatch) -> None:
    """Keys are taken as they come."""
    patch.setattr(key, "check_key", lambda _: None)
    patch.setattr(interface, "check_key", lambda _: None)


def without_structure(patch: pytest.MonkeyPatch) -> None:
    """The key's word for what stands behind a layer, and for how wide it is."""

    def confirmed(owner: Key, _: Mapping[str, str]) -> dict[str, str]:
        said = owner.settings["norms"]
        assert isinstance(said, Mapping)
        return {layer: said[layer] for layer in owner.shapes if layer in said}

    patch.setattr(Reader, "_confirmed", staticmethod(confirmed))
    patch.setattr("canon.watermarks.reading.ROOM", 1 << 30)


def without_shapes(patch: pytest.MonkeyPatch) -> None:
    """A layer of another shape is read as far as it goes."""
    fit = Reader._fit

    def lenient(self: Reader, name: str, value: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        fitted = fit(self, name, value, shape)
        self._mismatches.clear()
        return fitted

    patch.setattr(Reader, "_fit", lenient)


def without_unread(patch: pytest.MonkeyPatch) -> None:
    """Zero and NaN read as 0, and bits that nobody signed count."""
    judged = Scheme._judged

    def lenient(self: Scheme, owner: Key, reader: Reader, reading: Reading) -> Any:
        scores = torch.where(reading.scores > 0, 1.0, -1.0)
        return judged(self, owner, reader, Reading(scores, 1.0, None, reading.expected, {}, reading.alternatives))

    patch.setattr(Scheme, "_judged", lenient)


def without_signature(patch: pytest.MonkeyPatch) -> None:
    """Bits count whether anybody signed them or not."""
    patch.setattr(SignedStatement, "valid", True)


def without_balance(patch: pytest.MonkeyPatch) -> None:
    """A code may take any mask, and takes the darkest."""
    drawn = qr._drawn

    def encode(data: bytes) -> qr.Modules:
        stream = qr._interleaved(qr._padded(data))
        bits = [byte >> shift & 1 for byte in stream for shift in range(7, -1, -1)]
        bits += [0] * (len(qr._data_cells()) - len(bits))
        return max((drawn(bits, mask) for mask in range(8)), key=lambda code: int(code.sum()))

    patch.setattr(qr, "encode", encode)
    patch.setattr(lottery, "_expected", lottery._expected.__wrapped__)


def bare(patch: pytest.MonkeyPatch) -> None:
    """No check at all."""
    for remove in (without_schema, without_structure, without_unread, without_signature, without_balance):
        remove(patch)


def reads(found: Extraction) -> bool:
    """Whether a verifier that looks at bits alone would be impressed."""
    return found.matched == found.total or luck(found) <= ALPHA
