"""The `canon` command: the only part that reads arguments, prints, and chooses exit codes."""

from __future__ import annotations

import signal
import sys


def run() -> None:
    """Run the command line and exit. Without the `cli` extra, say in one line how to get it."""
    # A job that is told to end cleans up like one that is interrupted.
    signal.signal(signal.SIGTERM, _end)
    try:
        from canon.cli.main import app, execute
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        print("error: 'typer' is not installed; run: pip install 'canon-nso[cli]'", file=sys.stderr)
        sys.exit(2)
    sys.exit(execute(app))


def _end(*_: object) -> None:
    sys.exit(143)
