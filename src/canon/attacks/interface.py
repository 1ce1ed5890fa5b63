"""What an attack primitive is: a change to the channels of one space, written in symbols.

A primitive never sees a weight. It appends dummies or splits channels, and the writer turns the result into tensors
that compute the same function, for every architecture alike.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import torch
from torch import nn

from canon.attacks.channels import Channels
from canon.attacks.options import AttackOptions
from canon.attacks.place import Place
from canon.errors import AttackError


@dataclass(frozen=True, eq=False)
class Setting:
    """Where and how a primitive is applied."""

    options: AttackOptions
    """What the user asked for."""

    place: Place
    """What the space allows."""

    generator: torch.Generator
    """The only source of randomness."""

    @property
    def zero_arrives(self) -> bool:
        """Whether a channel with no input can be made null wherever it is read in this space."""
        return self.place.zero_arrives


Preserves = Literal["function", "nearly", "on data"]
"""What an attack keeps: the function but for rounding, the function but for a little, or its values on probes alone."""


class Primitive(ABC):
    """One way to add channels that leave the function as it is."""

    name: ClassVar[str]
    """What users call it."""

    preserves: ClassVar[Preserves] = "function"
    """What it keeps; the log says so."""

    def prepare(self, model: nn.Module, example: Any, ratio: float, generator: torch.Generator) -> nn.Module:
        """The model to begin with: most primitives take it as it is."""
        return model

    def obstacle(self, setting: Setting) -> str | None:
        """Why it can do nothing in this space, which is then left to the other primitives; None: it can."""
        return None

    def count(self, channels: Channels, setting: Setting) -> int:
        """How many channels it adds to a block: `⌈ρ·C⌉`, `C` being its present width."""
        return math.ceil(setting.options.ratio * channels.block)

    @abstractmethod
    def inject(self, channels: Channels, count: int, setting: Setting) -> Channels:
        """The channels with `count` more in every block."""

    @final
    def apply(self, channels: Channels, setting: Setting) -> Channels:
        """Inject channels and check what came back."""
        multiple = setting.place.space.multiple
        count = -(-self.count(channels, setting) // multiple) * multiple
        result = self.inject(channels, count, setting)
        grown = result.block - channels.block
        if grown != count:
            raise AttackError(f"the primitive '{self.name}' added {grown} channels per block instead of {count}")
        return result
