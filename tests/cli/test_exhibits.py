"""Exhibits are safe: no output is an input, no two outputs are one file, and nothing in a file can fool a terminal."""

from __future__ import annotations

import json
import os
from io import StringIO
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text
from safetensors.torch import save_file

import canon
from canon._files import OutputError, check_outputs
from canon.cli.console import SafeConsole, Talker
from canon.cli.exit_codes import ExitCode
from canon.cli.main import app, execute
from tests.verify.small import example, tiny

ARCH = ("--arch", "tests.verify.small:tiny", "--size", "3x8x8")


def run(*arguments: object) -> int:
    return execute(app, [*map(str, arguments)])


@pytest.fixture
def owner(tmp_path: Path) -> Path:
    path = tmp_path / "owner.safetensors"
    canon.save(tiny(), path)
    return path


NAMES = ("itself", "dotted", "symbolic link", "hard link", "linked folder")


def alias(path: Path, kind: str) -> Path:
    """Another name of a file."""
    other = path.with_name("alias.safetensors")
    if kind == "symbolic link":
        other.symlink_to(path)
    elif kind == "hard link":
        os.link(path, other)
    elif kind == "linked folder":
        path.with_name("folder").symlink_to(path.parent)
        other = path.with_name("folder") / path.name
    elif kind == "dotted":
        other = path.parent / ".." / path.parent.name / path.name
    else:
        other = path
    return other


VERBS = {
    "attack out": ("attack", "{in}", "-o", "{out}"),
    "attack log": ("attack", "{in}", "-o", "{new}.safetensors", "--log", "{out}"),
    "recover out": ("recover", "{in}", "-o", "{out}"),
    "recover report": ("recover", "{in}", "-o", "{new}.safetensors", "--report", "{out}"),
    "recover widths": ("recover", "{other}", "-o", "{out}", "--widths", "{in}"),
    "locate": ("locate", "{in}", "-r", "{other}", "-o", "{out}"),
    "register": ("register", "{in}", "-o", "{out}"),
    "verify suspect": ("verify", "{in}", "-r", "{other}", "-o", "{out}"),
    "verify reference": ("verify", "{other}", "-r", "{in}", "-o", "{out}"),
    "verify report": ("verify", "{other}", "-r", "{in}", "-o", "{new}.json", "--report", "{out}"),
    "verify ancestor": ("verify", "{other}", "-r", "{other}", "--ancestor", "{in}", "-o", "{out}"),
    "verify key": ("verify", "{other}", "-r", "{other}", "-w", "{in}", "-o", "{out}"),
    "attack example": ("attack", "{other}", "-o", "{out}", "--example", "{in}"),
    "verify probes": ("verify", "{other}", "-r", "{other}", "--probes", "{in}", "-o", "{out}"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", ["itself", "hard link"])
def test_no_output_is_an_input(
    verb: str, kind: str, owner: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.safetensors"
    canon.save(tiny(1), other)
    before, stat = owner.read_bytes(), owner.stat()
    names = {"in": owner, "out": alias(owner, kind), "new": tmp_path / "new", "other": other}
    assert run(*(word.format(**names) for word in VERBS[verb]), *ARCH, "--force") == ExitCode.USAGE
    assert "the output is an input as well" in capsys.readouterr().err
    assert (owner.read_bytes(), owner.stat().st_ino) == (before, stat.st_ino)
    assert not list(tmp_path.glob("new*"))


@pytest.mark.parametrize(
    "words",
    [
        ("commit", "{in}", "--new-key", "new.pem", "-o", "{in}", *ARCH),
        ("commit", "-w", "{in}", "--new-key", "new.pem", "-o", "new.claim", "--opening", "{in}"),
        ("commit", "-l", "owner.key", "--key", "{in}", "-o", "new.claim", "--request", "{in}"),
        ("commit", "--attach", "{in}", "--request", "{in}", "-o", "owner.claim"),
        ("claim", "reveal", "{in}", "--show", "reference", "-o", "{in}"),
        (
            "watermark",
            "embed",
            "uchida17",
            "resnet18",
            "--derive",
            "{in}",
            "--claim",
            "x",
            "-o",
            "new.pt",
            "-k",
            "{in}",
        ),
    ],
)
def test_no_secret_is_written_over(
    words: tuple[str, ...], owner: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(owner.parent)
    before = owner.read_bytes()
    assert run(*(word.format(**{"in": owner}) for word in words), "--force") == ExitCode.USAGE
    assert "the output is an input as well" in capsys.readouterr().err
    assert owner.read_bytes() == before
    assert not [*owner.parent.glob("new*")]


@pytest.mark.parametrize("words", [("inspect", ""), ("verify", "{in}", "-r", ""), ("bench", "run", "quick", "--out=")])
def test_an_empty_argument_is_no_folder(
    words: tuple[str, ...], owner: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*(word.format(**{"in": owner}) for word in words)) == ExitCode.USAGE
    assert "is given an empty text" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("force", [False, True])
def test_whatever_an_input_is_called(kind: str, force: bool, owner: Path) -> None:
    other = alias(owner, kind)
    for output, given in ((other, owner), (owner, other)):
        with pytest.raises(OutputError, match="an input as well"):
            check_outputs([output], [given], force=force)


def test_a_file_in_an_input_folder_is_an_input(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    image = tmp_path / "images" / "a.png"
    image.write_bytes(b"a")
    with pytest.raises(OutputError, match="an input as well"):
        check_outputs([image], [tmp_path / "images"], force=True)
    check_outputs([tmp_path / "images" / "page.html"], [tmp_path / "images"])


def test_parts_of_an_input_are_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The part is named inside of the index, and yet it may not be overwritten; its digest is in the evidence."""
    names = [*tiny().state_dict()]
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for part, held in parts.items():
        save_file({name: tiny().state_dict()[name] for name in held}, tmp_path / part)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: part for part, held in parts.items() for name in held}}))
    canon.save(tiny(), tmp_path / "owner.safetensors")
    before = (tmp_path / "b.safetensors").read_bytes()
    arguments = ("verify", index, "-r", tmp_path / "owner.safetensors", *ARCH)
    assert run(*arguments, "-o", tmp_path / "b.safetensors", "--force") == ExitCode.USAGE
    assert "an input as well" in capsys.readouterr().err
    assert (tmp_path / "b.safetensors").read_bytes() == before
    assert run(*arguments, "-o", tmp_path / "e.json", "--json") == ExitCode.OK
    assert {"sha256", "sha256 of a.safetensors", "sha256 of b.safetensors"} <= set(
        json.loads(capsys.readouterr().out)["inputs"]["suspect"]
    )


def test_external_data_is_an_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = pytest.importorskip("onnx")
    canon.save(tiny(), tmp_path / "inside.onnx", example=example())
    model = onnx.load(tmp_path / "inside.onnx")
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    before = (tmp_path / "weights.bin").read_bytes()
    assert before
    arguments = ("verify", tmp_path / "model.onnx", "-r", tmp_path / "inside.onnx")
    assert run(*arguments, "-o", tmp_path / "weights.bin", "--force") == ExitCode.USAGE
    assert "an input as well" in capsys.readouterr().err
    assert (tmp_path / "weights.bin").read_bytes() == before
    assert run(*arguments, "-o", tmp_path / "e.json", "--json") == ExitCode.OK
    first = json.loads(capsys.readouterr().out)["inputs"]["suspect"]
    assert len(first["sha256 of weights.bin"]) == 64


@pytest.mark.parametrize(
    "words",
    [
        ("attack", "{in}", "-o", "{same}.pt2", "--log", "{same}.pt2"),
        ("recover", "{in}", "-o", "{same}.pt2", "--report", "{folder}/../{name}.pt2"),
        ("verify", "{in}", "-r", "{other}", "-o", "{same}.html", "--report", "{same}.html"),
    ],
)
def test_two_outputs_are_not_one_file(
    words: tuple[str, ...], owner: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    canon.save(tiny(1), tmp_path / "other.safetensors")
    names = {
        "in": owner,
        "same": tmp_path / "same",
        "folder": tmp_path / "folder",
        "name": "same",
        "other": tmp_path / "other.safetensors",
    }
    assert run(*(word.format(**names) for word in words), *ARCH, "--force") == ExitCode.USAGE
    assert "two outputs are one file" in capsys.readouterr().err
    assert not list(tmp_path.glob("same*"))


@pytest.mark.parametrize("place", ["missing/e.json", "folder", "owner.safetensors/e.json", f"{'n' * 300}.json", "pipe"])
def test_impossible_places_are_refused_before_any_work(
    place: str, owner: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    suspect = tmp_path / "broken.safetensors"
    suspect.write_bytes(b"not even read")
    out = tmp_path / place
    assert run("verify", suspect, "-r", owner, "-o", out, "--force", *ARCH) == ExitCode.USAGE
    text = capsys.readouterr().err
    assert "output" in text or "a directory" in " ".join(text.replace("│", " ").split())
    assert "damaged" not in text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="cannot be written"):
        check_outputs([tmp_path / "e.json"])


EVIL = "conv\x1b[2J\x1b]0;owned\x07\u202egnp\u2066\x9b31m\r\x00"


def safe(text: str) -> bool:
    return not any((ord(letter) < 32 and letter not in "\n\x1b") or letter in "\u202e\u2066\x9b\x7f" for letter in text)


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_printed_obeys_a_file(terminal: bool) -> None:
    out, err = StringIO(), StringIO()
    talker = Talker(
        out=SafeConsole(file=out, force_terminal=terminal, width=200),
        err=SafeConsole(file=err, force_terminal=terminal),
    )
    table = Table(EVIL.replace("[", "("), box=None)
    table.add_row(Text(EVIL))
    for shown in (Text(EVIL, style="bold"), Text.assemble((EVIL, "red"), EVIL), table):
        talker.result({}, shown)
    talker.note(EVIL)
    with talker.progress(EVIL) as advance:
        advance(1.0)
    with talker.status(EVIL):
        pass
    for text in (out.getvalue(), err.getvalue()):
        assert safe(text.replace("\r", "") if terminal else text), repr(text)
        assert "\x1b[2J\x1b]0" not in text
        assert "\x1b]0;owned" not in text
        assert r"\u202egnp" in text


def test_names_in_files_cannot_fool_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "evil.safetensors"
    save_file({EVIL: tiny().state_dict()["fc.weight"]}, path)
    assert run("inspect", path) == ExitCode.OK
    text = capsys.readouterr().out
    assert safe(text)
    assert "\x1b" not in text
    assert r"conv\u001b[2J" in text
    assert run("inspect", path, "--json") == ExitCode.OK
    text = capsys.readouterr().out
    assert text.isascii()
    assert "\x1b" not in text
    assert EVIL in json.loads(text)["shapes"]
    assert run("verify", path, "-r", path, "-o", tmp_path / "e.json", *ARCH) == ExitCode.USAGE
    text = capsys.readouterr().err
    assert "\x1b" not in text
    assert safe(text)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("inspect", "no-such.safetensors"), "FileFormatError"),
        (("inspect",), "UsageError"),
        (("verify", "a.safetensors", "--tolerance", "much"), "UsageError"),
        (("evidence", "check", "no-such.json"), "FileNotFoundError"),
        (("attack", "resnet18", "-o", "no-such-folder/x.pt2"), "OutputError"),
        (("no-such-verb",), "UsageError"),
    ],
)
def test_errors_are_json_where_json_is_asked_for(
    arguments: tuple[str, ...], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments, "--json") == ExitCode.USAGE
    captured = capsys.readouterr()
    error = json.loads(captured.out)["error"]
    assert error.keys() == {"kind", "message", "where", "hint", "status"}
    assert (error["kind"], error["status"]) == (kind, 2)
    assert captured.err == ""
    assert run(*arguments) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err
