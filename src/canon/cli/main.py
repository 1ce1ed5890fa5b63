"""The `canon` application: global options, the list of verbs, and how errors leave the program."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, final

import typer
from typer.core import TyperGroup

from canon._version import __version__
from canon.cli.attack import EXAMPLES as ATTACK_EXAMPLES
from canon.cli.attack import attack
from canon.cli.bench import app as bench
from canon.cli.demo import demo
from canon.cli.exit_codes import ExitCode
from canon.cli.inspect import EXAMPLES as INSPECT_EXAMPLES
from canon.cli.inspect import inspect
from canon.cli.recover import EXAMPLES as RECOVER_EXAMPLES
from canon.cli.recover import recover
from canon.cli.register import EXAMPLES as REGISTER_EXAMPLES
from canon.cli.register import register
from canon.cli.verify import EXAMPLES as VERIFY_EXAMPLES
from canon.cli.verify import verify
from canon.cli.watermark import app as watermark
from canon.errors import CanonError, printable


@final
class PipeGroup(TyperGroup):
    """Verbs whose reader may stop reading, as `head` does: typer would then exit with 1, which here means refuted."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb and write out all it printed."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            # The interpreter flushes standard output once more at exit, and would complain there.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(ExitCode.BROKEN_PIPE) from error
        return result


app = typer.Typer(
    name="canon",
    cls=PipeGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass
class Session:
    """What the global options of one run said."""

    debug: bool = False
    """Whether errors show where in the code they arose."""


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

    Exit status: 0 done or proved, 1 refuted, 2 wrong usage or input, 3 inconclusive.
    """
    context.ensure_object(Session).debug = debug
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, format="%(name)s: %(message)s")


app.command(epilog=INSPECT_EXAMPLES)(inspect)
app.command(epilog=ATTACK_EXAMPLES)(attack)
app.command(epilog=RECOVER_EXAMPLES)(recover)
app.command(epilog=REGISTER_EXAMPLES)(register)
app.command(epilog=VERIFY_EXAMPLES)(verify)
app.command()(demo)
app.add_typer(watermark, name="watermark")
app.add_typer(bench, name="bench")


def execute(application: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run `application` on `arguments` (default: those of the process) and return its exit code.

    Every error becomes lines on standard error that say what failed, where, and what to do next.
    """
    session = Session()
    try:
        application(args=arguments, obj=session, prog_name="canon")
    except SystemExit as stop:
        return _status(stop)
    except CanonError as error:
        _complain(session, error.message, where=error.where, hint=error.hint)
        return ExitCode.USAGE
    except OSError as error:
        _complain(session, error.strerror or str(error), where=error.filename)
        return ExitCode.USAGE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        hint = None if session.debug else "This is a fault in Canon; run `canon --debug ...` to see where it arose"
        _complain(session, f"unexpected {type(error).__name__}: {error}", hint=hint)
        return ExitCode.INTERNAL
    return ExitCode.OK


def _status(stop: SystemExit) -> int:
    if stop.code is None:
        return ExitCode.OK
    if isinstance(stop.code, int):
        return stop.code
    print(stop.code, file=sys.stderr)
    return ExitCode.USAGE


def _complain(session: Session, what: str, *, where: str | None = None, hint: str | None = None) -> None:
    if session.debug:
        traceback.print_exc(file=sys.stderr)
    print(f"error: {printable(what)}", file=sys.stderr)
    if where is not None:
        print(f"  where: {printable(where)}", file=sys.stderr)
    if hint is not None:
        print(f"  next:  {printable(hint)}", file=sys.stderr)
