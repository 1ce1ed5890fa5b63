"""The `canon` application: global options, the list of verbs, and how errors leave the program."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, final

import typer
from typer.core import TyperGroup

from canon._files import UNFINISHED, WRITTEN
from canon._text import visible
from canon._version import __version__
from canon.cli.attack import attack
from canon.cli.bench import app as bench
from canon.cli.claim import app as claim
from canon.cli.commit import commit
from canon.cli.demo import demo
from canon.cli.evidence import app as evidence
from canon.cli.exit_codes import ExitCode
from canon.cli.groups import plain_help
from canon.cli.inspect import inspect
from canon.cli.locate import locate
from canon.cli.new import app as new
from canon.cli.recover import recover
from canon.cli.register import register
from canon.cli.trials import schemes, try_attack
from canon.cli.verify import verify
from canon.cli.watermark import app as watermark
from canon.errors import CanonError, printable

WRONG_USAGE: type[Exception] = next(one for one in typer.BadParameter.__mro__ if one.__name__ == "ClickException")
"""What typer raises about arguments."""

HINTS: dict[type[OSError], str] = {
    FileNotFoundError: "Check the path; a relative one counts from the folder that you are in",
    PermissionError: "Name another place, or let yourself read and write there",
}
"""What to do next where the system refuses a file."""

NO_MEMORY = re.compile("can't allocate memory|out of memory", re.IGNORECASE)
"""How torch says so."""


@contextmanager
def pipe() -> Iterator[None]:
    """Write out all that is printed; where nobody reads it, end with a status of its own."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError as error:
        # The interpreter flushes standard output once more at exit, and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(ExitCode.BROKEN_PIPE) from error


@final
class PipeGroup(TyperGroup):
    """Verbs whose reader may stop reading, as `head` does: typer would then exit with 1, which here means refuted."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the verb; some have two words."""
        both = " ".join(args[:2])
        return super().resolve_command(ctx, [both, *args[2:]] if both in self.commands else args)

    def make_context(self, *given: Any, **more: Any) -> Any:
        """Read the arguments; help is printed here."""
        with pipe():
            return super().make_context(*given, **more)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb and write out all it printed."""
        with pipe():
            return super().invoke(ctx)


app = typer.Typer(
    name="canon",
    cls=PipeGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass
class Session:
    """What the global options of one run said."""

    debug: bool = False
    """Whether errors show where in the code they arose."""

    as_json: bool = False
    """Whether errors are for a program to read."""

    arguments: tuple[str, ...] = ()
    """What the command was given."""


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"canon {__version__}")
        raise typer.Exit


@app.callback()
def _globals(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="CANON_DEBUG", help="Show log messages, and the traceback of an error.")
    ] = False,
) -> None:
    """Undo neural structural obfuscation of watermarked networks, and prove that it was undone.

    Exit status: 0 done, proved or matches, 1 refuted, 2 wrong usage or input, 3 inconclusive. With --json an error is
    one object on standard output: {"error": {"kind", "message", "where", "hint", "status"}}.
    """
    context.ensure_object(Session).debug = debug
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter("%(name)s: %(message)s"))
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, handlers=[handler])


app.command()(inspect)
app.command()(attack)
app.command("attack test")(try_attack)
app.command()(recover)
app.command()(register)
app.command()(locate)
app.command()(commit)
app.command()(verify)
app.command()(demo)
app.add_typer(evidence, name="evidence")
app.add_typer(watermark, name="watermark")
app.add_typer(claim, name="claim")
app.add_typer(schemes, name="scheme")
app.add_typer(new, name="new")
app.add_typer(bench, name="bench")
plain_help(app)


def execute(application: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run `application` on `arguments` (default: those of the process) and return its exit code.

    Every error becomes lines on standard error that say what failed, where, and what to do next. With `--json` it
    becomes one object on standard output, `{"error": {"kind", "message", "where", "hint", "status"}}`, also for wrong
    usage.
    """
    try:
        with pipe():
            return _execute(application, arguments)
    except typer.Exit as gone:
        return gone.exit_code


def _execute(application: typer.Typer, arguments: Sequence[str] | None) -> int:
    given = tuple(sys.argv[1:] if arguments is None else arguments)
    WRITTEN.clear()
    UNFINISHED.clear()
    session = Session(as_json="--json" in given, arguments=given)
    try:
        status = application(args=arguments, obj=session, prog_name="canon", standalone_mode=False)
        if status == ExitCode.INTERRUPTED:
            return _interrupted()
        return status if isinstance(status, int) else ExitCode.OK
    except SystemExit as stop:
        return _status(stop)
    except (typer.Abort, KeyboardInterrupt):
        return _interrupted()
    except WRONG_USAGE as error:
        return _wrong_usage(session, error)
    except CanonError as error:
        return _complain(session, type(error).__name__, error.message, where=error.where, hint=error.hint)
    except OSError as error:
        hint = next((hint for kind, hint in HINTS.items() if isinstance(error, kind)), None)
        what = error.strerror or str(error)
        return _complain(session, type(error).__name__, _uncapital(what), where=error.filename, hint=hint)
    except Exception as error:
        if isinstance(error, MemoryError) or NO_MEMORY.search(str(error)):
            what = "there is not enough memory for this"
            return _complain(session, "MemoryError", what, hint="Ask for less, such as a smaller --size or --ratio")
        hint = None if session.debug else "This is a fault in Canon; run `canon --debug ...` to see where it arose"
        what = f"unexpected {type(error).__name__}: {error}"
        return _complain(session, "InternalError", what, hint=hint, status=ExitCode.INTERNAL)


def _wrong_usage(session: Session, error: Any) -> ExitCode:
    """What typer raises about arguments, told as every other error; a verb of several words alone shows its help."""
    context: Any = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and not session.as_json:
        print(context.get_help(), file=sys.stderr)
        return ExitCode.USAGE
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    verb = "canon" if context is None else context.command_path
    what = _uncapital(message.removeprefix("Invalid value: "))
    return _complain(session, "UsageError", what, hint=f"See: {verb} --help")


def _uncapital(text: str) -> str:
    return text[:1].lower() + text[1:]


def _interrupted() -> ExitCode:
    """Say what an interrupted command has left: files are written whole or not at all."""
    kept = ", ".join(visible(path) for path in WRITTEN[:3]) + (f" and {len(WRITTEN) - 3} more" if WRITTEN[3:] else "")
    done = "what was finished is kept" if UNFINISHED else "nothing was written"
    print(f"interrupted; kept: {kept}" if kept else f"interrupted; {done}", file=sys.stderr)
    for folder in UNFINISHED:
        print(f"  next:  the same command goes on with what is in {visible(folder)}", file=sys.stderr)
    return ExitCode.INTERRUPTED


def _status(stop: SystemExit) -> int:
    if stop.code is None:
        return ExitCode.OK
    if isinstance(stop.code, int):
        return stop.code
    print(visible(stop.code), file=sys.stderr)
    return ExitCode.USAGE


def _complain(
    session: Session,
    kind: str,
    what: str,
    *,
    where: object = None,
    hint: str | None = None,
    status: ExitCode = ExitCode.USAGE,
) -> ExitCode:
    """Say what failed; text from files cannot move the cursor, hide, or begin a line of its own."""
    if session.debug:
        print(visible(traceback.format_exc(), keep="\n"), file=sys.stderr, end="")
    place = None if where is None else str(where)
    if session.as_json:
        error = {"kind": kind, "message": what, "where": place, "hint": hint, "status": int(status)}
        print(json.dumps({"error": error}, indent=2))
        return status
    first, *more = what.splitlines() or [""]
    print(f"error: {visible(printable(first))}", file=sys.stderr)
    for line in more:
        print(f"         {visible(printable(line))}", file=sys.stderr)
    if place is not None:
        print(f"  where: {visible(place)}", file=sys.stderr)
    if hint is not None:
        print(f"  next:  {visible(printable(hint))}", file=sys.stderr)
    return status


class SafeFormatter(logging.Formatter):
    """Log messages, whatever they quote, as lines of plain text."""

    def format(self, record: logging.LogRecord) -> str:
        """One message."""
        return visible(super().format(record), keep="\n")
