"""The log says what was done, survives JSON, and does it again; the attacked model says nothing."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from canon.attacks import AttackLog, attack, replay
from canon.errors import AttackError, FileFormatError


def network(width: int = 8) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 6), nn.ReLU(), nn.Linear(6, 3)).eval()


EXAMPLE = torch.zeros(2, 4)


def same(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.state_dict().items(), second.state_dict().items(), strict=True)
    return all(a == b and x.shape == y.shape and torch.equal(x, y) for (a, x), (b, y) in pairs)


def test_the_same_seed_gives_the_same_tensors_whatever_the_global_state() -> None:
    first = attack(network(), EXAMPLE, "mix-opseq", seed=5)
    torch.rand(7)
    assert same(first.model, attack(network(), EXAMPLE, "mix-opseq", seed=5).model)
    assert not same(first.model, attack(network(), EXAMPLE, "mix-opseq", seed=6).model)


def test_the_global_random_state_is_left_alone() -> None:
    state = torch.get_rng_state()
    attack(network(), EXAMPLE, "mix-opseq")
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    "options", [{}, {"expand_kernels": True, "select": ("0",), "scale_range": (0.5, 2.0)}], ids=str
)
def test_replay_from_json(options: dict[str, Any]) -> None:
    done = attack(network(), EXAMPLE, ["nso_clique", "nso_split"], seed=9, **options)
    read = AttackLog.from_json(done.log.to_json())
    assert read == done.log
    assert same(done.model, replay(network(), EXAMPLE, read).model)


def test_replay_refuses_another_model() -> None:
    log = attack(network(), EXAMPLE, ["nso_zero"]).log
    with pytest.raises(AttackError, match=r"not the one that this log speaks of \(at 0, 2\)"):
        replay(network(width=9), EXAMPLE, log)


def test_the_log_counts_every_channel() -> None:
    log = attack(network(), EXAMPLE, ["nso_zero", "nso_clique", "nso_split"], ratio=0.5).log
    for space in log.spaces:
        assert len(space.kinds) == len(space.origins) == space.after
        kinds = Counter(space.kinds)
        live = {origin for kind, origin in zip(space.kinds, space.origins, strict=True) if kind in ("original", "copy")}
        assert live == set(range(space.before))
        assert kinds["original"] + len({o for k, o in zip(space.kinds, space.origins, strict=True) if k == "copy"}) == (
            space.before
        )
        assert space.sequence == ("nso_zero", "nso_clique", "nso_split")
    assert log.pinned == {"4": "model output (output)"}
    assert set(log.versions) == {"canon", "torch"}


def test_the_attacked_model_carries_no_trace() -> None:
    model = network()
    result = attack(model, EXAMPLE, "mix-opseq").model
    assert list(result.state_dict()) == list(model.state_dict())
    for (name, before), after in zip(model.named_modules(), result.modules(), strict=True):
        assert type(before) is type(after), name
        assert before.__dict__.keys() == after.__dict__.keys()
        assert after.extra_repr().split(",")[0].startswith("in_features") or not list(after.parameters(recurse=False))


def test_sequences_of_mixes() -> None:
    whole = attack(network(), EXAMPLE, "mix-opseq", seed=1).log
    assert len({space.sequence for space in whole.spaces}) == 1
    apart = [attack(network(), EXAMPLE, "mix-opseq-per-merge-group", seed=seed).log for seed in range(4)]
    assert any(len({space.sequence for space in log.spaces}) == 2 for log in apart)
    short = attack(network(), EXAMPLE, "mix-opseq", sequence_length=5).log
    assert all(len(space.sequence) == 5 for space in short.spaces)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1}', json.dumps({"format": 1, "options": {}, "spaces": []})]
)
def test_what_is_no_log_is_refused(text: str) -> None:
    with pytest.raises(FileFormatError, match="not an attack log"):
        AttackLog.from_json(text)


def test_the_first_format_is_read() -> None:
    done = attack(network(), EXAMPLE, ["nso_clique"]).log
    data = json.loads(done.to_json())
    for name in ("preserves", "change", "after"):
        del data[name]
    for space in data["spaces"]:
        del space["skipped"]
    for name in ("tiny_range", "clique_noise"):
        del data["options"][name]
    assert AttackLog.from_json(json.dumps({**data, "format": 1})) == done


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(FileFormatError, match="format 3, this version reads 2"):
        AttackLog.from_json('{"format": 3}')
