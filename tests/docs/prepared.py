"""What the pages' invisible set-up shares, so that one training serves them all."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from torch import Tensor, nn

import canon
from canon import watermarks, zoo

NAME = "test_resnet"


@cache
def marked() -> tuple[nn.Module, watermarks.Key]:
    """A small model that carries a message, and its key."""
    made = watermarks.get("uchida17").embed(
        zoo.model(NAME),
        zoo.dataset("digits").limited(600, 300),
        message="random:1",
        options=watermarks.TrainOptions(epochs=3, cooldown=1),
    )
    return made.model, made.key


def example() -> Tensor:
    """What the models take."""
    return zoo.example_input(NAME)


@cache
def hidden() -> nn.Module:
    """The same model in disguise."""
    return canon.attack(marked()[0], example(), ops=["mix-opseq"], ratio=0.3, seed=3).model


def write_files(folder: Path = Path()) -> None:
    """Files of an owner, of a suspect and of a stranger."""
    owner, key = marked()
    canon.save(owner, folder / "owner.safetensors", architecture=NAME)
    key.save(folder / "owner.key")
    canon.register(owner, example()).save(folder / "layout.key")
    canon.save(hidden(), folder / "suspect.safetensors", architecture=NAME)
    canon.save(zoo.model(NAME, seed=9), folder / "stranger.safetensors", architecture=NAME)
