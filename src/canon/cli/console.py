"""What a verb says: results on standard output, everything else on standard error.

On a terminal there are colours and progress bars; in a pipe or a log there are plain lines. With `--json` standard
output holds one JSON document and nothing more, also where something failed.

Names, messages and metadata may come from a stranger's file. Whatever is printed loses the characters that a terminal
obeys and those that hide text or turn it around (`canon._text.visible`); JSON escapes them.
"""

from __future__ import annotations

import errno
import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, final

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from canon._text import visible

if TYPE_CHECKING:
    from rich.console import ConsoleOptions


EVERY: Final = 20.0
"""Seconds between two lines that say how far something is."""


class SafeConsole(Console):
    """A console on which nothing that is printed can be more than text."""

    def on_broken_pipe(self) -> None:
        """Whoever reads has stopped: leave the exit status to the program, as rich would make it that of refuted."""
        raise BrokenPipeError(errno.EPIPE, "nobody reads this")

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments of a renderable. Control sequences are rich's own; all other text is made visible."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else visible(segment.text, keep="\n")
            yield segment if text == segment.text else Segment(text, segment.style)


def clean(renderable: RenderableType) -> RenderableType:
    """A text or table whose words are made visible before they are measured, so that they are not cut off."""
    if isinstance(renderable, str):
        return visible(renderable, keep="\n\t")
    if isinstance(renderable, Text):
        plain = visible(renderable.plain, keep="\n\t")
        return renderable if plain == renderable.plain else Text(plain, style=renderable.style)
    if isinstance(renderable, Table):
        for column in renderable.columns:
            column._cells[:] = map(clean, column._cells)
    return renderable


def table(*titles: str, words: Collection[str] | None = None) -> Table:
    """A table without lines. Columns of figures stand to the right; `words` are the others, by default the first."""
    left = titles[:1] if words is None else words
    found = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        found.add_column(title, justify="left" if title in left else "right", overflow="fold")
    return found


@final
@dataclass(frozen=True)
class Talker:
    """Speaks to the user in the way one run asked for."""

    as_json: bool = False
    """Whether standard output is for a program to read."""
    out: Console = field(default_factory=SafeConsole)
    """Where results go."""
    err: Console = field(default_factory=lambda: SafeConsole(stderr=True))
    """Where progress and remarks go."""

    def result(self, data: object, text: RenderableType) -> None:
        """Print a result: `data` as JSON, or `text` for a person."""
        if self.as_json:
            self.out.file.write(json.dumps(to_jsonable(data), indent=2, allow_nan=False) + "\n")
            return
        for part in text.renderables if isinstance(text, Group) else [text]:
            # Lines are broken for a terminal alone; a pipe gets them whole.
            self.out.print(clean(part), soft_wrap=isinstance(part, Text) and not self.out.is_terminal)

    def note(self, text: str) -> None:
        """Print a remark for a person. The text is printed as it is: brackets in it are not markup."""
        if not self.as_json:
            self.err.print(escape(visible(text)), highlight=False, soft_wrap=True)

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[float], None]]:
        """Show that `what` is under way; tell what it gives which part of it is done, from 0 to 1.

        A terminal gets a bar that vanishes at the end; anything else gets a line at the start, and others on the way
        that say how far it is.
        """
        if not self.shows_bars:
            self.note(what)
            yield _Lines(self.note, what).tell
            return
        timing = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), *timing)
        with Progress(*columns, console=self.err, transient=True) as bar:
            task = bar.add_task(escape(visible(what)), total=1.0)
            yield lambda done: bar.update(task, completed=min(1.0, done))

    @contextmanager
    def status(self, what: str) -> Iterator[None]:
        """Show that `what` is under way and that nobody knows for how long."""
        if not self.shows_bars:
            self.note(what)
            yield
            return
        with self.err.status(escape(visible(what))):
            yield

    @property
    def shows_bars(self) -> bool:
        """Whether progress is a bar, and not lines."""
        return self.err.is_terminal and not self.as_json


class _Lines:
    """Says how far something is, in lines, and not too often."""

    def __init__(self, note: Callable[[str], None], what: str) -> None:
        self._note, self._what = note, what
        self._begun = self._last = time.monotonic()

    def tell(self, done: float) -> None:
        """Which part is done, from 0 to 1."""
        now = time.monotonic()
        if now - self._last >= EVERY and 0 < done < 1:
            self._last = now
            left = (now - self._begun) * (1 - done) / done
            self._note(f"{self._what}: {done:.0%}, about {_duration(left)} left")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def to_jsonable(value: object) -> Any:
    """Turn results into what JSON can hold: dataclasses to objects, paths to text, numbers that are not finite to null.

    >>> to_jsonable({"residual": float("inf"), "file": PurePath("a/b"), "widths": (1, 2)})
    {'residual': None, 'file': 'a/b', 'widths': [1, 2]}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return to_jsonable(asdict(value))
    if isinstance(value, Enum):
        return to_jsonable(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [to_jsonable(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if hasattr(value, "tolist"):  # numpy and torch, without importing either
        return to_jsonable(value.tolist())
    raise TypeError(f"a {type(value).__name__} has no place in JSON output")
