"""`load` and `read_model`: a model from a file, whatever the format, or by the name of an architecture."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon._safetensors import Header, damaged, parse_json
from canon.errors import CanonError, FileFormatError
from canon.io.architecture import build_architecture, is_factory, with_tensors
from canon.io.archive import MAGIC, Archive
from canon.io.examples import DEFAULT_INPUT, cast, check_input, example_of, program_example
from canon.io.limits import Limits
from canon.io.program import is_program, load_program
from canon.io.states import plain_names, read_legacy_state, read_state
from canon.io.weights import INDEX_SUFFIX, check_finite, read_safetensors, read_sharded

METADATA: Final = "canon"
"""Where a safetensors file that Canon wrote says what it is."""

SUFFIXES: Final = (".safetensors", ".pt", ".pth", ".bin", ".pt2", ".onnx", INDEX_SUFFIX)
"""Endings of the files that can be read."""


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model and what is known about where it came from."""

    model: nn.Module
    """In evaluation mode, on the CPU."""

    example: tuple[Tensor, ...]
    """Random inputs of the right shapes."""

    name: str
    """What to call it: its architecture, or its file."""

    format: str
    """What the file is, in words."""

    architecture: str | None
    """Name of the architecture that the weights were put into; None where the file holds the forward pass itself."""

    origin: dict[str, str]
    """Name and SHA-256 of the file, or the name of the architecture, for evidence."""

    notes: tuple[str, ...] = ()
    """What a user should know about how it was read."""


def load(
    path: str | Path,
    architecture: str | None = None,
    *,
    trust_pickle: bool = False,
    limits: Limits | None = None,
) -> nn.Module:
    """Load a model from a file that may come from anybody: nothing in it is run.

    Args:
        path: A safetensors file, the index of several, a state dict (.pt, .pth), an exported program (.pt2) or ONNX.
        architecture: For files of weights: a torchvision or timm name, or `package.module:factory`, which is imported
            and called. Widths come from the weights, so an obfuscated model loads as it is.
        trust_pickle: Unpickle the file if nothing else will do. That runs whatever code it holds.
        limits: The most that the file may ask for.

    Raises:
        FileFormatError: The file is damaged, hostile, refused, or of another architecture.
    """
    return read_model(path, architecture, trust_pickle=trust_pickle, limits=limits).model


def read_model(
    source: str | Path,
    architecture: str | None = None,
    *,
    size: tuple[int, ...] | None = None,
    trust_pickle: bool = False,
    limits: Limits | None = None,
) -> LoadedModel:
    """Load a model by file or by the name of an architecture, with all that is known about it.

    Args:
        source: A file, or the name of an architecture, which is then built with random weights.
        architecture: What a file's weights belong to.
        size: Shape of one input, or the side of a square image; default: what the file or the architecture says.
        trust_pickle: Unpickle the file if nothing else will do.
        limits: The most that the file may ask for.
    """
    path = Path(source)
    if not path.is_file():
        return _named(str(source), path, size)
    found = _Reader(path, architecture, size, trust_pickle, limits or Limits())
    try:
        return found.read()
    except MemoryError as error:
        raise damaged("it asks for more memory than there is", str(path)) from error


def read_weights(path: str | Path, *, limits: Limits | None = None) -> dict[str, Tensor]:
    """The tensors of a file by name, without a model around them."""
    reader = _Reader(Path(path), None, None, False, limits or Limits())
    kind = reader.kind()
    if kind in ("torch.export", "onnx"):
        return dict(reader.read().model.state_dict())
    return reader.weights(kind)[0]


def _named(source: str, path: Path, size: tuple[int, ...] | None) -> LoadedModel:
    looks_like_file = source.endswith(SUFFIXES) or path.exists() or re.search(r"[\\/]", source)
    if looks_like_file:
        raise FileFormatError("the path is a folder" if path.is_dir() else "no such file", where=source)
    model = build_architecture(source)
    notes = ("the weights are random: a name says what a model looks like, not what it learned",)
    return LoadedModel(model, example_of(model, source, size), source, "architecture", source, {"name": source}, notes)


@dataclass
class _Reader:
    path: Path
    architecture: str | None
    size: tuple[int, ...] | None
    trust_pickle: bool
    limits: Limits

    @property
    def where(self) -> str:
        return str(self.path)

    def kind(self) -> str:
        """What the file is, by its first bytes; only ONNX has nothing to be known by but its name."""
        if self.path.name.endswith(INDEX_SUFFIX):
            return "index"
        with open(self.path, "rb") as file:
            start = file.read(16)
            if start.startswith(MAGIC):
                archive = Archive(file, self.where, self.limits)
                return "torch.export" if is_program(archive) else "state dict"
        if self.path.suffix == ".onnx":
            return "onnx"
        if start[8:9] == b"{":
            return "safetensors"
        if start.startswith(b"\x80"):
            return "pickle"
        raise FileFormatError(
            "the file is of no format that Canon reads, or is damaged",
            where=self.where,
            hint=f"Canon reads {', '.join(SUFFIXES)}",
        )

    def read(self) -> LoadedModel:
        self.limits.check_file(self.path.stat().st_size, self.where)
        kind = self.kind()
        if kind == "torch.export":
            return self.graph("torch.export program", self.program)
        if kind == "onnx":
            return self.graph("ONNX", self.onnx)
        try:
            state, hint, notes = self.weights(kind)
        except FileFormatError:
            if not self.trust_pickle or kind not in ("state dict", "pickle"):
                raise
            return self.unpickled()
        words = {"safetensors": "safetensors", "index": "safetensors in parts", "state dict": "state dict of torch"}
        return self.put(state, hint, words.get(kind, "state dict of an old torch"), notes)

    def weights(self, kind: str) -> tuple[dict[str, Tensor], str | None, tuple[str, ...]]:
        """The tensors, the architecture that the file names, and remarks."""
        hint: str | None = None
        notes: tuple[str, ...] = ()
        if kind == "index":
            state = read_sharded(self.path, self.limits)
        else:
            with open(self.path, "rb") as file:
                if kind == "safetensors":
                    state, header = read_safetensors(file, self.where, self.limits)
                    hint = _hint(header)
                elif kind == "state dict":
                    state = read_state(file, self.where, self.limits)
                else:
                    state = read_legacy_state(file, self.where, self.limits)
        check_finite(state, self.where)
        bare = plain_names(state)
        if bare.keys() != state.keys():
            notes = ("the prefix 'module.' of all names was left out",)
        return bare, hint, notes

    def put(self, state: dict[str, Tensor], hint: str | None, format: str, notes: tuple[str, ...]) -> LoadedModel:
        """Weights into the architecture that the user names, or else the one that the file names."""
        name = self.architecture or hint
        if name is None:
            raise FileFormatError(
                "a file of weights says nothing about its architecture",
                where=self.where,
                hint="Name it with --arch: a torchvision or timm name, or package.module:factory",
            )
        if self.architecture is None:
            notes = (*notes, f"the file says that it is a {name}")
        model = with_tensors(build_architecture(name), state, self.where)
        return self.loaded(model, example_of(model, name, self.size), format, name, notes)

    def graph(self, format: str, read: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]) -> LoadedModel:
        """A file that holds the forward pass itself."""
        model, example = read()
        state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        check_finite(state, self.where)
        return self.loaded(model, example, format, None, ())

    def program(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        try:
            with open(self.path, "rb") as file:
                model: nn.Module = load_program(file, self.where, self.limits)
        except CanonError:
            if not self.trust_pickle:
                raise
            model = torch.export.load(self.path).module()
        return model, program_example(model, self.size, self.where)

    def onnx(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        from canon.io.onnx import example_input, load_onnx

        model = load_onnx(self.path, self.limits)
        side = self.size[-1] if self.size else DEFAULT_INPUT[-1]
        for _, _, shape in model.meta["inputs"]:  # type: ignore[index]
            check_input([n if isinstance(n, int) and n > 0 else side for n in shape], self.where)
        return model, example_input(model, side=side)

    def unpickled(self) -> LoadedModel:
        """What `trust_pickle` asks for: everything in the file may run."""
        try:
            value = torch.load(self.path, map_location="cpu", weights_only=False)
        except Exception as error:  # the file's own code may raise anything
            raise FileFormatError(f"unpickling failed: {type(error).__name__}: {error}", where=self.where) from error
        notes = ("the file was unpickled: code in it may have run",)
        if isinstance(value, nn.Module):
            model = value.eval()
            name = self.architecture or type(model).__name__
            return self.loaded(model, example_of(model, self.architecture, self.size), "pickled module", name, notes)
        if isinstance(value, dict) and value and all(isinstance(tensor, Tensor) for tensor in value.values()):
            return self.put(plain_names(value), None, "pickled state dict", notes)
        raise FileFormatError(f"the pickle holds a {type(value).__name__}, not a model", where=self.where)

    def loaded(
        self, model: nn.Module, example: tuple[Tensor, ...], format: str, architecture: str | None, notes: Any
    ) -> LoadedModel:
        origin = {"file": self.path.name, "sha256": _digest(self.path)}
        return LoadedModel(
            model, cast(model, example), architecture or self.path.name, format, architecture, origin, tuple(notes)
        )


def _hint(header: Header) -> str | None:
    """The architecture that a file of ours names. A file may name a public one and nothing else."""
    try:
        name = parse_json(header.metadata[METADATA].encode(), "metadata")["architecture"]
    except (KeyError, TypeError, FileFormatError):
        return None
    return name if isinstance(name, str) and len(name) < 200 and not is_factory(name) else None


def _digest(path: Path) -> str:
    """SHA-256 of a file; of an index, also of the parts, in the order of their names."""
    files = [path]
    if path.name.endswith(INDEX_SUFFIX):
        parts = parse_json(path.read_bytes(), str(path))["weight_map"].values()
        files += [path.parent / part for part in sorted(set(parts))]
    found = hashlib.sha256()
    for one in files:
        with open(one, "rb") as file:
            _update(found, file)
    return found.hexdigest()


def _update(found: Any, file: BufferedReader) -> None:
    while chunk := file.read(1 << 20):
        found.update(chunk)
