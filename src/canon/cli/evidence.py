"""`canon evidence`: what can be done with a document that a verification wrote. One file for each verb."""

from __future__ import annotations

import typer

from canon.cli.evidence_check import check
from canon.cli.evidence_report import report
from canon.cli.evidence_rerun import rerun

app = typer.Typer(no_args_is_help=True, help="Check evidence, make its page again, repeat its run.")
app.command()(check)
app.command()(report)
app.command()(rerun)
