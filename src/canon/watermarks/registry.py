"""Schemes by name: the nine that come with Canon, and those of installed plugins.

A plugin names its scheme class under the entry point group `canon.watermarks`:

    [project.entry-points."canon.watermarks"]
    my_scheme = "my_package.scheme:MyScheme"
"""

from __future__ import annotations

import importlib
from typing import Final

from canon._plugins import entry_points
from canon.errors import WatermarkError
from canon.watermarks.interface import Scheme

GROUP: Final = "canon.watermarks"

_BUILT_IN: Final = {
    "uchida17": "canon.watermarks.uchida17:Uchida17",
    "greedy": "canon.watermarks.greedy:Greedy",
    "lottery": "canon.watermarks.lottery:Lottery",
    "ipr_gan": "canon.watermarks.ipr_gan:IprGan",
    "riga21": "canon.watermarks.riga21:Riga21",
    "ipr_ic": "canon.watermarks.ipr_ic:IprIc",
    "deepsigns": "canon.watermarks.deepsigns:DeepSigns",
    "deepipr": "canon.watermarks.deepipr:DeepIpr",
    "passport_aware": "canon.watermarks.passport_aware:PassportAware",
}

_ADDED: Final[dict[str, type[Scheme]]] = {}
"""Schemes of this process alone."""


def add(scheme: type[Scheme]) -> type[Scheme]:
    """Make a scheme known to this process, as a notebook or test needs it; a package names an entry point instead.

    Adding a class of the same module and name again replaces it. Works as a decorator.
    """
    name = scheme.name
    known = _ADDED.get(name, object)
    again = (known.__module__, known.__qualname__) == (scheme.__module__, scheme.__qualname__)
    if name in names() and not again:
        raise WatermarkError(f"there is a scheme called '{name}' already", hint="Give yours another name.")
    _ADDED[name] = scheme
    return scheme


def names() -> tuple[str, ...]:
    """Every scheme that can be asked for: Canon's own in the paper's order, then plugins."""
    return tuple(dict.fromkeys((*_targets(), *_ADDED)))


def get(name: str) -> Scheme:
    """The scheme of this name.

    >>> get("uchida17").name
    'uchida17'
    """
    if name in _ADDED:
        return _ADDED[name]()
    targets = _targets()
    if name not in targets:
        raise WatermarkError(f"no watermarking scheme '{name}'", hint=f"Known: {', '.join(names())}.")
    module, _, attribute = targets[name].partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if not (isinstance(found, type) and issubclass(found, Scheme)):
        raise WatermarkError(
            "the entry point does not name a subclass of canon.watermarks.Scheme",
            where=targets[name],
        )
    scheme = found()
    if scheme.name != name:
        raise WatermarkError(
            f"the scheme calls itself '{scheme.name}' but is registered as '{name}'",
            where=targets[name],
        )
    return scheme


def known(name: str) -> Scheme | None:
    """The scheme of this name, or None where there is none."""
    return get(name) if name in _ADDED or name in _BUILT_IN or name in names() else None


def _targets() -> dict[str, str]:
    """Name to `module:class`; nothing is imported yet."""
    targets = dict(_BUILT_IN)
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        if targets.setdefault(entry.name, entry.value) != entry.value:
            raise WatermarkError(
                f"two schemes are called '{entry.name}': {targets[entry.name]} and {entry.value}",
                hint="Uninstall one of the packages, or ask its author for another name.",
            )
    return targets
