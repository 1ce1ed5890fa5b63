"""The attack that the guide builds is a real one, and its test runs."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from canon.attacks import registry

GUIDE = Path(__file__).parents[2] / "docs" / "adding_an_attack.md"


@pytest.mark.skipif(not GUIDE.exists(), reason="the guide is not part of an installed package")
def test_the_attack_of_the_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    attack, test = (part.split("```")[0] for part in GUIDE.read_text().split("```python\n")[1:])
    names: dict[str, Any] = {"__name__": "guide"}
    exec(attack, names)
    # What the guide's package would be, once installed.
    monkeypatch.setattr("tests.attacks.test_registry.Twins", names["Twins"])
    entry = EntryPoint("twins", "tests.attacks.test_registry:Twins", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    exec(test, {"__name__": "guide"})
