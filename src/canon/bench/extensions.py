"""What the benchmark can do: Canon's own kinds of cases, and what other packages bring.

A package names a module under the entry point group `canon.bench`, and that module calls `extend` when it is imported:

    [project.entry-points."canon.bench"]
    mine = "my_package"

A kind of case lies in three places of its package, and is imported when it is needed. That of `tolerance` is the class
`cases.Tolerance`, the function `measures.tolerance.measure_tolerance` of a case, a `Setup` and a `Sheet`, which it
fills, and the function `tables.tolerance.tolerance_blocks` of a suite's name and records, which shows them on a page.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pkgutil import resolve_name
from typing import Any, Final

from canon._plugins import entry_points
from canon.errors import BenchError, choices

GROUP: Final = "canon.bench"
SUFFIX: Final = ".toml"
"""Of the files of suites."""

PARTS: Final = {
    "case": "cases:{title}",
    "measure": "measures.{kind}:measure_{kind}",
    "blocks": "tables.{kind}:{kind}_blocks",
}
"""Where the parts of a kind of case lie."""


@dataclass(frozen=True)
class Extension:
    """What a package brings; functions and classes are named as `module:attribute`."""

    package: str
    kinds: tuple[str, ...] = ()
    """Kinds of cases."""

    suites: str | None = None
    """A package whose TOML files are suites."""

    blocks: Mapping[str, str] = field(default_factory=dict)
    """What shows a kind, where that is not in a file of its own; also a kind of another package, instead."""

    pages: str | None = None
    """A function that makes the first pages of a report; see `canon.bench.tables.index.first_pages`."""

    remark: str | None = None
    """A function of a suite's records that gives the first line of their page, or None."""

    html: str | None = None
    """A function of pages and a title that puts all into one HTML file."""

    mlflow: str | None = None
    """A function of a folder of records and the names of suites that logs them to MLflow, and says how many."""

    executors: Mapping[str, str] = field(default_factory=dict)
    """Where cases can be measured beside this machine's processes: classes that take jobs, address and device."""


_EXTENSIONS: Final = {"canon.bench": Extension("canon.bench", ("training", "recovery"))}


def extend(extension: Extension) -> None:
    """Make an extension known to this process; a second one of the same package takes the place of the first."""
    for other in _EXTENSIONS.values():
        twice = set(other.kinds) & set(extension.kinds)
        if twice and other.package != extension.package:
            raise BenchError(f"{other.package} and {extension.package} both have the kinds of cases {sorted(twice)}")
    _EXTENSIONS[extension.package] = extension


def extensions() -> tuple[Extension, ...]:
    """Canon's own first, then those of installed packages."""
    _load()
    return tuple(_EXTENSIONS.values())


@functools.cache
def _load() -> None:
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except ImportError as error:
            raise BenchError(
                f"an extension of the benchmark cannot be imported: {error}",
                where=entry.value,
                hint="Install it again, or uninstall it",
            ) from error


def kinds() -> dict[str, str]:
    """Every kind of case, with the package that brings it."""
    return {kind: extension.package for extension in extensions() for kind in extension.kinds}


def part_of(kind: str, part: str) -> Any:
    """One of the `PARTS` of a kind of case."""
    known = kinds()
    if kind not in known:
        raise BenchError(f"no kind of case is called '{kind}'", hint=choices(kind, known))
    names = [f"{known[kind]}.{PARTS[part].format(kind=kind, title=kind.capitalize())}"]
    if part == "blocks":
        names += [extension.blocks[kind] for extension in extensions() if kind in extension.blocks]
    return resolve_name(names[-1])


def executors() -> dict[str, str]:
    """What extensions can measure with, by name."""
    return {name: target for extension in extensions() for name, target in extension.executors.items()}


def named(part: str) -> list[Any]:
    """What extensions name as this part, such as `pages`."""
    return [resolve_name(name) for extension in extensions() if (name := getattr(extension, part)) is not None]


def suite_texts() -> dict[str, Any]:
    """The files of all suites, by name."""
    folders = [files(extension.suites) for extension in extensions() if extension.suites is not None]
    found = {entry.name.removesuffix(SUFFIX): entry for folder in folders for entry in folder.iterdir()}
    return {name: entry for name, entry in sorted(found.items()) if entry.name.endswith(SUFFIX)}
