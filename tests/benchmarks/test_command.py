"""One command for every measurement."""

from __future__ import annotations

import importlib
import inspect

import pytest

from canon_benchmarks.__main__ import NAMES, main


@pytest.mark.parametrize("name", NAMES)
def test_every_measurement_is_a_module_with_a_main(name: str) -> None:
    function = importlib.import_module(f"canon_benchmarks.{name}").main
    assert len(inspect.signature(function).parameters) == 1


def test_the_command_lists_and_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in NAMES)
    assert main(["nine_ponts"]) == 2
    assert "Did you mean 'nine_points'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main(["wrong_keys", "--help"])
    assert "python -m canon_benchmarks wrong_keys" in capsys.readouterr().out
