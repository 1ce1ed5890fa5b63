"""The `canon` command: the only part that reads arguments, prints, and chooses exit codes."""

from __future__ import annotations

import os
import signal
import sys
import traceback


def run() -> None:
    """Run the command line and exit. Without the `cli` extra, say in one line how to get it."""
    # A job that is told to end cleans up like one that is interrupted.
    signal.signal(signal.SIGTERM, _end)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 -- it stays open until the end
    try:
        from canon.cli.main import app, execute

        sys.exit(execute(app))
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in ("typer", "rich"):
            print(f"error: '{error.name}' is not installed; run: pip install 'canon-nso[cli]'", file=sys.stderr)
            sys.exit(2)
        traceback.print_exc()
        sys.exit(70)  # Python's own 1 would mean refuted


def _end(*_: object) -> None:
    sys.exit(143)
