"""`canon attack test`: put an attack on trial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from canon.cli import completion
from canon.cli.attack import Ratio
from canon.cli.console import Talker
from canon.cli.groups import verb
from canon.cli.options import AsJson
from canon.cli.plugins import attack_of

if TYPE_CHECKING:
    from canon.api.trials import Disguise


Alone = Annotated[bool, typer.Option("--alone", help="Leave out Canon's own attacks, which take some minutes.")]
AttackName = Annotated[
    str,
    typer.Argument(
        metavar="ATTACK", autocompletion=completion.operations, help="An attack's name, or package.module:Class."
    ),
]


@verb("canon attack test nso_zero --alone", "canon attack test dead_range --alone --ratio 0.5 --json")
def try_attack(attack: AttackName, ratio: Ratio = 0.3, alone: Alone = False, as_json: AsJson = False) -> None:
    """Show what ATTACK does to a network, and whether recovery undoes it, beside Canon's own attacks.

    In float64, over three seeds: how far outputs move, whether recovery brings all shapes back from the attacked model
    alone, and what is found of the owner's network where that is at hand.
    """
    from canon.api.trials import disguise
    from canon.attacks import names

    talker = Talker(as_json)
    mine = attack_of(attack)
    rows = []
    for name in [mine] if alone else [mine, *(name for name in names() if name != mine)]:
        with talker.status(f"trying {name}"):
            rows.append(disguise(name, ratio))
    talker.result({"attacks": rows}, Group(Text(f"ratio {ratio}, three seeds, float64:"), matrix(rows)))


def matrix(rows: list[Disguise]) -> Table:
    """A row for every attack."""
    table = Table(box=None, pad_edge=False)
    for head in ("attack", "outputs move", "size", "recovered", "found", "answer"):
        table.add_column(head, justify="left" if head in ("attack", "answer") else "right", overflow="fold")
    for row in rows:
        back = "all shapes" if row.recovered else "no"
        table.add_row(row.attack, f"{row.drift:.0e}", f"{row.growth:.2f}×", back, f"{row.coverage:.1%}", row.answer)
    return table
