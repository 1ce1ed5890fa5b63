"""The sample reports of the site: made by the commands that a reader would type, and checked to say what the site says.

`python -m tools.samples FOLDER` writes one HTML page per sample. `make docs` runs it, so the pages are never older than
the code.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREPARATION = (
    "canon watermark embed uchida17 test_resnet --message random:1 --epochs 3 --out owner.safetensors --key owner.key",
    "canon attack owner.safetensors --op mix-opseq --ratio 0.3 --seed 3 --out disguised.safetensors",
    "canon attack owner.safetensors --op nso_clique --op dead_range --op odd_group --after noise:relative=0.0003 "
    "--out hidden.safetensors",
    "canon watermark embed uchida17 test_resnet --seed 7 --epochs 3 --out stranger.safetensors --key stranger.key",
    "canon attack test_efficientnet --size 32 --out other.pt2",
)
"""How the files of the samples come about: an owner's model, two disguises of it, a stranger's, and another network."""


@dataclass(frozen=True)
class Sample:
    """One report, and what it must say."""

    name: str
    """The file, without its ending."""

    suspect: str
    """The file that is examined."""

    network: str
    """The answer to the first question."""

    verdict: str
    """The verdict."""

    status: int
    """The exit status of the command."""

    @property
    def command(self) -> str:
        """What makes the report."""
        return (
            f"canon verify {self.suspect} --arch test_resnet --reference owner.safetensors --watermark-key owner.key "
            f"--out {self.name}.json --report {self.name}.html"
        )


SAMPLES = (
    Sample("equal", "disguised.safetensors", "equal", "matches", 0),
    Sample("contained", "hidden.safetensors", "contained", "matches", 0),
    Sample("refuted", "stranger.safetensors", "unrelated", "refuted", 1),
    Sample("not_decided", "other.pt2", "not decided", "inconclusive", 3),
)


def write_samples(folder: Path) -> None:
    """Make every report in `folder`.

    Raises:
        RuntimeError: A command failed, or a report says something else than the site says about it.
    """
    import torch

    torch.set_num_threads(1)  # networks as small as these are faster so, and come out the same everywhere
    folder.mkdir(parents=True, exist_ok=True)
    with _temporary_folder() as place:
        for command in PREPARATION:
            _run(command, 0)
        for sample in SAMPLES:
            _run(sample.command, sample.status)
            check(sample, json.loads((place / f"{sample.name}.json").read_text(encoding="utf-8")))
        for sample in SAMPLES:
            shutil.copy(place / f"{sample.name}.html", folder)


def check(sample: Sample, evidence: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise `RuntimeError` unless the evidence says what the site says about the sample."""
    found = (evidence["answers"]["network"]["answer"], evidence["verdict"]["kind"])
    if found != (sample.network, sample.verdict):
        raise RuntimeError(
            f"the sample '{sample.name}' should be {sample.network}, {sample.verdict}, and is {found[0]}, {found[1]}; "
            "choose another suspect in tools/samples.py, or mend what changed"
        )


def _run(command: str, expected: int) -> None:
    from canon.cli.main import app, execute

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = execute(app, shlex.split(command)[1:])
    if status != expected:
        raise RuntimeError(f"exit status {status} instead of {expected}: {command}\n{said.getvalue()}")


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        yield Path(name)


def main() -> None:
    """Write the samples into the folder that the command line names."""
    parser = argparse.ArgumentParser(description="Make the sample reports of the documentation.")
    parser.add_argument("folder", type=Path)
    write_samples(parser.parse_args().folder.resolve())


if __name__ == "__main__":
    main()
