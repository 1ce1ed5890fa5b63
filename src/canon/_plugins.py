"""Classes by name: Canon's own, those of installed packages, and those that this process adds."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from importlib import metadata
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar

from canon.errors import CanonError, choices

T = TypeVar("T")


def entry_points(*, group: str) -> tuple[metadata.EntryPoint, ...]:
    """The entry points of a group; a package that is installed meanwhile is seen by the next process."""
    return _found(group, tuple(sys.path))


@functools.lru_cache(maxsize=16)
def _found(group: str, path: tuple[str, ...]) -> tuple[metadata.EntryPoint, ...]:
    # Reading the entry points of all packages takes tens of milliseconds.
    return tuple(metadata.entry_points(group=group))


class Registry(Generic[T]):
    """Classes that have a `name` and are made without arguments.

    Args:
        base: What they derive from.
        group: The entry point group under which packages name theirs.
        noun: What such a class is, for messages.
        error: What is raised.
        built_in: Canon's own: from name to `module:class`.
        reserved: Names that nobody may take.
    """

    def __init__(
        self,
        base: Any,
        group: str,
        noun: str,
        error: type[CanonError],
        built_in: Mapping[str, str],
        reserved: tuple[str, ...] = (),
    ) -> None:
        self.group, self.added = group, dict[str, type[T]]()
        self._base, self._noun, self._error = base, noun, error
        self._built_in, self._reserved = built_in, reserved

    def add(self, cls: type[T]) -> type[T]:
        """Make a class known to this process; one of the same module and name takes the other's place."""
        self._check(cls, str(cls))
        name = _name(cls)
        known = self.added.get(name, object)
        again = (known.__module__, known.__qualname__) == (cls.__module__, cls.__qualname__)
        if name in (*self._reserved, *self.names()) and not again:
            what = f"there is {_article(self._noun)} called '{name}' already"
            raise self._error(what, hint="Give yours another name")
        self.added[name] = cls
        return cls

    def names(self) -> tuple[str, ...]:
        """Canon's own, then plugins, then what was added."""
        return tuple(dict.fromkeys((*self._targets(), *self.added)))

    def get(self, name: str) -> T:
        """An instance of the class of this name."""
        if name in self.added:
            return self.added[name]()
        targets = self._built_in if name in self._built_in else self._targets()
        if name not in targets:
            raise self._error(f"no {self._noun} '{name}'", hint=choices(name, (*self.names(), *self._reserved)))
        target = targets[name]
        found = resolve_name(target)
        self._check(found, target)
        made: T = found()
        if _name(made) != name:
            what = f"the {self._noun} calls itself '{_name(made)}' but is registered as '{name}'"
            raise self._error(what, where=target)
        return made

    def _check(self, found: object, where: str) -> None:
        if not (isinstance(found, type) and issubclass(found, self._base)):
            raise self._error(f"this does not name a subclass of {self.group}.{self._base.__name__}", where=where)

    def _targets(self) -> dict[str, str]:
        """Name to `module:class`; nothing is imported yet."""
        targets = dict(self._built_in)
        for entry in sorted(entry_points(group=self.group), key=lambda entry: (entry.name, entry.value)):
            if entry.name in self._reserved or targets.setdefault(entry.name, entry.value) != entry.value:
                raise self._error(
                    f"two {self._noun}s are called '{entry.name}'; one is {entry.value}",
                    hint="Uninstall one of the packages, or ask its author for another name",
                )
        return targets


def _name(value: Any) -> str:
    name: str = value.name
    return name


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
