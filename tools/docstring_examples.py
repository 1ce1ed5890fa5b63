"""Examples in docstrings, `>>> …`, as blocks of code on the site; Markdown would take them for quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^|(?<=\n\n))>>> .*?(?=\n\n|\Z)", re.DOTALL)


def fenced(text: str) -> str:
    """The docstring with a fence around every example.

    >>> fenced("One sentence.\\n\\n>>> 1 + 1\\n2")
    'One sentence.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    return _EXAMPLE.sub(lambda example: f"```pycon\n{example[0]}\n```", text)


class DocstringExamples(griffe.Extension):
    """Applies `fenced` to every docstring that is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
