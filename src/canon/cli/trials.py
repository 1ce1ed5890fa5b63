"""`canon scheme test` and `canon attack test`: put a scheme or an attack on trial."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from canon.cli import completion
from canon.cli.attack import Ratio
from canon.cli.console import Talker, table
from canon.cli.groups import verb
from canon.cli.models import import_from_here
from canon.cli.options import AsJson
from canon.cli.watermark import SchemeName

if TYPE_CHECKING:
    from canon.api.trials import Disguise, Survival

schemes = typer.Typer(no_args_is_help=True, help="Put watermarking schemes on trial.")

Alone = Annotated[bool, typer.Option("--alone", help="Leave out Canon's own, which take some minutes.")]
AttackName = Annotated[
    str,
    typer.Argument(
        metavar="ATTACK", autocompletion=completion.operations, help="An attack's name, or package.module:Class."
    ),
]


@schemes.callback()
def _group() -> None:
    """Keep `test` a word of its own: typer makes a lone verb the whole command."""


@schemes.command("test")
@verb("canon scheme test uchida17", "canon scheme test uchida17 --alone --json")
def try_scheme(scheme: SchemeName, alone: Alone = False, as_json: AsJson = False) -> None:
    """Check the promises of SCHEME, and show what of its mark survives which attack, beside Canon's own schemes.

    SCHEME is a scheme's name, or package.module:Class, which is imported. A small network learns scikit-learn's digits
    with the mark in it; attacks hide it, and recovery and alignment bring it back.
    """
    from canon import watermarks
    from canon.api.trials import conforms, survival

    talker = Talker(as_json)
    mine = watermarks.get(watermarks.add(_class_of(scheme)).name if ":" in scheme else scheme)
    with talker.status(f"checking the promises of {mine.name}"):
        marked = conforms(mine)
    rows = [survival(mine, marked)]
    for name in () if alone else (name for name in watermarks.names() if name != mine.name):
        with talker.status(f"beside it: {name}"):
            rows.append(survival(watermarks.get(name)))
    text = Text(f"{mine.name} keeps every promise of the interface.\n\nShare of the bits that is read:")
    talker.result({"conforms": True, "survival": rows}, Group(text, _survivals(rows)))


def _survivals(rows: list[Survival]) -> Any:
    """A row for every scheme: the mark as it is, under attack, and brought back."""
    found = table("scheme", "clean", *rows[0].attacked, "recovered")
    for row in rows:
        shares = (row.clean, *row.attacked.values(), min(row.recovered.values()))
        found.add_row(row.scheme, *(f"{share:.2f}" for share in shares))
    return found


@verb("canon attack test nso_zero --alone", "canon attack test dead_range --alone --ratio 0.5 --json")
def try_attack(attack: AttackName, ratio: Ratio = 0.3, alone: Alone = False, as_json: AsJson = False) -> None:
    """Show what ATTACK does to a network, and whether recovery undoes it, beside Canon's own attacks.

    In float64, over three seeds: how far outputs move, whether recovery brings all shapes back from the attacked model
    alone, and what is found of the owner's network where that is at hand.
    """
    from canon import attacks
    from canon.api.trials import disguise
    from canon.attacks.pipeline import check_ops

    talker = Talker(as_json)
    mine = attacks.add(_class_of(attack)).name if ":" in attack else attack
    check_ops([mine])
    rows = []
    for name in [mine] if alone else [mine, *(name for name in attacks.names() if name != mine)]:
        with talker.status(f"trying {name}"):
            rows.append(disguise(name, ratio))
    talker.result({"attacks": rows}, Group(Text(f"ratio {ratio}, three seeds, float64:"), _disguises(rows)))


def _disguises(rows: list[Disguise]) -> Any:
    """A row for every attack."""
    titles = ("attack", "outputs move", "size", "recovered", "found", "answer")
    found = table(*titles, words=("attack", "answer"))
    for row in rows:
        back = "all shapes" if row.recovered else "no"
        found.add_row(row.attack, f"{row.drift:.0e}", f"{row.growth:.2f}×", back, f"{row.coverage:.1%}", row.answer)
    return found


def _class_of(name: str) -> Any:
    """The class that is named as `package.module:Class`."""
    module, _, attribute = name.partition(":")
    import_from_here()
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise typer.BadParameter(f"'{name}' cannot be imported: {error}") from error
