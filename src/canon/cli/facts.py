"""What can be said about a file of tensors without building a model: keys, and weights of an unknown architecture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.markup import escape
from rich.text import Text

from canon.cli.console import table

if TYPE_CHECKING:
    from canon.io import Limits

MOST_ROWS = 200
"""Tensors that are listed for a person."""


def file_facts(source: str, arch: str | None, limits: Limits) -> dict[str, Any] | None:
    """The facts about a file that no model can be built from; None where one can."""
    from canon.errors import FileFormatError
    from canon.io import digest, file_kind, read_weights

    path = Path(source)
    if not path.is_file() or arch is not None:
        return None
    kind = file_kind(path, limits)
    if kind.key is None and (kind.architecture is not None or kind.format.holds_graph):
        return None
    try:
        tensors = read_weights(path, limits=limits)
    except FileFormatError:
        return None  # a pickled model, perhaps; loading it says what is wrong
    return {
        "model": path.name,
        "format": kind.key or kind.format.name,
        "architecture": None,
        "file": path.name,
        "sha256": digest(path),
        "tensors": len(tensors),
        "bytes": sum(t.numel() * t.element_size() for t in tensors.values()),
        "dtypes": sorted({str(t.dtype).removeprefix("torch.") for t in tensors.values()}),
        "next": "Name the architecture with --arch to see channel spaces" if kind.key is None else None,
        "shapes": {name: list(tensor.shape) for name, tensor in tensors.items()},
    }


def file_report(facts: dict[str, Any]) -> Group:
    """The facts for a person."""
    tensors = table("tensor", "shape", words=("tensor", "shape"))
    for name, shape in list(facts["shapes"].items())[:MOST_ROWS]:
        tensors.add_row(escape(name), "×".join(map(str, shape)) or "one number")
    if len(facts["shapes"]) > MOST_ROWS:
        tensors.add_row(f"… {len(facts['shapes']) - MOST_ROWS} more", "")
    head = Text(
        f"{facts['model']}: {facts['format']}; {facts['tensors']} tensors, {facts['bytes']:,} bytes"
        f" of {', '.join(facts['dtypes'])}"
    )
    after = [Text(), Text(facts["next"])] if facts["next"] else []
    return Group(head, Text(f"sha256 {facts['sha256']}"), Text(), tensors, *after)
