"""The measurement of large models, on a small one."""

from __future__ import annotations

import gc
import mmap
import os
from pathlib import Path

import pytest

from canon_benchmarks.large import SIZES, Row, build, measure, own_bytes, page, run, sum_all

pytest.importorskip("transformers")


def test_a_checkpoint_is_made_in_shards(tmp_path: Path) -> None:
    build(tmp_path / "owner", "small")
    files = sorted((tmp_path / "owner").glob("*.safetensors"))
    assert len(files) > 2
    assert max(file.stat().st_size for file in files) < 1.2 * SIZES["small"][1]
    assert sum_all(tmp_path / "owner") == sum_all(tmp_path / "owner") != 0


def test_memory_of_a_process_grows_with_what_it_takes() -> None:
    gc.collect()  # of earlier tests
    before = own_bytes(os.getpid())
    with mmap.mmap(-1, 50 << 20) as taken:  # from the system, not from what is free in this process
        taken.write(os.urandom(1 << 20) * 50)
        assert own_bytes(os.getpid()) - before > 40 << 20
    assert own_bytes(1 << 30) == 0


def test_a_command_that_fails_is_written_down(tmp_path: Path) -> None:
    row = run(["recover", str(tmp_path / "nothing"), "-o", str(tmp_path / "out")], "recover", [])
    assert row.exit_code != 0
    assert row.seconds > 0
    assert row.peak > 0
    assert "error" in row.said


def test_the_page_shows_every_row() -> None:
    row = Row("recover", 12.0, 11.0, 6.0, 5.5, 1_300_000_000, 0, "")
    result = {"size": "1b", "bytes": 2.2e9, "files": 9, "rows": [vars(row)]}
    assert "| recover | 12.0 | 11.0 | 2.0 | 6.0 | 5.5 | 1.30 GB | 0 |" in page([result])


@pytest.mark.slow
def test_the_verbs_work_on_a_folder(tmp_path: Path) -> None:
    rows = [found["row"] for found in measure("small", tmp_path)]
    assert [row["exit_code"] for row in rows] == [0] * 8
    again = [found["row"]["what"] for found in measure("small", tmp_path, ["register"])]
    assert again == ["register"]
