"""`canon attack`: weights and a log for the user, one document for a program, errors before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from canon import zoo
from canon.attacks import AttackLog, replay
from canon.cli.exit_codes import ExitCode
from canon.cli.main import app, execute


def test_weights_and_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, log = tmp_path / "hidden.safetensors", tmp_path / "hidden.json"
    arguments = ["attack", "squeezenet1_1", "-o", str(out), "--log", str(log), "--op", "nso_zero", "--op", "nso_split"]
    assert execute(app, [*arguments, "--ratio", "0.3", "--seed", "4", "--json"]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["spaces"] == 25
    read = AttackLog.from_json(log.read_text())
    assert read.options.ops == ("nso_zero", "nso_split")
    again = replay(zoo.model("squeezenet1_1"), zoo.example_input("squeezenet1_1"), read)
    weights = load_file(out)
    assert all(tensor.equal(weights[name]) for name, tensor in again.model.state_dict().items())


def test_weights_from_a_file(tmp_path: Path) -> None:
    given, out = tmp_path / "given.safetensors", tmp_path / "hidden.safetensors"
    save_file({name: 2 * tensor for name, tensor in zoo.model("squeezenet1_1").state_dict().items()}, given)
    arguments = ["attack", str(given), "--arch", "squeezenet1_1", "-o", str(out), "--op", "nso_zero"]
    assert execute(app, [*arguments, "--no-permute", "--no-scale"]) == ExitCode.OK
    before, after = load_file(given)["features.0.weight"], load_file(out)["features.0.weight"]
    places = [int((after == row).flatten(1).all(1).nonzero()[0]) for row in before]
    assert places == sorted(places)
    assert places != list(range(len(before)))


def test_steps_afterwards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, log = tmp_path / "hidden.safetensors", tmp_path / "hidden.json"
    arguments = ["attack", "timm:test_resnet", "-o", str(out), "--log", str(log), "--op", "odd_group", "--json"]
    steps = ["round=8", "finetune:dataset=digits,batch=512,rate=0.001"]
    more = [word for step in steps for word in ("--after", step)]
    assert execute(app, [*arguments, *more, "--size", "32"]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert [step["step"] for step in document["after"]] == [
        "round", "finetune:dataset=digits,rate=0.001,batch=512",
    ]  # fmt: skip
    assert all(step["change"] > 0 for step in document["after"])
    assert document["preserves"] == "function"
    assert AttackLog.from_json(log.read_text()).after[0].step == "round"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--op", "nso_nil"], "no attack 'nso_nil'"),
        (["--ratio", "1.5"], "ratio must be in"),
        (["--select", "layer9"], "matches no free space"),
        (["--after", "shake"], "no step 'shake'"),
        (["--after", "round=8.5"], "is a int"),
    ],
)
def test_errors(tmp_path: Path, more: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "hidden.safetensors"
    assert execute(app, ["attack", "squeezenet1_1", "-o", str(out), *more]) == ExitCode.USAGE
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_an_existing_file_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "hidden.safetensors"
    out.write_text("precious")
    assert execute(app, ["attack", "squeezenet1_1", "-o", str(out)]) == ExitCode.USAGE
    assert out.read_text() == "precious"
    assert "exists already" in capsys.readouterr().err
