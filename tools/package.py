"""What a user installs: the wheel's size, what is in it, how fast it starts, and that it works.

`python -m tools.package docs/package.md` builds a wheel from the tracked files in a temporary folder, installs it with
the `cli` extra into a clean environment at the versions of constraints.txt, verifies two files there, adds the `bench`
extra, runs and reports a suite of a user's own, and writes the page.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
IMPORT_BUDGET, HELP_BUDGET = 0.2, 0.7
"""Seconds of processor time."""

RUNS = 7
RECORDS = (".jsonl", ".parquet", ".csv")
"""Endings of files that hold measurements; none belongs into a wheel."""

INTRODUCTION = """# The package

What `pip install 'canon-nso[cli]'` brings: measured by `make package`, which builds a wheel from the tracked files,
installs it into a clean environment at the versions of `constraints.txt`, verifies two files there, adds the `bench`
extra, runs and reports a suite of one's own, and writes this page. Times are processor seconds, the least of seven,
and hold Python's own start. Disk space is that of everything which was installed, torch included: here its build for
processors alone, as `constraints.txt` names it; the CUDA build takes several gigabytes more.
"""

SUITE = """
title = "My own suite"
about = "One case."
[[cases]]
kind = "training"
dataset = "digits"
model = "timm:test_resnet"
scheme = "twin"
"""

FILES = """
import torch
from torch import nn
import canon

torch.manual_seed(0)
owner = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
).eval()
example = torch.randn(2, 3, 16, 16)
hidden = canon.attack(owner, example, ["nso_clique", "nso_split"], ratio=0.3).model
canon.save(owner, "owner.pt2", example=example)
canon.save(hidden, "suspect.pt2", example=example)
"""


@dataclass(frozen=True)
class Package:
    """What was found out about the wheel."""

    size: int
    """Bytes of the wheel."""

    unpacked: int
    """Bytes of the files in it."""

    parts: Counter[str]
    """Bytes of each package in it."""

    files: int
    records: tuple[str, ...]
    """Files in it that hold measurements."""

    import_seconds: float
    help_seconds: float
    core_seconds: float
    """Processor time of `import canon`, of `canon --help`, and of Python that does nothing."""

    verdict: str
    """What `canon verify` said of a disguised model, in the clean environment."""

    installed: tuple[int, int]
    """Packages in the clean environment with the `cli` extra, and the bytes of all their files."""

    benchmarked: str
    """What `canon bench run` said of a suite of one case; the page of the suite is there as well."""


def measure(place: Path) -> Package:
    """Build, install, use and time the package in an empty folder."""
    wheel = _build(place)
    bin_folder = _install(place, wheel)
    _run([bin_folder / "python", "-c", FILES], place)
    verdict = _run([bin_folder / "canon", "verify", "suspect.pt2", "--reference", "owner.pt2"], place).splitlines()[0]
    installed = _installed(place)
    import_seconds = _seconds([bin_folder / "python", "-c", "import canon"], place)
    help_seconds = _seconds([bin_folder / "canon", "--help"], place)
    _pip(place, f"{wheel}[cli,bench]")
    (place / "mine.toml").write_text(SUITE, encoding="utf-8")
    records = ["--out", "records", "--cache", "models"]
    benchmarked = _run([bin_folder / "canon", "bench", "run", "mine.toml", *records], place, well=(0, 1)).splitlines()[
        0
    ]
    _run([bin_folder / "canon", "bench", "report", "mine.toml", "--records", "records", "--out", "pages"], place)
    assert (place / "pages" / "mine.md").is_file(), "the page of the suite was not written"
    with zipfile.ZipFile(wheel) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    parts: Counter[str] = Counter()
    for entry in entries:
        names = PurePosixPath(entry.filename).parts
        parts[names[1] if len(names) > 2 and names[0] == "canon" else "(other)"] += entry.file_size
    return Package(
        size=wheel.stat().st_size,
        unpacked=sum(entry.file_size for entry in entries),
        parts=parts,
        files=len(entries),
        records=tuple(entry.filename for entry in entries if entry.filename.endswith(RECORDS)),
        import_seconds=import_seconds,
        help_seconds=help_seconds,
        core_seconds=_seconds([bin_folder / "python", "-c", ""], place),
        verdict=verdict,
        installed=installed,
        benchmarked=benchmarked,
    )


def _installed(place: Path) -> tuple[int, int]:
    """Packages of the clean environment, but for pip and setuptools, and the bytes on disk of all there is."""
    folder = next((place / "venv" / "lib").glob("python*")) / "site-packages"
    names = {path.name.split("-")[0] for path in folder.glob("*.dist-info")} - {"pip", "setuptools"}
    return len(names), sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _build(place: Path) -> Path:
    """A wheel of the tracked files alone, so that nothing that lies around gets into it."""
    source = place / "source"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if name.startswith("src/") or "/" not in name:
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
    _run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", place, source], place)
    return next(place.glob("*.whl"))


def _install(place: Path, wheel: Path) -> Path:
    folder = place / "venv"
    _run([sys.executable, "-m", "venv", folder], place)
    _pip(place, "torch")
    _pip(place, f"{wheel}[cli]")
    return folder / "bin"


def _pip(place: Path, what: str) -> None:
    python = place / "venv" / "bin" / "python"
    _run([python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", what], place)


def _run(command: Sequence[str | Path], place: Path, well: Sequence[int] = (0,)) -> str:
    done = subprocess.run(command, cwd=place, env=_environment(), capture_output=True, text=True)
    if done.returncode not in well:
        raise RuntimeError(f"exit status {done.returncode}: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def _seconds(command: Sequence[str | Path], place: Path) -> float:
    """Processor time of a command, the least of several runs: what other programs do to it only adds."""
    times = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _run(command, place)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def _environment() -> dict[str, str]:
    """Nothing of this checkout may be found by the clean environment."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def page(package: Package) -> str:
    """The page about the package."""
    largest = [f"| `{name}` | {size / 1000:,.0f} kB |" for name, size in package.parts.most_common()]
    records = "none" if not package.records else ", ".join(f"`{name}`" for name in package.records)
    rows = [
        ("size of the wheel", f"{package.size / 1000:,.0f} kB", ""),
        ("unpacked", f"{package.unpacked / 1000:,.0f} kB in {package.files} files", ""),
        ("records of the benchmark in it", records, "none"),
        ("`import canon`", f"{package.import_seconds:.2f} s", f"under {IMPORT_BUDGET} s"),
        ("`canon --help`", f"{package.help_seconds:.2f} s", f"under {HELP_BUDGET} s"),
        ("Python itself, doing nothing", f"{package.core_seconds:.2f} s", ""),
        ("packages installed with it", f"{package.installed[0]}", ""),
        ("disk space of all of them", f"{package.installed[1] / 1e6:,.0f} MB", ""),
        ("`canon verify` of a disguised model there", package.verdict, "matches"),
        ("`canon bench run mine.toml` there", package.benchmarked, "1 done"),
    ]
    lines = [
        INTRODUCTION,
        "| What | Measured | Asked for |",
        "|---|---|---|",
        *(f"| {what} | {found} | {asked} |" for what, found, asked in rows),
        "",
        "## What is in it",
        "",
        "| Package | Unpacked |",
        "|---|---|",
        *largest,
    ]
    return "\n".join(lines) + "\n"


def faults(package: Package) -> list[str]:
    """What is not as it should be."""
    checks = {
        f"import canon takes {package.import_seconds:.2f} s": package.import_seconds < IMPORT_BUDGET,
        f"canon --help takes {package.help_seconds:.2f} s": package.help_seconds < HELP_BUDGET,
        f"the wheel holds records: {package.records}": not package.records,
        f"the verdict is '{package.verdict}'": package.verdict == "matches",
        f"the benchmark says '{package.benchmarked}'": "1 cases: 1 done" in package.benchmarked,
    }
    return [fault for fault, good in checks.items() if not good]


def main() -> None:
    """Measure, write the page, and fail if something is over its budget."""
    parser = argparse.ArgumentParser(description="Measure the package that users install.")
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as name:
        found = measure(Path(name))
    out.write_text(page(found), encoding="utf-8")
    for fault in faults(found):
        print(fault, file=sys.stderr)
    sys.exit(1 if faults(found) else 0)


if __name__ == "__main__":
    main()
