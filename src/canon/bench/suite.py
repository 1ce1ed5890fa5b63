"""Suites: which cases there are, as data.

A suite is a TOML file. Each of its `[[cases]]` tables is a product: a field whose value is a list stands for one case
per element, the field written first changing slowest. `[resources.KIND]` says what a case of that kind takes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

from canon.bench.cases import TWIN, Case, Training, read_case
from canon.bench.extensions import SUFFIX, kinds, suite_texts
from canon.errors import BenchError, CanonError, choices


@dataclass(frozen=True)
class Resources:
    """What one case takes while it is measured."""

    cpus: int = 1
    """Processor cores; torch uses as many threads."""

    gpus: float = 0.0
    """Share of a GPU, for a cluster that hands them out; counts only where the device is one."""

    memory_gb: float = 0.0
    """Main memory to set aside, for a cluster that looks at it; 0: not said."""


@dataclass(frozen=True)
class Suite:
    """A list of cases with a name."""

    name: str
    title: str
    about: str
    cases: tuple[Case, ...]
    resources: Mapping[str, Resources] = field(default_factory=dict)
    """By kind of case."""

    def only(self, pattern: str | None) -> Suite:
        """The cases whose name matches a pattern such as `*resnet18*nso_zero*`."""
        if pattern is None:
            return self
        cases = tuple(case for case in self.cases if fnmatch(case.name, pattern) or fnmatch(case.name, f"*{pattern}*"))
        if not cases:
            raise BenchError(
                f"no case of the suite '{self.name}' matches '{pattern}'",
                hint=f"The first is called '{self.cases[0].name}'",
            )
        return Suite(self.name, self.title, self.about, cases, self.resources)

    def takes(self, case: Case) -> Resources:
        """What a case takes."""
        return self.resources.get(case.kind, Resources())


def trainings_of(cases: Iterable[Case]) -> tuple[Training, ...]:
    """Every trained model that cases need, each once, unmarked twins first."""
    found = dict.fromkeys(training for case in cases for training in case.trainings)
    return tuple(sorted(found, key=lambda training: training.scheme != TWIN))


def suite_names() -> tuple[str, ...]:
    """The suites that are installed: Canon's own where its repository is, and those of other packages."""
    return tuple(suite_texts())


def load_suite(name: str) -> Suite:
    """A suite that is installed by its name, or one of your own by the path of its file."""
    if name.endswith(SUFFIX):
        path = Path(name)
        if not path.is_file():
            raise BenchError("no such suite file", where=name)
        return _parse(path.read_text(encoding="utf-8"), path.stem, name)
    known = suite_texts()
    if name not in known:
        named = f"{choices(name, known)}; or give" if known else "None is installed; give"
        raise BenchError(f"no suite is called '{name}'", hint=f"{named} the path of a {SUFFIX} file")
    return _parse(known[name].read_text(encoding="utf-8"), name, f"suite '{name}'")


def _parse(text: str, name: str, where: str) -> Suite:
    try:
        values = tomllib.loads(text)
        title, about, blocks = str(values["title"]), str(values["about"]).strip(), list(values["cases"])
        resources = {kind: Resources(**given) for kind, given in values.get("resources", {}).items()}
        cases = [case for block in blocks for case in _product(block)]
    except BenchError as error:
        raise BenchError(error.message, where=where, hint=error.hint) from error
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise BenchError(f"the suite cannot be read: {error}", where=where) from error
    for kind in resources:
        if kind not in kinds():
            raise BenchError(f"resources for a kind of case that does not exist: '{kind}'", where=where)
    unknown = set(values) - {"title", "about", "cases", "resources"}
    if unknown or not cases:
        raise BenchError(f"unknown entries: {', '.join(unknown)}" if unknown else "the suite has no cases", where=where)
    return Suite(name, title, about, tuple(dict.fromkeys(cases)), resources)


def _product(block: Mapping[str, Any]) -> Iterator[Case]:
    choices = [value if isinstance(value, list) else [value] for value in block.values()]
    for chosen in product(*choices):
        yield read_case(dict(zip(block, chosen, strict=True)))


def check_suite(suite: Suite) -> None:
    """Raise an error if a case names something that does not exist; call it before the long work."""
    for case in suite.cases:
        try:
            case.check()
        except CanonError as error:
            raise BenchError(error.message, where=f"{suite.name}: {case.name}", hint=error.hint) from error
