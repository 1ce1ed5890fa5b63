"""One page that is complete in itself: evidence, or what recovery found, for people to read.

All that comes from a file goes through the templates' escaping; the only markup that does not is our own style sheet.
The page holds no script, and its policy allows none: not even a fault here could make a layer's name run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from canon._files import check_output, write_text
from canon._text import visible
from canon.api import RECOVERY_FORMAT, check_evidence
from canon.errors import ReportError, import_extra
from canon.report.sections import fill
from canon.report.words import number, percent
from canon.verify.evidence import FORMAT

if TYPE_CHECKING:
    from jinja2 import Environment

LARGEST: Final = 3 * 2**20
"""Bytes of a page; a document that would make it larger is left out of it."""

NAME: Final = 160
"""Names longer than this are cut in the middle; the whole document holds them in full."""

SENTENCE: Final = 2000
"""Letters of a sentence that quotes names from a file."""

RECORD: Final = 20_000
"""Letters of a command line or a note."""


def write_report(document: Mapping[str, Any], path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write evidence, or a document of `canon.api.recovery_document`, as an HTML page.

    Args:
        document: What `canon.judge` gives as `evidence`.
        path: The file to write.
        force: Whether to replace it if it exists.

    Raises:
        VerificationError: The evidence was changed after it was written, or contradicts itself.
        ReportError: It is another kind of document.
        MissingExtraError: jinja2 is not installed.
    """
    write_text(path, render(document), force=force)


def check_report(path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Raise what `write_report` would raise about the path or a missing package; call it before the long work."""
    _environment()
    check_output(Path(path), force=force)


def render(document: Mapping[str, Any]) -> str:
    """The page as text; see `write_report`."""
    kind = document.get("format")
    if kind == FORMAT:
        check_evidence(document)
    elif kind != RECOVERY_FORMAT:
        raise ReportError(
            f"a report cannot be made of a document of the format {kind!r}",
            hint="Give the evidence of `canon verify`, or what `canon recover` found",
        )
    template = _environment().get_template("report.html")
    content = fill(document)
    whole = json.dumps(document, indent=1)
    page: str = template.render(content, **_style(), whole=whole)
    return page if len(page.encode()) <= LARGEST else template.render(content, **_style(), whole="")


@cache
def _environment() -> Environment:
    jinja2 = import_extra("jinja2", "report")
    found: Environment = jinja2.Environment(
        loader=jinja2.PackageLoader("canon.report"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    found.filters.update(
        visible=lambda text: visible(text, NAME),
        visible_text=lambda text: visible(text, SENTENCE),
        visible_record=lambda text: visible(text, RECORD),
        number=number,
        percent=percent,
        capital=lambda text: text[:1].upper() + text[1:],
        uncapital=lambda text: text[:1].lower() + text[1:],
    )
    return found


@cache
def _style() -> Mapping[str, str]:
    from markupsafe import Markup

    loader = _environment().loader
    assert loader is not None, "set where the environment is made"
    text = loader.get_source(_environment(), "report.css")[0]
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"style": Markup(text), "style_digest": f"sha256-{digest}"}
