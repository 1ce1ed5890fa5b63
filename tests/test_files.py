"""Files are written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import canon
from canon._files import OutputError, atomic_path, check_output, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_written_file_is_all_there_is(tmp_path: Path) -> None:
    write_text(tmp_path / "report.html", "σ × 2")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == "σ × 2"
    assert names(tmp_path) == ["report.html"]


def test_the_writer_sees_the_name_of_the_target(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "model.safetensors") as path:
        assert path.name == "model.safetensors"
        assert not path.exists()
        path.touch()


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failed_write_leaves_nothing(tmp_path: Path, failure: type[BaseException]) -> None:
    def write_half() -> None:
        with atomic_path(tmp_path / "model.pt") as path:
            path.write_text("hal")
            raise failure

    with pytest.raises(failure):
        write_half()
    assert names(tmp_path) == []


def test_a_failed_forced_write_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "key.json"
    target.write_text("old")

    def write_half() -> None:
        with atomic_path(target, force=True) as path:
            path.write_text("hal")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert target.read_text() == "old"
    assert names(tmp_path) == ["key.json"]


def test_an_existing_file_is_kept_without_force(tmp_path: Path) -> None:
    target = tmp_path / "key.json"
    target.write_text("old")
    with pytest.raises(OutputError, match="exists already") as raised:
        write_text(target, "new")
    assert raised.value.where == str(target)
    assert raised.value.hint is not None
    assert "--force" in raised.value.hint
    assert target.read_text() == "old"


def test_force_replaces(tmp_path: Path) -> None:
    target = tmp_path / "key.json"
    target.write_text("old")
    write_text(target, "new", force=True)
    assert target.read_text() == "new"


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "key.json"

    def write_slowly() -> None:
        with atomic_path(target) as path:
            path.write_text("ours")
            target.write_text("theirs")

    with pytest.raises(OutputError, match="exists already"):
        write_slowly()
    assert target.read_text() == "theirs"
    assert names(tmp_path) == ["key.json"]


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is a folder"):
        check_output(tmp_path, force=True)


def test_the_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist"):
        check_output(tmp_path / "missing" / "model.pt")


def test_nothing_is_begun_where_there_is_no_room(tmp_path: Path) -> None:
    """With a full disk, torch's writer of archives ends the whole process."""
    with pytest.raises(OutputError, match="there is no room"), atomic_path(tmp_path / "model.pt2", size=1 << 62):
        pytest.fail("the writer is not called")
    assert names(tmp_path) == []


def test_a_model_is_not_begun_where_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("canon._files.shutil.disk_usage", lambda _folder: SimpleNamespace(free=10))
    with pytest.raises(OutputError, match="no room for 12 bytes"):
        canon.save(torch.nn.Linear(2, 1), tmp_path / "model.safetensors")
    assert names(tmp_path) == []
