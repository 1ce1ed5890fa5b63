"""A layout key suffices to locate a network, holds little, and is read with suspicion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import canon
from canon import zoo
from canon.errors import CanonError, KeyFileError
from canon.verify import LayoutKey
from canon.verify.keeping import _pack_sizes, _unpack_sizes
from tests.containment.disguises import chain, images, relative_noise
from tests.verify.small import example, tiny
from tests.verify.test_key import rewritten


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "layout.safetensors"
    canon.register(tiny(), example()).save(path)
    return path


def test_a_portrait_survives_its_file(tmp_path: Path) -> None:
    made = canon.register(tiny(), example())
    made.save(tmp_path / "key")
    read = LayoutKey.load(tmp_path / "key")
    assert made.portrait is not None
    assert read.portrait is not None
    assert made.skeleton == read.skeleton
    for mine, yours in zip(made.portrait.steps, read.portrait.steps, strict=True):
        assert torch.allclose(mine.features, yours.features)
        assert all(torch.allclose(mine.scales[tap], yours.scales[tap], rtol=1e-6) for tap in mine.scales)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_a_robust_key_finds_what_the_reference_finds(noise: float) -> None:
    net, inputs = chain(), images()
    suspect = canon.attack(net, inputs, "mix-opseq", ratio=0.5, seed=2).model
    found = canon.locate(relative_noise(suspect, noise), canon.register(net, inputs, robust=True), inputs)
    assert found.coverage >= 0.95
    assert found.answer == ("derived" if noise else "contained")
    assert canon.locate(chain(9), canon.register(net, inputs, robust=True), inputs).answer == "unrelated"


def test_a_robust_key_says_what_it_buys() -> None:
    net, inputs = zoo.model("mobilenet_v2"), zoo.example_input("mobilenet_v2", batch=1)
    plain, robust = canon.register(net, inputs), canon.register(net, inputs, robust=True)
    assert plain.noise is not None
    assert robust.noise is not None
    assert robust.noise > 0.2 > plain.noise


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.PAPER_MODELS)
@pytest.mark.parametrize(("robust", "share"), [(False, 0.03), (True, 0.1)])
def test_how_much_a_key_holds(name: str, robust: bool, share: float, tmp_path: Path) -> None:
    net, path = zoo.model(name), tmp_path / "key"
    canon.register(net, zoo.example_input(name, batch=1), robust=robust).save(path)
    assert path.stat().st_size <= share * sum(t.numel() * t.element_size() for t in net.state_dict().values())


def test_a_key_from_before_portraits_aligns_and_does_not_locate(key_file: Path, tmp_path: Path) -> None:
    def older(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        header.update(version=1)
        for name in ("portrait", "skeleton"):
            header.pop(name)
        tensors.pop("portrait")

    key = LayoutKey.load(rewritten(key_file, tmp_path / "old", older))
    assert canon.align(tiny(), key, example()).established
    with pytest.raises(KeyFileError, match="canon register"):
        canon.locate(tiny(), key, example())


# -- keys made by hand -----------------------------------------------------------------------------------------------


def test_a_key_that_says_nothing_is_refused() -> None:
    key = canon.register(tiny(), example())
    step = key.layout.steps[0]
    for broken in (
        replace(step, features=torch.zeros_like(step.features)),
        replace(step, features=step.features[:, :0]),
        replace(step, maps=()),
    ):
        layout = replace(key.layout, steps=(broken, *key.layout.steps[1:]))
        with pytest.raises(KeyFileError, match="by nothing"):
            LayoutKey(layout, key.model)


def test_a_key_that_leaves_out_layers_is_refused() -> None:
    key = canon.register(tiny(), example())
    portrait = key.portrait
    assert portrait is not None
    for kept in (portrait.steps[1:], portrait.steps[:1], tuple(s for s in portrait.steps if not s.last)):
        broken = replace(key, portrait=replace(portrait, steps=kept))
        with pytest.raises(KeyFileError):
            canon.locate(tiny(), broken, example())


HOSTILE: dict[str, Callable[[dict[str, Any], dict[str, torch.Tensor]], Any]] = {
    "too few": lambda h, t: t.update(portrait=t["portrait"][:-1]),
    "too many": lambda h, t: t.update(portrait=torch.cat([t["portrait"], t["portrait"][:1]])),
    "floats": lambda h, t: t.update(portrait=t["portrait"].float()),
    "a matrix": lambda h, t: t.update(portrait=t["portrait"][None]),
    "none": lambda h, t: t.pop("portrait"),
    "all zero": lambda h, t: t["portrait"].zero_(),
    "numbers": lambda h, t: h["portrait"].update(numbers=10**9),
    "other numbers": lambda h, t: h["portrait"].update(numbers=h["portrait"]["numbers"] + 1),
    "seed": lambda h, t: h["portrait"].update(seed=-1),
    "seed as text": lambda h, t: h["portrait"].update(seed="1"),
    "fewer steps": lambda h, t: h["portrait"]["parts"].pop(),
    "part": lambda h, t: h["portrait"]["parts"][0][0].__setitem__(0, 10**12),
    "empty part": lambda h, t: h["portrait"]["parts"][0][0].__setitem__(1, 0),
    "blocks from the future": lambda h, t: h["portrait"]["blocks"][0][0].__setitem__(0, 10**6),
    "negative blocks": lambda h, t: h["portrait"]["blocks"][0][0].__setitem__(0, -1),
    "endless blocks": lambda h, t: h["portrait"]["blocks"][0][0].__setitem__(1, 10**15),
    "skeleton": lambda h, t: h.update(skeleton="0" * 64),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_portrait_finds_nothing(name: str, key_file: Path, tmp_path: Path) -> None:
    def change(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        HOSTILE[name](header, tensors)

    path = rewritten(key_file, tmp_path / "hostile", change)
    suspect: nn.Module = canon.attack(tiny(), example(), "mix-opseq").model
    try:
        found = canon.locate(suspect, LayoutKey.load(path), example())
    except CanonError:
        return
    assert found.answer in ("not decided", "unrelated")


def test_a_key_that_leaves_out_layers_aligns_nothing() -> None:
    key = canon.register(tiny(), example())
    pinned = tuple(step for step in key.layout.steps if step.space != key.layout.steps[-1].space)
    broken = replace(key, layout=replace(key.layout, steps=pinned))
    with pytest.raises(KeyFileError, match="leaves out"):
        canon.align(tiny(), broken, example())


class Gated(nn.Module):
    """A gated layer in a residual stream, as in language models."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.gate, self.up, self.down = nn.Linear(20, 64), nn.Linear(20, 64), nn.Linear(64, 20)
            self.norm, self.head = nn.LayerNorm(20), nn.Linear(20, 5)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


@pytest.mark.parametrize("robust", [False, True], ids=["plain", "robust"])
@pytest.mark.parametrize("seed", range(3))
def test_a_noisy_gated_network_is_found_by_its_key(seed: int, robust: bool, tmp_path: Path) -> None:
    """Its up branch has any sign: what the key says of it must fit the signs of the key's own rows."""
    inputs = torch.randn(4, 20, generator=torch.Generator().manual_seed(0))
    canon.register(Gated(seed), inputs, robust=robust).save(tmp_path / "key")
    key = LayoutKey.load(tmp_path / "key")
    suspect = canon.attack(Gated(seed), inputs, "nso_clique", ratio=0.3, seed=seed).model
    suspect = relative_noise(suspect, 0.03)
    found = canon.locate(suspect, key, inputs)
    assert found.answer == "derived", found.reason
    assert found.coverage > 0.9
    assert canon.locate(Gated(seed + 7), key, inputs).answer == "unrelated"


def test_scales_keep_their_sign_in_a_byte() -> None:
    exact = torch.tensor([2.0, -3.0, 0.5, -0.25, 1.0], dtype=torch.float64)
    scale = exact * torch.tensor([1.3, -1.0, -0.4, 0.9, 4.0])
    read = _unpack_sizes(_pack_sizes(scale, exact, True), exact, True)
    assert torch.allclose(read, scale, rtol=0.02)
