"""The measurement of large models, on a small one."""

from __future__ import annotations

import gc
import mmap
import os
from pathlib import Path

import pytest

from canon_benchmarks.cases import Large
from canon_benchmarks.measures.large import COMMANDS, SIZES, build, own_bytes, run, sum_all
from tests.benchmarks.measured import measured, page

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
    found = run(["recover", str(tmp_path / "nothing"), "-o", str(tmp_path / "out")], [])
    assert found["exit_code"] != 0
    assert found["seconds"] > 0
    assert found["peak"] > 0
    assert "error" in found["said"]


@pytest.mark.slow
def test_the_verbs_work_on_a_folder(tmp_path: Path) -> None:
    found = [measured(Large(size="small", command=command), tmp_path) for command in COMMANDS]
    assert [record.metrics["exit_code"] for record in found] == [0] * 8, [record.error for record in found]
    assert "| locate by key | " in page(*found)
    assert measured(Large(size="small", command="register"), tmp_path).good, "what is there is used or made anew"
