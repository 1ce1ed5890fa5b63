"""Primitives by name, and plugins by entry point."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest
import torch
from torch import nn

from canon import _plugins, attacks
from canon.attacks import Channels, Kind, Primitive, Setting, registry
from canon.errors import AttackError
from tests.preservation import assert_same_function, outputs, randomize


class Twins(Primitive):
    """Half of the new channels are a clique, the other half copies of the first channel."""

    name: ClassVar[str] = "twins"

    def inject(self, channels: Channels, count: int, setting: Setting) -> Channels:
        half = count // 2
        return channels.append(Kind.CLIQUE, half).split(0, count - half)


class Greedy(Primitive):
    """Adds more than it should."""

    name: ClassVar[str] = "greedy"

    def inject(self, channels: Channels, count: int, setting: Setting) -> Channels:
        return channels.append(Kind.ZERO_OUT, count + 1)


def plugins(monkeypatch: pytest.MonkeyPatch, **targets: str) -> None:
    entries = [EntryPoint(name, target, registry.PRIMITIVES.group) for name, target in targets.items()]
    monkeypatch.setattr(_plugins, "entry_points", lambda group: entries)
    monkeypatch.setattr(registry.PRIMITIVES, "added", {})  # what other tests have added


def network() -> nn.Module:
    return randomize(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))


EXAMPLE = torch.randn(2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_three_primitives() -> None:
    assert attacks.names()[:3] == ("nso_zero", "nso_clique", "nso_split")
    assert all(attacks.get(name).name == name for name in attacks.names())


def test_a_plugin_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins(monkeypatch, twins="tests.attacks.test_registry:Twins")
    assert attacks.names()[-1] == "twins"
    model = network()
    result = attacks.attack(model, EXAMPLE, ["twins", "nso_zero"], ratio=1.0)
    assert_same_function(result.model, outputs(model, EXAMPLE), EXAMPLE, "a plugin")
    assert {"clique", "copy"} <= set(result.log.spaces[0].kinds)


def test_a_plugin_that_miscounts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins(monkeypatch, greedy="tests.attacks.test_registry:Greedy")
    with pytest.raises(AttackError, match="'greedy' added 3 channels per block instead of 2"):
        attacks.attack(network(), EXAMPLE, ["greedy"])


@pytest.mark.parametrize("name", ["nso_zero", "mix-opseq"])
def test_duplicates_are_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plugins(monkeypatch, **{name: "tests.attacks.test_registry:Twins"})
    with pytest.raises(AttackError, match=f"two attacks are called '{name}'"):
        attacks.names()


def test_a_plugin_must_be_a_primitive_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins(monkeypatch, other="tests.attacks.test_registry:Twins", wrong="json:dumps")
    with pytest.raises(AttackError, match="calls itself 'twins'"):
        attacks.get("other")
    with pytest.raises(AttackError, match="does not name a subclass"):
        attacks.get("wrong")


def test_a_class_joins_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.PRIMITIVES, "added", {})
    assert attacks.add(Twins) is attacks.add(Twins) is Twins
    assert attacks.names()[-1] == "twins"
    assert attacks.attack(network(), EXAMPLE, ["twins"], ratio=1.0).log.spaces
    with pytest.raises(AttackError, match="there is an attack called 'twins' already"):
        attacks.add(type("Other", (Twins,), {}))
    with pytest.raises(AttackError, match="there is an attack called 'nso_zero' already"):
        attacks.add(type("Other", (Twins,), {"name": "nso_zero"}))
