"""A folder whose writing was interrupted: finished files stay, and the same command goes on with them."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from canon._files import UNFINISHED, OutputError, resumable_folder
from canon.cli.main import app, execute
from canon.zoo.compatibility import import_transformers

pytest.importorskip("transformers")

KILLED = """
import os, signal, sys
import torch
from canon.io.folder.writing import ShardWriter

torch.set_num_threads(int(sys.argv[2]))

add, count = ShardWriter.add, [0]


def counted(self, name, tensor):
    count[0] += 1
    if count[0] > int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    add(self, name, tensor)


ShardWriter.add = counted
from canon.cli.main import app, execute

execute(app, sys.argv[3:])
"""


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package, folder = import_transformers(), tmp_path_factory.mktemp("resuming") / "owner"
    config = package.LlamaConfig(
        vocab_size=61, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32,
    )  # fmt: skip
    package.LlamaForCausalLM(config).eval().save_pretrained(folder, max_shard_size="4KB")
    return folder


def bytes_of(folder: Path) -> dict[str, str]:
    return {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in sorted(folder.iterdir())}


def begun(folder: Path) -> list[Path]:
    return [one for one in folder.iterdir() if one.name.startswith(".canon-")]


def killed(tensors: int, *command: str | Path) -> None:
    # What is gone on with was computed by as many threads.
    words = [sys.executable, "-c", KILLED, str(tensors), str(torch.get_num_threads()), *map(str, command)]
    assert subprocess.run(words, check=False, capture_output=True).returncode == -signal.SIGKILL


def test_a_killed_attack_goes_on_and_writes_the_same_bytes(owner: Path, tmp_path: Path) -> None:
    out, whole = tmp_path / "suspect", tmp_path / "whole"
    command = ["attack", str(owner), "--ratio", "0.25", "--seed", "3", "-o"]
    assert execute(app, [*command, str(whole)]) == 0
    killed(12, *command, out)
    assert not out.exists()
    (left,) = begun(tmp_path)
    finished = sorted((left / "suspect").glob("*.safetensors"))
    assert finished, "the files before the kill are whole"
    assert len(finished) < len(list(whole.glob("*.safetensors")))
    inodes = {path.name: os.stat(path).st_ino for path in finished}
    damaged, other = finished[0], finished[-1]
    with open(damaged, "r+b") as file:
        file.truncate(damaged.stat().st_size - 2)
    assert execute(app, [*command, str(out)]) == 0
    assert bytes_of(out) == bytes_of(whole)
    assert os.stat(out / other.name).st_ino == inodes[other.name], "a finished file is not written again"
    assert os.stat(out / damaged.name).st_ino != inodes[damaged.name]
    assert not begun(tmp_path)


def test_other_options_and_other_inputs_take_nothing_over(owner: Path, tmp_path: Path) -> None:
    out = tmp_path / "recovered"
    killed(12, "recover", owner, "-o", out)
    (left,) = begun(tmp_path)
    inodes = {os.stat(one).st_ino for one in (left / "recovered").iterdir()}
    assert execute(app, ["recover", str(owner), "-o", str(out), "--no-check"]) == 0
    assert not inodes & {os.stat(one).st_ino for one in out.iterdir()}
    assert begun(tmp_path) == [left], "what was begun with other options waits for them"


def test_two_processes_do_not_write_the_same(tmp_path: Path) -> None:
    with resumable_folder(tmp_path / "model", "ab" * 32) as place:
        (place / "first").write_text("whole")
        with pytest.raises(OutputError, match="another process"), resumable_folder(tmp_path / "model", "ab" * 32):
            pass
    assert (tmp_path / "model" / "first").read_text() == "whole"
    UNFINISHED.clear()


def test_a_link_that_somebody_laid_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / f".canon-{'cd' * 16}").symlink_to(tmp_path / "theirs")
    with pytest.raises(OutputError, match="not gone on with"), resumable_folder(tmp_path / "model", "cd" * 32):
        pass
    assert not [*(tmp_path / "theirs").iterdir()]
