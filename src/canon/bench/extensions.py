"""What the benchmark can do: Canon's own kinds of cases, and what other packages bring.

A package names a module under the entry point group `canon.bench`, and that module calls `extend` when it is imported:

    [project.entry-points."canon.bench"]
    mine = "my_package"

Everything is named as `module:attribute` and imported when it is needed, so that listing suites stays quick.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from importlib.resources import files
from pkgutil import resolve_name
from typing import Any, Final

from canon.errors import BenchError

GROUP: Final = "canon.bench"
SUFFIX: Final = ".toml"
"""Of the files of suites."""


@dataclass(frozen=True)
class Kind:
    """A kind of case, in three names."""

    case: str
    """A subclass of `canon.bench.cases.Case`."""

    measure: str
    """A function of a case, a `Setup` and a `Sheet`, which it fills."""

    blocks: str
    """A function of a suite's name and records, which gives the blocks of a page."""


@dataclass(frozen=True)
class Extension:
    """What a package brings."""

    name: str
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    """By the name that suites use."""

    suites: str | None = None
    """A package whose TOML files are suites."""

    blocks: Mapping[str, str] = field(default_factory=dict)
    """Blocks in place of those that came with a kind, by kind."""

    pages: str | None = None
    """A function that makes the first pages of a report; see `canon.bench.tables.index.first_pages`."""

    remark: str | None = None
    """A function of a suite's records that gives the first line of their page, or None."""


_OWN: Final = Extension(
    "canon",
    {
        "training": Kind(
            "canon.bench.cases:Training",
            "canon.bench.measures.training:measure_training",
            "canon.bench.tables.training:training_blocks",
        ),
        "recovery": Kind(
            "canon.bench.cases:Recovery",
            "canon.bench.measures.recovery:measure_recovery",
            "canon.bench.tables.recovery:recovery_blocks",
        ),
    },
)

_EXTENSIONS: Final[dict[str, Extension]] = {_OWN.name: _OWN}


def extend(extension: Extension) -> None:
    """Make an extension known to this process; the same one again changes nothing."""
    if _EXTENSIONS.get(extension.name, extension) != extension:
        raise BenchError(f"two extensions of the benchmark are called '{extension.name}'")
    for name in extension.kinds:
        for other in _EXTENSIONS.values():
            if other.name != extension.name and name in other.kinds:
                raise BenchError(f"two kinds of cases are called '{name}': in {other.name} and in {extension.name}")
    _EXTENSIONS[extension.name] = extension


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


def kinds() -> dict[str, Kind]:
    """Every kind of case, by name."""
    return {name: kind for extension in extensions() for name, kind in extension.kinds.items()}


def case_class(kind: str) -> Any:
    """The class of a kind of case."""
    known = kinds()
    if kind not in known:
        raise BenchError(f"no kind of case is called '{kind}'", hint=f"Known: {', '.join(known)}")
    return resolve_name(known[kind].case)


def measure_of(kind: str) -> Any:
    """What measures a kind of case."""
    return resolve_name(kinds()[kind].measure)


def blocks_of(kind: str) -> Any:
    """What shows a kind of case: the last word is that of the extension that came last."""
    named = [extension.blocks[kind] for extension in extensions() if kind in extension.blocks]
    return resolve_name(named[-1] if named else kinds()[kind].blocks)


def named(part: str) -> list[Any]:
    """What extensions name as this part, such as `pages`."""
    return [resolve_name(name) for extension in extensions() if (name := getattr(extension, part)) is not None]


def suite_texts() -> dict[str, Any]:
    """The files of all suites, by name."""
    found = {}
    for extension in extensions():
        if extension.suites is not None:
            for entry in files(extension.suites).iterdir():
                if entry.name.endswith(SUFFIX):
                    found[entry.name.removesuffix(SUFFIX)] = entry
    return dict(sorted(found.items()))
