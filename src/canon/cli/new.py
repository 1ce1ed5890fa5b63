"""`canon new`: a package to begin a scheme or an attack with."""

from __future__ import annotations

import keyword
import tempfile
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.text import Text

from canon._files import OutputError
from canon.cli.console import Talker
from canon.cli.groups import verb
from canon.cli.options import AsJson

app = typer.Typer(no_args_is_help=True, help="Begin a package with a scheme or an attack of your own.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="What it is called, as my_scheme; the package's name too.")]
Folder = Annotated[Path, typer.Option("--in", file_okay=False, help="The folder to make the package in.")]


@app.command()
@verb("canon new scheme column_sums", "canon new scheme row_sums --json")
def scheme(name: Name, folder: Folder = Path(), as_json: AsJson = False) -> None:
    """Write a package with a small scheme that works, its test, and its entry point."""
    _write("scheme", name, folder, as_json)


@app.command()
@verb("canon new attack twins", "canon new attack other_twins --json")
def attack(name: Name, folder: Folder = Path(), as_json: AsJson = False) -> None:
    """Write a package with a small attack that works, its test, and its entry point."""
    _write("attack", name, folder, as_json)


def _write(kind: Literal["scheme", "attack"], name: str, folder: Path, as_json: bool) -> None:
    from canon import attacks, watermarks

    if not name.isidentifier() or keyword.iskeyword(name) or not name.isascii() or name != name.lower():
        raise typer.BadParameter(f"'{name}' is no name for a package; write it as my_{kind}")
    if name in (attacks if kind == "attack" else watermarks).names() or find_spec(name) is not None:
        raise typer.BadParameter(f"'{name}' is taken by another {kind} or Python module")
    if not folder.is_dir():
        raise OutputError("the folder does not exist", where=str(folder), hint="Create it first")
    target = folder / name
    if target.exists():
        raise OutputError("there is something of that name already", where=str(target), hint="Choose another name")
    words = {"@name@": name, "@Class@": "".join(part.title() for part in name.split("_"))}
    files = {
        "pyproject.toml": f"{kind}_project",
        f"{name}.py": kind,
        f"test_{name}.py": f"{kind}_test",
        "README.md": f"{kind}_readme",
    }
    with tempfile.TemporaryDirectory(prefix=".canon-", dir=folder) as place:
        whole = Path(place) / name
        whole.mkdir()
        for file, template in files.items():
            (whole / file).write_text(_filled(template, words), encoding="utf-8")
        whole.rename(target)
    written = [str(target / file) for file in files]
    what = f"cd {target} && pip install -e . && canon {kind} test {name}"
    Talker(as_json).result(
        {"files": written, "next": what}, Text("\n".join(["Written:", *written, "", f"Next: {what}"]))
    )


def _filled(template: str, words: dict[str, str]) -> str:
    text = (resources.files("canon.cli") / "templates" / f"{template}.txt").read_text(encoding="utf-8")
    for word, value in words.items():
        text = text.replace(word, value)
    return text
