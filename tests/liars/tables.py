"""Keys of liars, for all nine schemes.

`FORGERIES[scheme]` makes keys afterwards, to read a message of choice from somebody else's model. `SKELETONS[scheme]`
makes keys that read their message from every model. Call one with a model and a dataset of its input's shape:

    for forger in FORGERIES["uchida17"]:
        key = forger(model, dataset)        # KeyFileError where `forger.stopped_by` is "construction"

`stopped_by` says what stops the key: its construction, the model (extraction refuses it, or counts what the key hides),
unread bits, controls (void), luck (it reads no more than luck would), or "nothing". A forgery that nothing stops is a
well-formed key that reads a mark which nobody embedded. No check of the key can tell; only a claim that is older than
the model can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import nn

from canon import watermarks
from canon.watermarks import Dataset, Key, Message

Stop = Literal["construction", "model", "unread", "controls", "luck", "nothing"]

WISH = Message.from_text("it's ours")
"""What a forger would like to read: 72 bits."""


@dataclass(frozen=True)
class Forger:
    """A way to make a key that nobody earned."""

    scheme: str
    name: str
    stopped_by: Stop
    make: Callable[[nn.Module, Dataset], Key]

    def __call__(self, model: nn.Module, dataset: Dataset) -> Key:
        """The key; raises where it cannot even be made."""
        return self.make(model, dataset)


FORGERIES: dict[str, list[Forger]] = {name: [] for name in watermarks.names()}
SKELETONS: dict[str, list[Forger]] = {name: [] for name in watermarks.names()}

Make = Callable[[nn.Module, Dataset], Key]


def forgery(scheme: str, stopped_by: Stop) -> Callable[[Make], Make]:
    """Add a forger to the list of its scheme."""
    return _into(FORGERIES, scheme, stopped_by)


def skeleton(scheme: str, stopped_by: Stop) -> Callable[[Make], Make]:
    """Add a maker of skeleton keys to the list of its scheme."""
    return _into(SKELETONS, scheme, stopped_by)


def _into(table: dict[str, list[Forger]], scheme: str, stopped_by: Stop) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        table[scheme].append(Forger(scheme, make.__name__, stopped_by, make))
        return make

    return add


def drawn(scheme: str, model: nn.Module, dataset: Dataset, message: Message = WISH, seed: int = 99) -> Key:
    """An honest key to start from."""
    return watermarks.get(scheme).draw_key(model, dataset, message=message, seed=seed)
