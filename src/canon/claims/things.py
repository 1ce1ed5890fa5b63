"""What can be committed to, each as a small JSON value that only its owner could have made then.

Every kind has a digest of what it means, which does not depend on how a file is written, and where it came from a file
also the digest of that file, which anybody can work out with `sha256sum`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from hashlib import sha256
from typing import Any, Literal

import torch
from torch import Tensor, nn

from canon.claims.canonical import canonical
from canon.errors import ClaimError
from canon.graph.tensors import tensor_names
from canon.verify.digest import model_digest
from canon.verify.key import LayoutKey
from canon.watermarks.key import Key

Role = Literal["canon", "options", "reference", "layout_key", "watermark_key", "none"]
Table = list[list[Any]]
"""One row per tensor, sorted by name: name, type, shape, SHA-256 of the numbers as they lie in memory."""

WORDS: dict[str, str] = {
    "canon": "Canon's version",
    "options": "the options",
    "reference": "the reference",
    "layout_key": "the layout key",
    "watermark_key": "the watermark key",
}
"""What roles are called in messages."""


@dataclass(frozen=True)
class Thing:
    """One thing that a claim commits to."""

    role: Role
    content: Any
    """Plain JSON; what exactly depends on the role."""


def tensor_table(tensors: Mapping[str, Tensor]) -> Table:
    """What is known of every tensor without showing it."""
    return [[name, *_tensor(tensors[name])] for name in sorted(tensors)]


def reference_thing(model: nn.Module, file: str | None = None) -> tuple[Thing, Table]:
    """A model by its tensors, and the table that names each of them."""
    table = tensor_table(tensor_names(model)[0])
    digest = sha256(canonical(table)).hexdigest()
    return Thing("reference", {"model": model_digest(model), "tensors": digest, "file": file}), table


def signed_reference_thing(digest: str) -> Thing:
    """A model by the digest under which OpenSSF Model Signing signed its files."""
    return Thing("reference", {"model_signing": digest})


def layout_key_thing(key: LayoutKey, file: str | None = None) -> Thing:
    """A layout key by all it holds; fields without a value do not count, so that new ones may be added."""
    return Thing("layout_key", {"content": sha256(canonical(_plain(key))).hexdigest(), "file": file})


def watermark_key_thing(key: Key, file: str | None = None) -> Thing:
    """A watermark key by all it holds."""
    held = {
        "scheme": key.scheme,
        "architecture": key.architecture,
        "shapes": [[layer, *shape] for layer, shape in key.shapes.items()],
        "bits": "".join(map(str, key.message.bits)),
        "settings": dict(key.settings),
        "tensors": tensor_table(key.tensors),
    }
    return Thing("watermark_key", {"content": sha256(canonical(held)).hexdigest(), "file": file})


def secret_thing(secret: bytes) -> Thing:
    """A watermark key that does not exist yet, by the secret that it will be derived from."""
    return Thing("watermark_key", {"secret": sha256(secret).hexdigest()})


def options_thing(options: Mapping[str, Any]) -> Thing:
    """The options of a verification that are not the standard ones; none: it will be held with the standard ones."""
    try:
        canonical(dict(options))
    except (TypeError, ValueError) as error:
        raise ClaimError(f"options are plain JSON values: {error}") from error
    return Thing("options", dict(options))


def agrees(committed: Thing, present: Thing) -> bool:
    """Whether what is at hand is what was committed: the same meaning, or the very same file."""
    if committed.role != present.role or canonical(committed.content) == canonical(present.content):
        return committed.role == present.role
    if present.role not in ("reference", "layout_key", "watermark_key"):
        return False
    known = {name: committed.content.get(name) for name in ("content", "tensors", "file")}
    return any(isinstance(digest, str) and digest == present.content.get(name) for name, digest in known.items())


def differing(committed: Table, present: Table) -> str:
    """Which tensors are not as they were, for a person."""
    before, after = ({row[0]: row[1:] for row in table} for table in (committed, present))
    names = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    shown = ", ".join(f"'{name:.80}'" for name in names[:3]) + (", …" if len(names) > 3 else "")
    return f"{len(names)} of {len(before.keys() | after.keys())} tensors differ: {shown}"


def _tensor(tensor: Tensor) -> list[Any]:
    flat = tensor.detach().cpu().contiguous().flatten()
    digest = sha256(flat.view(torch.uint8).numpy().data if flat.numel() else b"").hexdigest()
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), digest]


def _plain(value: Any) -> Any:
    """Data of any shape as JSON, tensors by digest."""
    if isinstance(value, Tensor):
        return _tensor(value)
    if is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name) for field in fields(value)}
        return {name: _plain(item) for name, item in held.items() if item is not None}
    if isinstance(value, Mapping):
        return [[_plain(name), _plain(item)] for name, item in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ClaimError(f"a {type(value).__name__} cannot be committed to")
