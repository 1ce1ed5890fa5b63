"""`canon scheme`: put a watermarking scheme on trial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from canon.cli.console import Talker
from canon.cli.groups import verb
from canon.cli.options import AsJson
from canon.cli.plugins import scheme_of
from canon.cli.watermark import SchemeName

if TYPE_CHECKING:
    from canon.api.trials import Survival

app = typer.Typer(no_args_is_help=True, help="Put watermarking schemes on trial.")

Alone = Annotated[bool, typer.Option("--alone", help="Leave out Canon's own schemes, which take some minutes.")]


@app.callback()
def _group() -> None:
    """Keep `test` a word of its own: typer makes a lone verb the whole command."""


@app.command("test")
@verb("canon scheme test uchida17", "canon scheme test uchida17 --alone --json")
def try_scheme(scheme: SchemeName, alone: Alone = False, as_json: AsJson = False) -> None:
    """Check the promises of SCHEME, and show what of its mark survives which attack, beside Canon's own schemes.

    SCHEME is a scheme's name, or package.module:Class, which is imported. A small network learns scikit-learn's digits
    with the mark in it; attacks hide it, and recovery and alignment bring it back.
    """
    from canon import watermarks
    from canon.api.trials import conforms, survival

    talker = Talker(as_json)
    mine = scheme_of(scheme)
    with talker.status(f"checking the promises of {mine.name}"):
        marked = conforms(mine)
    rows = [survival(mine, marked)]
    for name in () if alone else (name for name in watermarks.names() if name != mine.name):
        with talker.status(f"beside it: {name}"):
            rows.append(survival(watermarks.get(name)))
    text = Text(f"{mine.name} keeps every promise of the interface.\n\nShare of the bits that is read:")
    talker.result({"conforms": True, "survival": rows}, Group(text, matrix(rows)))


def matrix(rows: list[Survival]) -> Table:
    """A row for every scheme: the mark as it is, under attack, and brought back."""
    table = Table(box=None, pad_edge=False)
    for head in ("scheme", "clean", *rows[0].attacked, "recovered"):
        table.add_column(head, justify="left" if head == "scheme" else "right", overflow="fold")
    for row in rows:
        hidden = (f"{share:.2f}" for share in row.attacked.values())
        table.add_row(row.scheme, f"{row.clean:.2f}", *hidden, f"{min(row.recovered.values()):.2f}")
    return table
