"""Schemes by name, and plugins by entry point."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from canon import _plugins, watermarks
from canon.errors import WatermarkError
from canon.watermarks import registry


def plugins(monkeypatch: pytest.MonkeyPatch, **targets: str) -> None:
    entries = [EntryPoint(name, target, registry.SCHEMES.group) for name, target in targets.items()]
    monkeypatch.setattr(_plugins, "entry_points", lambda group: entries)


def test_the_nine_schemes() -> None:
    assert watermarks.names()[:9] == (
        "uchida17",
        "greedy",
        "lottery",
        "ipr_gan",
        "riga21",
        "ipr_ic",
        "deepsigns",
        "deepipr",
        "passport_aware",
    )
    for name in watermarks.names():
        assert watermarks.get(name).name == name
        assert watermarks.get(name).reference


def test_unknown_scheme() -> None:
    with pytest.raises(WatermarkError, match="Known: uchida17, greedy"):
        watermarks.get("uchida18")


def test_a_plugin_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins(monkeypatch, careless="tests.watermarks.test_conformance:Careless")
    assert watermarks.names()[-1] == "careless"
    assert watermarks.get("careless").name == "careless"


def test_duplicates_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins(monkeypatch, uchida17="tests.watermarks.test_conformance:Careless")
    with pytest.raises(WatermarkError, match="two schemes are called 'uchida17'"):
        watermarks.names()


def test_a_plugin_must_be_a_scheme_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins(monkeypatch, other="tests.watermarks.test_conformance:Careless", wrong="json:dumps")
    with pytest.raises(WatermarkError, match="calls itself 'careless'"):
        watermarks.get("other")
    with pytest.raises(WatermarkError, match="does not name a subclass"):
        watermarks.get("wrong")


def test_a_class_joins_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.SCHEMES, "added", {})
    mine = type("Mine", (type(watermarks.get("uchida17")),), {"name": "mine"})
    assert watermarks.add(mine) is watermarks.add(mine) is mine
    assert watermarks.names()[-1] == "mine"
    assert isinstance(watermarks.get("mine"), mine)
    with pytest.raises(WatermarkError, match="there is a scheme called 'greedy' already"):
        watermarks.add(type("Other", (mine,), {"name": "greedy"}))
