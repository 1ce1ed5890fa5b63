"""`canon commit` and `canon claim` from the outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import canon
from canon import claims, zoo
from canon.claims import Claim, Opening
from canon.cli.main import app, execute
from tests.claims.authority import Authority
from tests.watermarks.small import small_digits, small_net


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(zoo, "model", lambda name, *, classes=10, seed=0: small_net(seed))
    monkeypatch.setattr(zoo, "input_size", lambda name: 16)
    model = small_net()
    canon.save(model, tmp_path / "owner.safetensors", architecture="resnet18")
    canon.register(model, torch.zeros(2, 3, 16, 16)).save(tmp_path / "layout.key")
    canon.watermarks.get("uchida17").draw_key(model, small_digits()).save(tmp_path / "owner.key")
    return tmp_path


def run(*arguments: str) -> int:
    return execute(app, list(arguments))


COMMIT = ("commit", "owner.safetensors", "-l", "layout.key", "-w", "owner.key")


def test_commit_stamp_and_check(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = Authority(desk / "authority")
    with authority.served() as url:
        assert run(*COMMIT, "--new-key", "signing.pem", "--timestamp", url, "--timestamp", url, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["timestamps"] == 2
    assert document["committed"] == ["canon", "options", "reference", "layout_key", "watermark_key"]
    for private in ("signing.pem", "owner.opening"):
        assert (desk / private).stat().st_mode & 0o077 == 0
    check = ["claim", "check", "owner.claim", "--opening", "owner.opening", "--root"]
    assert run(*check, "authority/root.pem") == 0
    assert "all of it holds" in capsys.readouterr().out
    stranger = Authority(desk / "stranger")
    assert run(*check, str(stranger.root_file.relative_to(desk))) == 3
    assert "chain is broken" in capsys.readouterr().out


def test_without_a_network(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = Authority(desk / "authority")
    assert run(*COMMIT, "--new-key", "signing.pem", "--request", "query.tsq") == 0
    assert "shows no time" in capsys.readouterr().out
    (desk / "answer.tsr").write_bytes(authority.answer((desk / "query.tsq").read_bytes()))
    assert run("commit", "--attach", "answer.tsr") == 0
    assert len(Claim.load("owner.claim").tokens) == 1
    (desk / "other.tsr").write_bytes(authority.stamp(b"another document"))
    assert run("commit", "--attach", "other.tsr") == 2
    assert "for another document" in capsys.readouterr().err
    with authority.served() as url:
        assert run("commit", "--timestamp", url, "--out", "owner.claim") == 0
    found = claims.verify_all(Claim.load("owner.claim"), claims.Trust.load(["authority/root.pem"]))
    assert [type(one).__name__ for one in found] == ["Stamp", "Stamp"]


def test_nothing_is_overwritten(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*COMMIT, "--new-key", "signing.pem") == 0
    before = {path.name: path.read_bytes() for path in desk.iterdir() if path.is_file()}
    assert run(*COMMIT, "--key", "signing.pem") == 2
    assert run(*COMMIT, "--new-key", "signing.pem", "--force") == 2, "a private key is never replaced"
    assert run(*COMMIT, "--key", "signing.pem", "--out", "new.claim", "--opening", "owner.opening") == 2
    capsys.readouterr()
    assert {path.name: path.read_bytes() for path in desk.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("commit",),
        ("commit", "owner.safetensors"),
        ("commit", "owner.safetensors", "--key", "a", "--new-key", "b"),
        ("commit", "owner.safetensors", "--key", "owner.key"),
        ("commit", "owner.safetensors", "--new-key", "a", "--option", "tolerance"),
        ("commit", "owner.safetensors", "--new-key", "a", "--attach", "owner.key"),
        ("commit", "owner.safetensors", "--new-key", "a", "--timestamp", "ftp://nowhere"),
        ("claim", "check", "owner.key"),
    ],
)
def test_wrong_usage_writes_nothing(arguments: tuple[str, ...], desk: Path) -> None:
    before = sorted(desk.iterdir())
    assert run(*arguments) == 2
    assert sorted(desk.iterdir()) == before


def test_a_part_of_an_opening(desk: Path) -> None:
    assert run(*COMMIT, "--new-key", "signing.pem", "--option", "tolerance=0.01") == 0
    assert run("claim", "reveal", "owner.opening", "--show", "watermark_key", "--out", "part.opening") == 0
    part = Opening.load("part.opening")
    assert [leaf.thing.role for leaf in part.leaves] == ["canon", "options", "watermark_key"]
    assert part.leaves[1].thing.content == {"tolerance": 0.01}
    part.check(Claim.load("owner.claim").check())
    assert run("claim", "reveal", "part.opening", "--show", "reference", "--out", "more.opening") == 2
