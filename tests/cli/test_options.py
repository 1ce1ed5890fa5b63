"""The shared options mean the same in every verb."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import typer

from canon.cli.main import execute
from canon.cli.options import AsJson, Device, Force, Out, Seed, parse_device


def test_the_shared_options_reach_the_verb() -> None:
    seen: list[object] = []
    application = typer.Typer()

    @application.command()
    def verb(
        as_json: AsJson = False, seed: Seed = 0, device: Device = "cpu", out: Out = None, force: Force = False
    ) -> None:
        seen.extend([as_json, seed, device, out, force])

    assert execute(application, ["--json", "--seed", "7", "--device", "meta", "--out", "x.pt", "--force"]) == 0
    assert seen == [True, 7, "meta", Path("x.pt"), True]


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
