"""`load` and `read_model`: a model from a file, whatever the format, or by the name of an architecture."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from canon._untrusted import Limits, damaged, parse_json
from canon.errors import CanonError, FileFormatError
from canon.graph import Example, arguments
from canon.graph.tensors import tensor_names
from canon.io.architecture import build_architecture, check_size, folded_alike, with_tensors
from canon.io.checkpoints import fitting_names, plain_names
from canon.io.examples import cast, example_of, program_example
from canon.io.formats import FileKind, Format, Graph, Source, file_kind, suffixes
from canon.io.origin import FileState, file_state, folder_origin, origin_of
from canon.io.states import Checkpoint
from canon.io.weights import check_finite, one_type


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model and what is known about where it came from."""

    model: nn.Module
    """In evaluation mode, on the CPU."""

    example: tuple[Any, ...]
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

    files: tuple[Path, ...] = ()
    """Every file that was read for it: parts and external data as well."""

    precision: str | None = None
    """What the file stores its weights in, where that is coarser than the tensors' own type: int8, float16."""


def load(
    path: str | Path,
    architecture: str | None = None,
    *,
    trust_pickle: bool = False,
    limits: Limits | None = None,
) -> nn.Module:
    """Load a model from a file that may come from anybody: nothing in it is run.

    Args:
        path: A safetensors file, the index of several, a state dict (.pt, .pth), an exported program (.pt2) or ONNX; or
            a folder of transformers or diffusers: config.json and safetensors files.
        architecture: For files of weights: a torchvision or timm name, or `package.module:factory`, which is imported
            and called. Widths come from the weights, so an obfuscated model loads as it is.
        trust_pickle: Unpickle the file if nothing else will do. That runs whatever code it holds.
        limits: The most that the file may ask for.

    Raises:
        FileFormatError: The file is damaged, hostile, refused, or of another architecture.
        UnsupportedModelError: The file's forward pass uses operations that Canon does not read.
    """
    return read_model(path, architecture, trust_pickle=trust_pickle, limits=limits).model


def read_model(
    source: str | Path,
    architecture: str | None = None,
    *,
    size: tuple[int, ...] | None = None,
    trust_pickle: bool = False,
    limits: Limits | None = None,
    example: Example | None = None,
) -> LoadedModel:
    """Load a model by file, by folder or by the name of an architecture, with all that is known about it.

    Args:
        source: A file, a folder of transformers or diffusers, or the name of an architecture, which is then built with
            random weights.
        architecture: What a file's weights belong to.
        size: Shape of one input, or the side of a square image; default: what the file or the architecture says.
        trust_pickle: Unpickle the file if nothing else will do.
        limits: The most that the file may ask for.
        example: Inputs by name; None: made from what the file, the folder or the architecture says.
    """
    path = Path(source)
    if path.is_dir():
        return _from_folder(path, limits or Limits(), example)
    if not path.is_file():
        return _with_example(_named(str(source), path, size), example)
    reader = _Reader(path, architecture, size, trust_pickle, limits or Limits())
    try:
        return _with_example(reader.read(), example)
    except MemoryError as error:
        raise damaged("it asks for more memory than there is", str(path)) from error


def _with_example(loaded: LoadedModel, example: Example | None) -> LoadedModel:
    """A model with the user's own inputs."""
    if example is None:
        return loaded
    inputs = arguments(loaded.model, example)
    return replace(loaded, example=cast(loaded.model, inputs if isinstance(inputs, tuple) else (inputs,)))


def _from_folder(path: Path, limits: Limits, example: Example | None) -> LoadedModel:
    from canon.io.folder import read_folder

    found = read_folder(path, limits, example)
    check_finite(dict(found.model.named_parameters()), str(path))
    name = path.resolve().name
    origin = folder_origin(path, found.states)
    words = f"{found.architecture}, {found.format}"
    return LoadedModel(found.model, found.example, name, words, None, origin, found.notes, tuple(found.states))


def read_weights(path: str | Path, *, limits: Limits | None = None) -> dict[str, Tensor]:
    """The tensors of a file by name, without a model around them."""
    path, limits = Path(path), limits or Limits()
    if not path.is_file():
        raise _no_file(path)
    kind = file_kind(path, limits)
    if kind.format.holds_graph:
        return dict(_Reader(path, None, None, False, limits).read().model.state_dict())
    found = kind.format.read(Source(path, limits))
    assert isinstance(found, Checkpoint), "it holds no graph"
    check_finite(found.tensors, str(path))
    return plain_names(found.tensors)


def _no_file(path: Path) -> FileFormatError:
    if path.is_dir():
        hint = "Give one of the files in it; of weights in several parts, the .index.json"
        return FileFormatError("the path is a folder", where=str(path), hint=hint)
    hint = "Check the path; a relative one counts from the folder that you are in"
    return FileFormatError("no such file", where=str(path), hint=hint)


def _named(source: str, path: Path, size: tuple[int, ...] | None) -> LoadedModel:
    if source.endswith(suffixes()) or path.exists() or re.search(r"[\\/]", source):
        raise _no_file(path)
    model = build_architecture(source)
    words = "architecture with random weights"
    return LoadedModel(model, example_of(model, source, size), source, words, source, {"name": source})


@dataclass
class _Reader:
    path: Path
    architecture: str | None
    size: tuple[int, ...] | None
    trust_pickle: bool
    limits: Limits
    states: dict[Path, FileState] = field(default_factory=dict)
    """Every file that is read, as it was then."""

    @property
    def where(self) -> str:
        return str(self.path)

    def read(self) -> LoadedModel:
        self.states[self.path] = file_state(self.path)
        kind = file_kind(self.path, self.limits)
        if kind.key is not None:
            raise FileFormatError(f"the file is a {kind.key}, not a model", where=self.where)
        try:
            found = kind.format.read(Source(self.path, self.limits, self.size, self.states))
            return self.graph(kind.format, found) if isinstance(found, Graph) else self.weights(kind, found)
        except CanonError:
            if not self.trust_pickle or not kind.format.is_pickle:
                raise
            return self.unpickled(kind.format)

    def weights(self, kind: FileKind, checkpoint: Checkpoint) -> LoadedModel:
        """A file of tensors."""
        check_finite(checkpoint.tensors, self.where)
        return self.put(checkpoint, kind.architecture, checkpoint.program or kind.format.name)

    def put(self, checkpoint: Checkpoint, hint: str | None, format: str) -> LoadedModel:
        """Weights into the architecture that the user names, or else the one that the file names."""
        name, notes = self.architecture or hint, checkpoint.notes
        if name is None and checkpoint.program is not None:
            raise FileFormatError(
                f"the file is {checkpoint.program}: its code is not run, and its weights do not say what to compute",
                where=self.where,
                hint="Name the architecture with --arch to read the weights. Without it: export the model as ONNX or "
                "with torch.export, or, if you trust the file, load it in Python (torch.jit.load) and pass the module "
                "to canon.judge",
            )
        if name is None:
            raise FileFormatError(
                "a file of weights says nothing about its architecture",
                where=self.where,
                hint="Name it with --arch: a torchvision or timm name, or package.module:factory",
            )
        if self.architecture is None:
            notes = (*notes, f"the file says that it is a {name}")
            check_size(name, checkpoint.tensors, self.where)
        if checkpoint.program is not None:
            notes = (*notes, f"the file is {checkpoint.program}: its weights were read, and no code of it was run")
        built = build_architecture(name)
        state, renamed = fitting_names(checkpoint.tensors, tensor_names(built)[1].keys())
        state, widened = one_type(state)
        notes = (*notes, *renamed, *widened)
        example = example_of(built, name, self.size)
        built, folded = folded_alike(built, state, example)
        if folded:
            notes = (*notes, f"{folded} norms of the architecture were folded into the layers before them")
        return self.loaded(with_tensors(built, state, self.where), example, format, name, notes)

    def graph(self, format: Format, found: Graph) -> LoadedModel:
        """A file that holds the forward pass itself."""
        model = found.model
        if any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()]):
            raise damaged("a layer lacks a tensor", self.where)
        statistics = {name: t for name, t in model.named_buffers() if name.endswith(("running_mean", "running_var"))}
        check_finite({**dict(model.named_parameters()), **statistics}, self.where)
        return self.loaded(model, found.example, format.name, None, found.notes, found.precision)

    def unpickled(self, format: Format) -> LoadedModel:
        """What `trust_pickle` asks for: everything in the file may run."""
        notes = ("the file was unpickled: code in it may have run",)
        try:
            if format.holds_graph:
                program = torch.export.load(self.path).module()
                example = program_example(program, self.size, self.where)
                return self.loaded(program, example, format.name, None, notes)
            value = torch.load(self.path, map_location="cpu", weights_only=False)
        except Exception as error:  # the file's own code may raise anything
            raise FileFormatError(f"unpickling failed: {type(error).__name__}: {error}", where=self.where) from error
        if isinstance(value, nn.Module):
            name = self.architecture or type(value).__name__
            example = example_of(value, self.architecture, self.size)
            return self.loaded(value.eval(), example, "pickled module", name, notes)
        if isinstance(value, dict) and value and all(isinstance(tensor, Tensor) for tensor in value.values()):
            return self.put(Checkpoint(value, notes=notes), None, "pickled state dict")
        raise FileFormatError(f"the pickle holds a {type(value).__name__}, not a model", where=self.where)

    def loaded(
        self,
        model: nn.Module,
        example: tuple[Tensor, ...],
        format: str,
        architecture: str | None,
        notes: Any,
        precision: str | None = None,
    ) -> LoadedModel:
        states = {**self.states, **getattr(model, "meta", {}).get("files", {})}
        name = architecture or self.path.name
        origin, files = origin_of(self.path, states), tuple(states)
        given = cast(model, example)
        return LoadedModel(model, given, name, format, architecture, origin, tuple(notes), files, precision)


def digest(path: Path) -> str:
    """SHA-256 of a file; of an index, of it and its parts one after the other, in the order of their names."""
    files = [path]
    if path.suffix == ".json":
        parts = parse_json(path.read_bytes(), str(path))["weight_map"].values()
        files += [path.parent / part for part in sorted(set(parts))]
    found = hashlib.sha256()
    for one in files:
        with open(one, "rb") as file:
            while chunk := file.read(1 << 20):
                found.update(chunk)
    return found.hexdigest()
