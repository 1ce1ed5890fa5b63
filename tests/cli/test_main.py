"""How a run of `canon` ends: what it prints, and with which exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import canon
from canon.cli.exit_codes import ExitCode
from canon.cli.main import Session, app, execute
from canon.errors import CanonError


def failing(error: BaseException, *, debug: bool = False) -> typer.Typer:
    """An application whose one verb raises `error`."""
    application = typer.Typer(pretty_exceptions_enable=False)

    @application.command()
    def verb(context: typer.Context) -> None:
        context.ensure_object(Session).debug = debug
        raise error

    return application


def test_a_canon_error_says_what_where_and_what_next(capsys: pytest.CaptureFixture[str]) -> None:
    error = CanonError("the example does not fit", where="conv1", hint="Pass three channels")
    assert execute(failing(error), []) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: the example does not fit\n  where: conv1\n  next:  Pass three channels\n"


def test_a_canon_error_without_details_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(failing(CanonError("no")), []) == ExitCode.USAGE
    assert capsys.readouterr().err == "error: no\n"


def test_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(failing(CanonError("no"), debug=True), []) == ExitCode.USAGE
    text = capsys.readouterr().err
    assert text.startswith("Traceback")
    assert text.endswith("error: no\n")


def test_a_fault_of_ours_never_looks_like_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    status = execute(failing(ZeroDivisionError("by zero")), [])
    assert status == ExitCode.INTERNAL
    assert status not in {ExitCode.OK, ExitCode.REFUTED, ExitCode.INCONCLUSIVE}
    text = capsys.readouterr().err
    assert "unexpected ZeroDivisionError: by zero" in text
    assert "--debug" in text
    assert "Traceback" not in text


def test_a_missing_file_is_the_users_to_mend(capsys: pytest.CaptureFixture[str]) -> None:
    error = FileNotFoundError(2, "No such file or directory", "suspect.safetensors")
    assert execute(failing(error), []) == ExitCode.USAGE
    assert capsys.readouterr().err == (
        "error: no such file or directory\n  where: suspect.safetensors\n"
        "  next:  Check the path; a relative one counts from the folder that you are in\n"
    )


def test_an_interrupt_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(failing(KeyboardInterrupt()), []) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("code", [ExitCode.OK, ExitCode.REFUTED, ExitCode.INCONCLUSIVE])
def test_a_verb_chooses_its_exit_code(code: ExitCode) -> None:
    assert execute(failing(typer.Exit(code)), []) == code


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(app, ["--version"]) == ExitCode.OK
    assert capsys.readouterr().out == f"canon {canon.__version__}\n"


@pytest.mark.parametrize(
    ("words", "said", "verb"),
    [
        (["inspekt"], "no such command 'inspekt'. Did you mean 'inspect'?", "canon"),
        (["attack", "resnet18", "--raito", "1"], "no such option: --raito (Possible options: --ratio)", "canon attack"),
        (["attack", "resnet18", "-o", "x.pt", "--seed", str(2**63)], "invalid value for '--seed'", "canon attack"),
        (
            ["attack", "resnet18", "-o", "x.pt", "--size", "-3"],
            "'-3' is no size; write 224 or 3x224x224",
            "canon attack",
        ),
        (["inspect", "-"], "'-' is no file", "canon inspect"),
        (["register", "resnet18", "--out", "-"], "'-' is no file", "canon register"),
    ],
)
def test_wrong_usage_is_told_as_every_other_error(
    words: list[str], said: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(app, words) == ExitCode.USAGE
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith(f"error: {said}")
    assert last == f"  next:  See: {verb} --help"


def test_too_little_memory_is_no_fault_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    error = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 2 bytes")
    assert execute(failing(error), []) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("error: there is not enough memory for this\n")


def test_a_program_without_outputs_still_ends_with_its_own_status(tmp_path: Path) -> None:
    script = "import os; os.execv(sys.executable, [sys.executable, '-m', 'canon.cli', 'inspekt'])"
    script = f"import os, sys; os.close(1); os.close(2); {script.removeprefix('import os; ')}"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == ExitCode.USAGE


def test_the_module_runs() -> None:
    done = subprocess.run([sys.executable, "-m", "canon.cli", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: canon" in done.stdout


SLOW_VERB = """
import sys, time
import typer
from canon._files import atomic_path
from canon.cli.main import execute

application = typer.Typer()

@application.command()
def verb(target: str) -> None:
    with atomic_path(target) as path:
        path.write_text("hal")
        print("writing", flush=True)
        time.sleep(600)

sys.exit(execute(application))
"""


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Where tests run in the background, processes are born deaf to SIGINT unless their parent listens to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_leaves_nothing_half_written(tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    with subprocess.Popen([sys.executable, "-c", SLOW_VERB, str(target)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("stop", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_real_verb_that_is_stopped_leaves_nothing(stop: signal.Signals, status: int, tmp_path: Path) -> None:
    """Not a verb made for the test: `canon attack` in the midst of its work."""
    out, log = tmp_path / "hidden.safetensors", tmp_path / "hidden.json"
    verb = ["attack", "resnet18", "-o", str(out), "--log", str(log), "--ratio", "1.0"]
    started = [sys.executable, "-c", "from canon.cli import run; run()", *verb]
    with subprocess.Popen(started, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "attacking resnet18\n"
        process.send_signal(stop)
        assert process.wait(timeout=300) == status
        assert "Traceback" not in process.stderr.read()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tell", ['print("more")', 'Talker().result({}, "more")', "raise CanonError('more')"])
def test_a_reader_that_stops_reading_is_no_verdict(tell: str) -> None:
    """rich and typer would both end with 1, which here means refuted."""
    script = f"""
import sys, typer
from canon.cli.console import Talker
from canon.cli.main import PipeGroup, execute
from canon.errors import CanonError

application = typer.Typer(cls=PipeGroup)

@application.callback()
def options() -> None: ...

@application.command()
def verb(as_json: bool = typer.Option(False, "--json")) -> None:
    sys.stdin.read()
    {tell}

sys.exit(execute(application, ["verb", "--json"]))
"""
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=writing, stderr=subprocess.PIPE
    ) as process:
        os.close(writing)
        os.close(reading)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == ExitCode.BROKEN_PIPE
    assert errors == b""


def test_without_the_extra_one_line_says_how_to_get_it() -> None:
    script = "import sys; sys.modules['typer'] = None; from canon.cli import run; run()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.USAGE
    assert done.stderr == "error: 'typer' is not installed; run: pip install 'canon-nso[cli]'\n"
