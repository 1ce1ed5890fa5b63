"""Schemes by name: the nine that come with Canon, and those of installed plugins.

A plugin names its scheme class under the entry point group `canon.watermarks`:

    [project.entry-points."canon.watermarks"]
    my_scheme = "my_package.scheme:MyScheme"
"""

from __future__ import annotations

from typing import Final

from canon._plugins import Registry
from canon.errors import WatermarkError
from canon.watermarks.interface import Scheme

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

SCHEMES: Final[Registry[Scheme]] = Registry(Scheme, "canon.watermarks", "scheme", WatermarkError, _BUILT_IN)


def add(scheme: type[Scheme]) -> type[Scheme]:
    """Make a scheme known to this process, as a notebook or test needs it; a package names an entry point instead.

    Adding a class of the same module and name again replaces it. Works as a decorator.
    """
    return SCHEMES.add(scheme)


def names() -> tuple[str, ...]:
    """Every scheme that can be asked for: Canon's own in the paper's order, then plugins."""
    return SCHEMES.names()


def get(name: str) -> Scheme:
    """The scheme of this name.

    >>> get("uchida17").name
    'uchida17'
    """
    return SCHEMES.get(name)


def known(name: str) -> Scheme | None:
    """The scheme of this name, or None where there is none."""
    return get(name) if name in names() else None
