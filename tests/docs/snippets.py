"""The code blocks of a page, and how to run them.

Blocks of `python` share their names over a page; lines of `sh` are commands of Canon, run one after the other in the
same folder. An invisible comment in front of a block says otherwise:

    <!-- not run: why not -->        the block is left out
    <!-- exit status: 1 -->          the last command of the block ends with this status
    <!-- setup                       code that the page needs and the reader need not see
    ...
    -->
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LANGUAGES = {"python", "sh", "text", "toml"}
"""What a fence may say; only the first two are run."""

_PART = re.compile(
    r"^<!-- setup\n(?P<setup>.*?)^-->$"
    r"|(?P<comments>(?:^<!-- [^\n]* -->\n)*)^```(?P<language>[^\n]*)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_COMMENT = re.compile(r"^<!-- (?P<name>not run|exit status): (?P<value>.+) -->$")


@dataclass(frozen=True)
class Block:
    """One block of code."""

    language: str
    code: str
    line: int
    """Where it begins."""

    not_run: str | None = None
    """Why it is left out."""

    status: int = 0
    """How its last command ends."""


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a page, in order."""
    for part in _PART.finditer(text):
        line = text.count("\n", 0, part.start()) + 1
        if part["setup"] is not None:
            yield Block("python", part["setup"], line + 1)
            continue
        said: dict[str, str] = {}
        for comment in part["comments"].splitlines():
            found = _COMMENT.match(comment)
            assert found is not None, f"line {line}: what does '{comment}' mean?"
            said[found["name"]] = found["value"]
        line += len(part["comments"].splitlines()) + 1
        yield Block(part["language"], part["code"], line, said.get("not run"), int(said.get("exit status", 0)))


def run_page(path: Path) -> int:
    """Run the blocks of a page in the present folder; gives how many there were."""
    names: dict[str, Any] = {"__name__": path.stem}
    count = 0
    for block in blocks(path.read_text(encoding="utf-8")):
        where = f"{path.name}:{block.line}"
        assert block.language in LANGUAGES, f"{where}: a fence says one of {sorted(LANGUAGES)}"
        if block.not_run is None and block.language in ("python", "sh"):
            count += 1
            if block.language == "python":
                exec(compile("\n" * (block.line - 1) + block.code, str(path), "exec"), names)
            else:
                _run_commands(block, where)
    return count


def _run_commands(block: Block, where: str) -> None:
    from canon.cli.main import app, execute

    commands = [line for line in block.code.replace("\\\n", " ").splitlines() if line.strip()]
    for index, command in enumerate(commands):
        program, *arguments = shlex.split(command, comments=True)
        assert program == "canon", f"{where}: '{program}' is not a command of Canon; say why it is not run"
        expected = block.status if index == len(commands) - 1 else 0
        assert execute(app, arguments) == expected, f"{where}: {command}"
