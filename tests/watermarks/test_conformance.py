"""All schemes keep the interface's promises; the suite itself can fail."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from canon import watermarks
from canon.watermarks import (
    Embedding,
    Key,
    Message,
    Reader,
    Reading,
    Scheme,
    Target,
    TrainOptions,
    conformance,
    load_key,
)
from canon.watermarks.conformance import ConformanceError, Trial, check
from canon.watermarks.ipr_gan import IprGan, ScaleSigns
from tests.watermarks.small import QUICK, small_digits, small_net


def trial(scheme: Scheme, bits: int = 64) -> Trial:
    return Trial(
        scheme,
        small_net(),
        small_digits(),
        small_net(seed=3, extra=7),
        options=QUICK,
        message=Message.random(seed=1, bits=bits),
        least_similarity=0.95 if scheme.name == "riga21" else 1.0,
        # 64 bits are fewer than the 128 for which the usual band is meant.
        chance=0.2,
    )


@pytest.mark.parametrize("name", watermarks.names())
def test_every_scheme_conforms(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process is enough for the keys of all: the next test has it."""
    torch.set_num_threads(1)
    if name != "uchida17":
        monkeypatch.setattr(conformance, "_survives_a_file_and_a_new_process", lambda *_: None)
    check(trial(watermarks.get(name)))


def test_a_new_process_reads_the_same_key_of_every_scheme(tmp_path: Path) -> None:
    lines = []
    for name in watermarks.names():
        mine = trial(watermarks.get(name))
        key = mine.scheme.draw_key(mine.model, mine.dataset, message=mine.message, seed=1)
        key.save(tmp_path / name)
        lines.append(" ".join([name, mine.message.hex, *key.layers]))
        read = [mine.scheme.extract(mine.model, one, mine.example) for one in (key, load_key(tmp_path / name))]
        assert read[0].bits == read[1].bits
    code = (
        "import sys; from pathlib import Path; from canon.watermarks import load_key\n"
        "for name in sys.argv[2:]:\n"
        "    key = load_key(Path(sys.argv[1]) / name); print(name, key.message.hex, *key.layers)"
    )
    words = [sys.executable, "-c", code, str(tmp_path), *watermarks.names()]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines() == lines


class Careless(Scheme):
    """Reads a constant, whatever the key and the model."""

    name: ClassVar[str] = "careless"
    reference: ClassVar[str] = "none"
    settled_margin: ClassVar[float] = 0.0
    says: ClassVar[float] = 1.0

    def default_layers(self, model: nn.Module, images: Tensor) -> tuple[str, ...]:
        return ("conv3",)

    def capacity(self, model: nn.Module, layers: tuple[str, ...], images: Tensor) -> int:
        return 1_000

    def prepare(self, target: Target) -> Embedding:
        return Embedding()

    def read(self, reader: Reader, key: Key) -> Reading:
        return Reading(key.message.signs(), margin=1.0, similarity=self.says)


class Forgetful(Careless):
    """Never reads its message."""

    name: ClassVar[str] = "forgetful"
    says: ClassVar[float] = 0.5


class Meddling(Careless):
    """Leaves a hook on the shipped model."""

    name: ClassVar[str] = "meddling"

    def prepare(self, target: Target) -> Embedding:
        target.model.get_submodule("conv3").register_forward_hook(lambda *_: None)
        return Embedding()


@pytest.mark.parametrize(
    ("scheme", "complaint"),
    [
        (Careless(), "an unmarked model reads a similarity of 1.0000"),
        (Forgetful(), "similarity 0.5000 on the marked model"),
        (Meddling(), "hooks were left on conv3"),
    ],
    ids=lambda value: value.name if isinstance(value, Scheme) else None,
)
def test_the_suite_can_fail(scheme: Scheme, complaint: str) -> None:
    with pytest.raises(ConformanceError, match=complaint):
        check(trial(scheme))


class Signs(ScaleSigns):
    """Puts a number that nobody reads into the key."""

    def __init__(self, target: Target, secret: Tensor) -> None:
        super().__init__(target)
        self.register_buffer("secret", secret)


class Broken(IprGan):
    """Good but for one thing; its mark is in from the first step."""

    name: ClassVar[str] = "broken"


class SecretUnread(Broken):
    def prepare(self, target: Target) -> Embedding:
        return Signs(target, target.draws.normal("secret", 4))


class Unseeded(Broken):
    def prepare(self, target: Target) -> Embedding:
        return Signs(target, torch.rand(4))


class Grasping(Broken):
    def prepare(self, target: Target) -> Embedding:
        target.dataset.train_images.mul_(0.9)
        return super().prepare(target)


class Rubbing(Broken):
    def read(self, reader: Reader, key: Key) -> Reading:
        found = super().read(reader, key)
        with torch.no_grad():
            reader._module(key.layers[0]).get_parameter("weight").mul_(1.001)
        return found


class Wavering(Broken):
    def read(self, reader: Reader, key: Key) -> Reading:
        found = super().read(reader, key)
        return Reading(found.scores * (1 + torch.rand(1)))


class Boasting(Broken):
    times = 4

    def capacity(self, model: nn.Module, layers: tuple[str, ...], images: Tensor) -> int:
        return self.times * super().capacity(model, layers, images)


class Lying(Boasting):
    times = 1 << 40


@pytest.mark.parametrize(
    ("scheme", "complaint"),
    [
        (SecretUnread(), "a wrong key reads a similarity of 1.0000"),
        (Unseeded(), "one seed gives two keys"),
        (Grasping(), "embed changed the data"),
        (Rubbing(), "reading changes the model"),
        (Wavering(), "reading twice gives two results"),
        (Boasting(), "which is its capacity, [0-9]+ are never read"),
        (Lying(), "bits is more than the [0-9]+ numbers of the layers"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Scheme) else None,
)
def test_schemes_that_break_one_promise(scheme: Scheme, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "_survives_a_file_and_a_new_process", lambda *_: None)
    short = replace(trial(scheme), options=TrainOptions(epochs=1, batch_size=32, cooldown=0))
    with pytest.raises(ConformanceError, match=complaint):
        check(short)
