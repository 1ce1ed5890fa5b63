"""What an attack primitive is: a change to the channels of one space, told in symbols.

A primitive never sees a weight. It appends dummies or splits channels, and the writer turns the result into tensors
that compute the same function, for every architecture alike.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from canon.attacks.channels import Channels
from canon.attacks.options import AttackOptions
from canon.errors import AttackError


@dataclass(frozen=True, eq=False)
class Setting:
    """Where and how a primitive is applied."""

    options: AttackOptions
    """What the user asked for."""

    zero_arrives: bool
    """Whether a channel with no input can be made null wherever it is read in this space."""

    generator: torch.Generator
    """The only source of randomness."""


class Primitive(ABC):
    """One way to add channels that leave the function as it is."""

    name: ClassVar[str]
    """What users call it."""

    @abstractmethod
    def inject(self, channels: Channels, count: int, setting: Setting) -> Channels:
        """The channels with `count` more in every block."""

    @final
    def apply(self, channels: Channels, setting: Setting) -> Channels:
        """Inject `⌈ρ·C⌉` channels per block, `C` being its present width, and check what came back."""
        count = math.ceil(setting.options.ratio * channels.block)
        result = self.inject(channels, count, setting)
        grown = result.block - channels.block
        if grown != count:
            raise AttackError(f"the primitive '{self.name}' added {grown} channels per block instead of {count}")
        return result
