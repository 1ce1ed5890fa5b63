"""Weights in state dicts of torch, followed and never unpickled."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from canon.io.formats.interface import FileKind, Format, Peek, Source, Writing
from canon.io.program import is_program
from canon.io.states import Checkpoint, read_legacy_state, read_state


class StateDict(Format):
    """A zip archive with a pickle in it."""

    name = "state dict of torch"
    endings = (".pt", ".pth", ".bin")
    written = (".pt", ".pth")
    is_pickle = True

    def sniff(self, peek: Peek) -> FileKind | None:
        """An archive that is no program."""
        return FileKind(self) if peek.archive is not None and not is_program(peek.archive) else None

    def read(self, source: Source) -> Checkpoint:
        """See `Format`."""
        with open(source.path, "rb") as file:
            return read_state(file, source.where, source.limits)

    def write(self, model: nn.Module, place: Path, writing: Writing) -> None:
        """See `Format`."""
        torch.save({name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}, place)


class OldStateDict(Format):
    """A bare pickle with numbers behind it, as torch wrote them before 1.6."""

    name = "state dict of an old torch"
    endings = (".pt", ".pth", ".bin")
    is_pickle = True

    def sniff(self, peek: Peek) -> FileKind | None:
        """By the first byte of a pickle."""
        return FileKind(self) if peek.start.startswith(b"\x80") else None

    def read(self, source: Source) -> Checkpoint:
        """See `Format`."""
        with open(source.path, "rb") as file:
            return read_legacy_state(file, source.where, source.limits)
