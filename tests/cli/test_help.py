"""Every verb explains itself, its examples are true, and the reference in the docs is what the code says."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import canon
from canon import claims, watermarks, zoo
from canon.cli.exit_codes import ExitCode
from canon.cli.main import app, execute
from canon.cli.reference import examples_of, reference, verbs
from tests.claims.authority import Authority
from tests.watermarks.small import small_digits, small_net

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
VERBS = dict(verbs())
SLOW = ("canon demo", "canon bench", "canon watermark embed", "canon scheme test", "canon attack test")
"""Examples that train; they are parsed, and tests of their own run them."""

EXAMPLES = [(path, line) for path, command in VERBS.items() for line in examples_of(command)]


@pytest.mark.parametrize("path", VERBS)
def test_every_verb_has_examples_and_json(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert execute(app, [*path.split()[1:], "--help"]) == ExitCode.OK
    text = capsys.readouterr().out
    assert "Examples" in text
    examples = examples_of(VERBS[path])
    assert examples
    assert all(shlex.split(line)[: len(path.split())] == path.split() for line in examples)
    assert "--json" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "{" not in text
    assert "<str>" not in text


@pytest.mark.parametrize(("path", "line"), [(path, line) for path, line in EXAMPLES if line.startswith(SLOW)])
def test_examples_that_train_parse(path: str, line: str) -> None:
    VERBS[path].make_context(path, shlex.split(line)[len(path.split()) :])  # raises where an option does not exist


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the files that examples speak of; resnet18 is a small network there."""
    folder = tmp_path_factory.mktemp("desk")
    patch = pytest.MonkeyPatch()
    patch.setattr(zoo, "model", lambda name, *, classes=10, seed=0: small_net(seed))
    patch.setattr(zoo, "input_size", lambda name: 16)
    model, example = small_net(), torch.randn(2, 3, 16, 16)
    hidden = canon.attack(model, example, ["nso_zero", "nso_clique"], ratio=0.2).model
    canon.save(model, folder / "owner.safetensors", architecture="resnet18")
    for suffix in (".safetensors", ".pt2", ".onnx"):
        canon.save(hidden, folder / f"suspect{suffix}", example=example, architecture="resnet18")
    canon.register(model, example).save(folder / "layout.key")
    watermarks.get("uchida17").draw_key(model, small_digits()).save(folder / "owner.key")
    deposit(model, folder)
    canon.save(canon.recover(hidden, example).model, folder / "recovered.safetensors", architecture="resnet18")
    evidence = canon.judge(hidden, example, reference=model).evidence
    (folder / "evidence.json").write_text(json.dumps(evidence))
    np.savez(folder / "photographs.npz", torch.randn(5, 3, 16, 16).numpy())
    patch.chdir(folder)
    yield folder
    patch.undo()


def deposit(model: torch.nn.Module, folder: Path) -> None:
    """A claim with a time-stamp, and an answer of another authority that is not attached yet."""
    first, second = Authority(folder / "first"), Authority(folder / "second")
    before = claims.commit(
        key=claims.new_key(folder / "before.pem"), secrets=[claims.new_secret(folder / "marked.secret")]
    )
    before.save(folder / "before.claim", folder / "before.opening")
    scheme, message = watermarks.get("ipr_gan"), claims.message_of(before.claim, "ipr_gan")
    secret = claims.load_secret(folder / "marked.secret")
    scheme.draw_key(model, small_digits(), message=message, secret=secret).save(folder / "marked.key")
    canon.save(model, folder / "marked.safetensors", architecture="resnet18")
    made = claims.commit(model, key=claims.new_key(folder / "deposited.pem"))
    stamped = made.claim.stamped(first.stamp(made.claim.encode()))
    claims.Committed(stamped, made.opening).save(folder / "deposited.claim", folder / "deposited.opening")
    (folder / "answer.tsr").write_bytes(second.stamp(made.claim.encode()))
    (folder / "roots.pem").write_bytes(first.root.pem + second.root.pem)


@pytest.mark.parametrize("line", [line for _, line in EXAMPLES if not line.startswith(SLOW)])
@pytest.mark.filterwarnings("default")
def test_examples_run(line: str, desk: Path) -> None:
    writes = (" -o " in line or "--out" in line) and "--force" not in line
    status = execute(app, [*shlex.split(line)[1:], *(["--force"] if writes else [])])
    # Verdicts on these files, and whether an earlier example's evidence is reproduced with fewer keys, may be any.
    judged = "verify" in line or "rerun" in line
    assert status in (ExitCode.OK, ExitCode.REFUTED, ExitCode.INCONCLUSIVE) if judged else status == 0


def test_the_reference_is_current() -> None:
    assert DOCS.read_text(encoding="utf-8") == reference(), "run: python -m canon.cli.reference > docs/cli.md"


def test_the_shell_completes_verbs() -> None:
    environment = {**os.environ, "_CANON_COMPLETE": "complete_bash", "COMP_WORDS": "canon rec", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "from canon.cli import run; run()"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["recover"], done.stderr


def test_options_are_spelled_alike() -> None:
    meanings: dict[str, set[str]] = {}
    for command in VERBS.values():
        for option in command.params:
            if option.name in ("as_json", "seed", "device", "force", "arch", "size"):
                meanings.setdefault(option.name, set()).add(f"{option.opts} {option.help}")
    assert {name: len(found) for name, found in meanings.items() if len(found) > 1} == {}
