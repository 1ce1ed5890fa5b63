"""What is said where: results on standard output, remarks on standard error, JSON alone."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console, Group
from rich.text import Text

from canon.cli.console import Talker, to_jsonable


def talker(*, as_json: bool = False, terminal: bool = False) -> tuple[Talker, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return (
        Talker(as_json, Console(file=out, width=80), Console(file=err, force_terminal=terminal, width=80)),
        out,
        err,
    )


def test_a_result_for_a_person() -> None:
    talk, out, err = talker()
    talk.result({"width": 3}, "three channels")
    assert out.getvalue() == "three channels\n"
    assert err.getvalue() == ""


def test_a_result_for_a_program() -> None:
    talk, out, err = talker(as_json=True)
    talk.note("a remark")
    with talk.progress("tracing") as told, talk.status("thinking"):
        told(0.5)
    talk.result({"width": 3}, "three channels")
    assert json.loads(out.getvalue()) == {"width": 3}
    assert err.getvalue() == ""


def test_long_json_is_not_wrapped() -> None:
    talk, out, _ = talker(as_json=True)
    talk.result({"name": "layer " * 100}, "")
    assert json.loads(out.getvalue()) == {"name": "layer " * 100}


def test_a_pipe_gets_whole_lines() -> None:
    talk, out, _ = talker()
    talk.result({}, Group(Text("word " * 40), Text("end")))
    assert out.getvalue().splitlines() == ["word " * 40, "end"]
    screen = io.StringIO()
    Talker(False, Console(file=screen, width=80, force_terminal=True)).result({}, Text("word " * 40))
    assert len(screen.getvalue().splitlines()) == 3


def test_a_remark_is_not_markup() -> None:
    talk, out, err = talker()
    talk.note("layer [bold]conv1[/bold] [/]")
    assert out.getvalue() == ""
    assert err.getvalue() == "layer [bold]conv1[/bold] [/]\n"


def test_progress_off_a_terminal_is_one_line() -> None:
    talk, _, err = talker()
    with talk.progress("tracing") as told:
        told(0.5)
        told(1.0)
    with talk.status("thinking"):
        pass
    assert err.getvalue() == "tracing\nthinking\n"


def test_progress_on_a_terminal_is_a_bar() -> None:
    talk, _, err = talker(terminal=True)
    with talk.progress("tracing [/x]") as told:
        told(0.5)
        told(1.0)
    assert "100%" in err.getvalue()
    assert "tracing [/x]" in err.getvalue()


def test_waiting_on_a_terminal_is_seen() -> None:
    talk, _, err = talker(terminal=True)
    with talk.status("thinking [/x]"):
        pass
    assert "thinking [/x]" in err.getvalue()


class Verdict(Enum):
    PROVED = "proved"


@dataclass(frozen=True)
class Layer:
    name: str
    residual: float


def test_results_become_json() -> None:
    value = {
        "verdict": Verdict.PROVED,
        "layers": [Layer("conv1", 0.5), Layer("fc", float("nan"))],
        "file": Path("a") / "b",
        "scalar": np.float32(0.5),
        "tensor": torch.tensor([1, 2]),
        "flags": (True, None),
        "kinds": {"zero", "clique"},
        3: "three",
    }
    assert json.loads(json.dumps(to_jsonable(value), allow_nan=False)) == {
        "verdict": "proved",
        "layers": [{"name": "conv1", "residual": 0.5}, {"name": "fc", "residual": None}],
        "file": "a/b",
        "scalar": 0.5,
        "tensor": [1, 2],
        "flags": [True, None],
        "kinds": ["clique", "zero"],
        "3": "three",
    }


def test_what_has_no_place_in_json_is_refused() -> None:
    with pytest.raises(TypeError, match="object has no place"):
        to_jsonable(object())


def test_lines_say_how_long_the_rest_takes_and_not_too_often(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("canon.cli.console.time.monotonic", lambda: now[0])
    with Talker().progress("writing model") as advance:
        for second in range(0, 101, 5):
            now[0] = 100.0 + second
            advance(second / 100)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["writing model", *(f"writing model: {n}%, about {100 - n} s left" for n in (20, 40, 60, 80))]
    with Talker(as_json=True).progress("writing model") as advance:
        now[0] += 1000
        advance(0.5)
    assert capsys.readouterr() == ("", "")
