"""`canon claim`: look at claims and openings that somebody shows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from canon._files import check_outputs
from canon.cli.claiming import Policies, Roots
from canon.cli.console import Talker
from canon.cli.exit_codes import ExitCode
from canon.cli.groups import verb
from canon.cli.options import AsJson, Force

app = typer.Typer(no_args_is_help=True, help="Check claims, and open no more of them than is needed.")

ClaimFile = Annotated[Path, typer.Argument(metavar="CLAIM", help="A claim file.")]
OpeningFile = Annotated[Path | None, typer.Option("--opening", dir_okay=False, help="Its opening.")]
WholeOpening = Annotated[Path, typer.Argument(metavar="OPENING", help="The whole opening.")]
Show = Annotated[
    list[str],
    typer.Option("--show", help="What to open: reference, layout_key or watermark_key; repeat it for more."),
]
PartOut = Annotated[Path, typer.Option("--out", "-o", dir_okay=False, help="The opening to write.")]


@app.command()
@verb("canon claim check deposited.claim --opening deposited.opening --root roots.pem --json")
def check(
    claim: ClaimFile,
    opening: OpeningFile = None,
    root: Roots = None,
    policy: Policies = None,
    as_json: AsJson = False,
) -> None:
    """Check a claim's signature, its opening, and its time-stamps against roots that you trust.

    Exit status: 0 all holds, 3 something does not, which is named.
    """
    from canon.claims import Claim, Opening, Trust, inspect

    talker = Talker(as_json)
    shown = None if opening is None else Opening.load(opening)
    found = inspect(Claim.load(claim), shown, Trust.load(root or [], policies=policy or ()))
    talker.result(found, Text("\n".join(_lines(found))))
    raise typer.Exit(ExitCode.INCONCLUSIVE if found["wrong"] else ExitCode.OK)


@app.command()
@verb("canon claim reveal deposited.opening --show reference --out part.opening")
def reveal(
    opening: WholeOpening,
    show: Show,
    out: PartOut,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write an opening that shows only what a verification needs, and keeps the rest to yourself."""
    from canon.claims import Opening

    talker = Talker(as_json)
    check_outputs([out], [opening], force=force)
    whole = Opening.load(opening)
    wanted = [leaf.thing for leaf in whole.leaves if leaf.thing.role in show]
    if len({thing.role for thing in wanted}) != len(set(show)):
        raise typer.BadParameter(f"the opening does not hold all of {', '.join(show)}")
    part = whole.reveal(*wanted)
    part.save(out, force=force)
    roles = [leaf.thing.role for leaf in part.leaves]
    talker.result({"opening": out, "shown": roles}, Text(f"{out}: shows {', '.join(roles)}"))


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [f"owner's key: {found['owner']}"] if "owner" in found else []
    for stamp in found.get("timestamps", ()):
        if stamp["wrong"] is None:
            lines.append(f"time-stamp: {stamp['time']}, {stamp['authority']}, chain ends at {stamp['root']}")
        else:
            lines.append(f"time-stamp: shows nothing; {stamp['wrong']}")
    if "opened" in found:
        lines.append(f"opened: {', '.join(found['opened'])}")
    lines += [f"note: {note}" for note in found["notes"]]
    return lines + [f"wrong: {reason}" for reason in found["wrong"]] + ([] if found["wrong"] else ["all of it holds"])
