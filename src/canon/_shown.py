"""Results that show themselves in a line, and as a small table in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from canon._text import visible


class Shown:
    """What a result says of itself; models and tensors are left out."""

    def _shown(self) -> Mapping[str, object]:
        """What is worth showing, by name."""
        raise NotImplementedError

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_short(value)}" for name, value in self._shown().items())
        return f"{type(self).__name__}({shown})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(name.replace('_', ' '))}</th>"
            f"<td style='text-align:left'>{escape(_short(value).strip(chr(39)))}</td></tr>"
            for name, value in self._shown().items()
        )
        return f"<table><caption>{escape(type(self).__name__)}</caption>{rows}</table>"


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return visible(repr(value), 400) if not isinstance(value, str) else f"'{visible(value, 400)}'"
