"""The shared options mean the same in every verb."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import typer

from canon.cli.groups import verb
from canon.cli.main import execute
from canon.cli.options import AsJson, Device, Force, Report, Seed, parse_device


def test_the_shared_options_reach_the_verb() -> None:
    seen: list[object] = []
    application = typer.Typer()

    @application.command()
    def verb(
        as_json: AsJson = False, seed: Seed = 0, device: Device = "cpu", report: Report = None, force: Force = False
    ) -> None:
        seen.extend([as_json, seed, device, report, force])

    assert execute(application, ["--json", "--seed", "7", "--device", "meta", "--report", "x.html", "--force"]) == 0
    assert seen == [True, 7, "meta", Path("x.html"), True]


@dataclass(frozen=True, kw_only=True)
class Chance:
    seed: Seed = 3
    force: Force = False


def test_a_group_of_options_is_one_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[object] = []
    application = typer.Typer()

    @application.command()
    @verb("canon thing")
    def thing(context: typer.Context, name: str, chance: Chance, device: Device = "cpu") -> None:
        """What it does."""
        seen.extend([context.info_name is not None, name, chance, device])

    assert execute(application, ["thing", "--force", "--device", "meta"]) == 0
    assert seen == [True, "thing", Chance(seed=3, force=True), "meta"]
    assert execute(application, ["--help"]) == 0
    told = capsys.readouterr().out
    assert "What it does." in told
    assert told.index("--seed") < told.index("--force") < told.index("--device")


def test_a_negative_seed_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    application = typer.Typer()

    @application.command()
    def verb(seed: Seed = 0) -> None: ...

    assert execute(application, ["--seed", "-1"]) == 2
    assert "--seed" in capsys.readouterr().err


def test_devices() -> None:
    assert parse_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["toaster", "cuda:4096", "cpu:x"])
def test_a_device_that_is_not_here_is_refused(name: str) -> None:
    with pytest.raises(typer.BadParameter, match="try 'cpu'"):
        parse_device(name)
