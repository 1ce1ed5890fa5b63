"""`canon inspect`: a table and a list of pins for a person, one document for a program."""

from __future__ import annotations

import json

import pytest

from canon.cli.exit_codes import ExitCode
from canon.cli.inspect import SpaceRow, pins, scaling, shorten
from canon.cli.main import app, execute


def test_a_person_sees_spaces_and_pins(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert execute(app, ["inspect", "resnet18"]) == ExitCode.OK
    text = capsys.readouterr().out
    assert text.startswith("resnet18: 12 free spaces of 13, 20 free producers of 21, traced with torch.fx")
    lines = [line.split() for line in text.splitlines()]
    assert ["space", "width", "groups", "producers", "consumers", "taps", "scaling"] in lines
    assert ["conv1", "64", "1", "conv1", "+2", "layer1.0.conv1", "+3", "4", "yes"] in lines
    assert ["fc", "10", "1", "fc", "1", "pinned"] in lines
    assert "1 space: model output" in text
    assert "at output" in text


def test_a_program_reads_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(app, ["inspect", "squeezenet1_1", "--json", "--size", "48"]) == ExitCode.OK
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["model"] == "squeezenet1_1"
    assert document["front_end"] == "fx"
    assert document["free_producers"] == document["producers"] - 1 == 25
    pinned = [space for space in document["spaces"] if space["pins"]]
    assert [space["pins"] for space in pinned] == [[{"reason": "model output", "node": "output"}]]
    assert document["spaces"][0]["name"] == "features.0"
    assert document["spaces"][0]["width"] == 64


def test_an_unknown_model_gets_suggestions(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(app, ["inspect", "resnet1"]) == ExitCode.USAGE
    text = capsys.readouterr().err
    assert "neither torchvision nor timm has a model 'resnet1'" in text
    assert "Did you mean resnet" in text


def test_an_image_that_is_too_small_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(app, ["inspect", "squeezenet1_1", "--size", "2"]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: the model does not run on an example of shape (2, 3, 2, 2)")
    assert "where: features_0" in captured.err


def row(**changes: object) -> SpaceRow:
    fields: dict[str, object] = {"name": "a", "width": 4, "groups": 1, "producers": ("a",), "consumers": ()}
    fields |= {"taps": 2, "scalable_taps": 2, "pins": ()}
    return SpaceRow(**{**fields, **changes})  # type: ignore[arg-type]


def test_scaling_in_words() -> None:
    pin = {"reason": "model output", "node": "output"}
    assert scaling(row()) == "yes"
    assert scaling(row(scalable_taps=1)) == "at 1 of 2 taps"
    assert scaling(row(scalable_taps=0)) == "no"
    assert scaling(row(pins=(pin,))) == "pinned"


def test_lists_are_short() -> None:
    assert shorten(()) == ""
    assert shorten(("a",)) == "a"
    assert shorten(("a", "b", "c")) == "a +2"


def test_every_reason_is_given_once() -> None:
    pinned = [row(pins=({"reason": "layer_norm mixes channels", "node": node},)) for node in ("norm_1", "norm_2")]
    assert [str(line) for line in pins(pinned)] == [
        "Pins",
        "  2 spaces: layer_norm mixes channels",
        "    at norm_1, norm_2",
    ]
    assert [str(line) for line in pins([row()])] == ["No pins."]
