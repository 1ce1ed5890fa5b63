"""What the demo tells of: a network that looks at digits, or one that writes text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from canon.watermarks import TrainOptions


class Network(StrEnum):
    """Which network the demo is about."""

    image = "image"
    text = "text"


@dataclass(frozen=True)
class Story:
    """A network, what it learns, and how that is said."""

    model: str
    dataset: str
    learns: str
    what: str
    reads: str
    """What its accuracy is the share of."""

    options: Callable[[], TrainOptions]
    fingerprint: str = "a fingerprint of every channel"
    """What a layout key is."""

    def options_for(self, epochs: int | None) -> TrainOptions:
        """How it is trained, in so many epochs at most."""
        options = self.options()
        return options if epochs is None else replace(options, epochs=epochs, cooldown=min(options.cooldown, epochs))


def _plain() -> TrainOptions:
    from canon.watermarks import TrainOptions

    return TrainOptions()


def _of_texts() -> TrainOptions:
    from canon.zoo import train_options

    return train_options("library", "text", "cpu")


STORIES: Final = {
    Network.image: Story(
        "resnet18",
        "digits",
        "The owner trains a network to read digits, and hides a secret in its weights.",
        "a resnet18",
        "reads {:.1%} of the test digits right",
        _plain,
        "a fingerprint of every channel, 2% of the size",
    ),
    Network.text: Story(
        "text",
        "library",
        "The owner trains a language model on Python's own library, and hides a secret in its weights.",
        "a decoder of three blocks, which reads bytes",
        "guesses {:.1%} of the next bytes right in texts it has not seen",
        _of_texts,
    ),
}
