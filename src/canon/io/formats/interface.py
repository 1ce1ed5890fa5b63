"""What a format of model files is: something that knows its files, reads them, and may write them."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from canon._untrusted import Limits
from canon.io.archive import MAGIC, Archive
from canon.io.origin import FileState
from canon.io.states import Checkpoint


@dataclass(frozen=True)
class FileKind:
    """What is known about a file before its numbers are read."""

    format: Format
    architecture: str | None = None
    """A public architecture that the file names. A hint, and nothing else: no file may name code."""

    key: str | None = None
    """What kind of key it is; None for a model."""


@dataclass(frozen=True)
class Peek:
    """A file as it is before anybody knows its format."""

    path: Path
    file: BufferedReader
    start: bytes
    """The first bytes."""

    limits: Limits

    @property
    def where(self) -> str:
        """How errors name the file."""
        return str(self.path)

    @functools.cached_property
    def archive(self) -> Archive | None:
        """Its directory, where the file is a zip archive."""
        return Archive(self.file, self.where, self.limits) if self.start.startswith(MAGIC) else None


@dataclass(frozen=True)
class Source:
    """A file that is to be read."""

    path: Path
    limits: Limits
    """The most that it may ask for."""

    size: tuple[int, ...] | None = None
    """Shape of one input, where the user says so."""

    states: dict[Path, FileState] = field(default_factory=dict)
    """Readers of several files note here each one that they open, as it was then."""

    @property
    def where(self) -> str:
        """How errors name the file."""
        return str(self.path)


@dataclass(frozen=True, eq=False)
class Graph:
    """A file's own forward pass."""

    model: nn.Module
    example: tuple[Any, ...]
    """Random inputs of the right shapes."""

    notes: tuple[str, ...] = ()
    """What a user should know about how it was read."""

    precision: str | None = None
    """What the file stores its weights in, where that is coarser than the tensors' own type."""


@dataclass(frozen=True)
class Writing:
    """What is written beside the model."""

    inputs: tuple[Any, ...] = ()
    """An example, for formats that hold the forward pass."""

    architecture: str | None = None
    """Its name, as the user gave it."""


class Format(ABC):
    """A format of model files. Files come from strangers: what they say is checked before it is believed."""

    name: ClassVar[str]
    """In words."""

    endings: ClassVar[tuple[str, ...]]
    """Of the files that are read."""

    written: ClassVar[tuple[str, ...]] = ()
    """Endings of the files that are written; none for a format that is read alone."""

    holds_graph: ClassVar[bool] = False
    """Whether such a file holds the forward pass itself, and not weights alone."""

    is_pickle: ClassVar[bool] = False
    """Whether torch would unpickle it."""

    @abstractmethod
    def sniff(self, peek: Peek) -> FileKind | None:
        """What the file is; None where it is not of this format. By its first bytes rather than by its name."""

    @abstractmethod
    def read(self, source: Source) -> Checkpoint | Graph:
        """The file's tensors, or the model where it holds one; `FileFormatError` for whatever is wrong with it."""

    def write(self, model: nn.Module, place: Path, writing: Writing) -> None:
        """Write a model to a file that is not there yet."""
        raise NotImplementedError(f"{self.name} is not written")
