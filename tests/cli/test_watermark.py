"""`canon watermark` from the outside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from canon import attack, save, watermarks, zoo
from canon.cli.main import app as main
from canon.cli.main import execute
from canon.cli.watermark import app
from tests.watermarks.small import small_digits, small_net


@pytest.fixture(autouse=True)
def small_zoo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every model be small and every dataset short."""
    data = small_digits()

    def model(name: str, *, classes: int = 10, seed: int = 0) -> torch.nn.Module:
        return small_net(seed)

    monkeypatch.setattr(zoo, "model", model)
    monkeypatch.setattr(zoo, "dataset", lambda name, folder=None: data)
    monkeypatch.setattr(zoo, "input_size", lambda name: 16)


def run(*arguments: str) -> int:
    return execute(app, list(arguments))


def test_embed_then_extract_then_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, key = str(tmp_path / "m.safetensors"), str(tmp_path / "k.safetensors")
    files = ["--out", out, "--key", key]
    assert run("embed", "ipr_gan", "small", *files, "--message", "Canon", "--epochs", "4", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["matched"], document["total"], document["similarity"]) == (40, 40, 1.0)
    assert run("extract", out, "--key", key) == 0
    assert "similarity 1.0000, 40 of 40 bits" in capsys.readouterr().out
    assert run("show", key) == 0
    shown = capsys.readouterr().out
    assert "message: Canon" in shown
    assert "layer conv3: 128×64×3×3" in shown
    assert run("embed", "ipr_gan", "small", *files) == 2
    assert "exists already" in capsys.readouterr().err


def test_show_lists_the_schemes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "--json") == 0
    assert list(json.loads(capsys.readouterr().out)) == list(watermarks.names())


def test_a_message_that_is_not_in_is_not_written(tmp_path: Path) -> None:
    out, key = tmp_path / "m.safetensors", tmp_path / "k.safetensors"
    assert run("embed", "uchida17", "small", "--out", str(out), "--key", str(key), "--epochs", "1") == 3
    assert not out.exists()
    assert not key.exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nosuch"], "no scheme 'nosuch'"),
        (["uchida17", "--layer", "conv9"], "no Conv2d or Linear layer 'conv9'"),
        (["lottery", "--message", "x" * 30], "these layers hold 192"),
        (["uchida17", "--device", "nowhere"], "cannot be used here"),
    ],
)
def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str) -> None:
    scheme, *options = arguments
    files = ["--out", str(tmp_path / "m.safetensors"), "--key", str(tmp_path / "k")]
    assert run("embed", scheme, "small", *files, *options) == 2
    assert complaint in capsys.readouterr().err


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def replace_by_key(path: Path) -> None:
    path.write_bytes((path.parent / "k").read_bytes())


@pytest.mark.parametrize(("spoil", "words"), [(damage, "damaged"), (replace_by_key, "a watermark key, not a model")])
def test_weights_that_do_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], None], words: str
) -> None:
    weights, key = tmp_path / "m", tmp_path / "k"
    watermarks.get("uchida17").draw_key(small_net(), small_digits()).save(key)
    from safetensors.torch import save_file

    save_file(small_net().state_dict(), weights)
    assert run("extract", str(weights), "--arch", "small", "--key", str(key)) == 0
    spoil(weights)
    assert run("extract", str(weights), "--arch", "small", "--key", str(key)) == 2
    assert words in capsys.readouterr().err


def test_an_obfuscated_model_is_read_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hidden, key = tmp_path / "hidden.pt2", tmp_path / "k"
    watermarks.get("uchida17").draw_key(small_net(), small_digits()).save(key)
    example = torch.randn(2, 3, 16, 16)
    save(attack(small_net(), example, ["nso_zero"], ratio=0.5).model, hidden, example=example)
    assert run("extract", str(hidden), "--key", str(key)) == 0
    assert "recover the model first" in capsys.readouterr().out


def test_a_derived_key_from_secret_to_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    commit = ["commit", "--new-secret", "mark.secret", "--new-key", "signing.pem", "--out", "first.claim"]
    assert execute(main, commit) == 0
    files = ["-o", "owner.safetensors", "-k", "owner.key"]
    derive = ["--derive", "mark.secret", "--claim", "first.claim"]
    assert run("embed", "ipr_gan", "small", *derive, *files, "--message", "chosen") == 2
    assert run("embed", "ipr_gan", "small", *derive[:2], *files) == 2
    assert run("embed", "ipr_gan", "small", *derive, *files, "--epochs", "4") == 0
    capsys.readouterr()
    check = ["rederive", "owner.safetensors", "-k", "owner.key", "--claim", "first.claim", "--opening", "first.opening"]
    assert run(*check, "--secret", "mark.secret", "--arch", "small", "--json") == 0
    assert json.loads(capsys.readouterr().out)["wholly"] is True
    assert (
        execute(main, ["commit", "--new-secret", "other.secret", "--key", "signing.pem", "--out", "other.claim"]) == 0
    )
    assert run(*check, "--secret", "other.secret", "--arch", "small") == 3
    assert "does not commit to this secret" in capsys.readouterr().out
