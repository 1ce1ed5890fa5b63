"""Experts of one tensor, and layers of one recurrent module: spaces of their own that stay equally wide."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import canon
from canon.graph.bundles import free_orders
from canon.graph.experts import channel_tensors, expert_tensors, take_apart
from canon.graph.tensors import clone_with, shared
from canon.rewrite.bundles import move_bundles
from canon.verify.owner_order import in_owner_order
from canon.zoo.compatibility import import_transformers

SIZES: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "use_cache": False,
}  # fmt: skip
IDS = torch.arange(24).view(2, 12) * 4


def experts_model(name: str = "MixtralForCausalLM", **more: Any) -> nn.Module:
    package = import_transformers()
    kind = getattr(package, name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built: nn.Module = kind(kind.config_class(**{**SIZES, **more})).eval()
    return built


def mixtral() -> nn.Module:
    return experts_model(num_local_experts=4)


def qwen() -> nn.Module:
    return experts_model(
        "Qwen2MoeForCausalLM", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
        shared_expert_intermediate_size=40,
    )  # fmt: skip


def gpt_oss() -> nn.Module:
    """Its gates and ups lie in turn, along the last axis, and have biases."""
    model = experts_model("GptOssForCausalLM", num_local_experts=4, num_experts_per_tok=2, head_dim=8)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".experts." in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def dots() -> nn.Module:
    """Its router widens its weight to float32 as it reads it."""
    return experts_model(
        "Dots1ForCausalLM", n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, n_shared_experts=1,
        first_k_dense_replace=0, n_group=1, topk_group=1,
    )  # fmt: skip


def ernie() -> nn.Module:
    """Its router holds a shift for each expert in a layer of its own, on the second axis."""
    model = experts_model(
        "Ernie4_5_MoeForCausalLM", moe_num_experts=4, moe_k=2, moe_intermediate_size=24, moe_layer_start_index=0
    )
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".mlp.gate." in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def outputs(model: nn.Module) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(IDS).logits
    return found


@pytest.mark.parametrize("build", [mixtral, qwen, gpt_oss])
def test_experts_asked_one_by_one_compute_the_same(build: Any) -> None:
    model = build()
    apart = take_apart(clone_with(model, shared(model)))
    assert torch.allclose(outputs(apart), outputs(model), atol=1e-6)
    assert sum(t.numel() for t in channel_tensors(model).values()) == sum(
        t.numel() for t in [*model.parameters(), *model.buffers()]
    )


@pytest.mark.parametrize("build", [mixtral, qwen, gpt_oss])
def test_every_expert_is_free_and_comes_back(build: Any) -> None:
    model = build()
    graph = canon.trace(model, IDS)
    experts = [space for space in graph.free if "experts." in space.name]
    assert len(experts) == 8
    assert all(len(space.peers) == 3 for space in experts)
    attacked = canon.attack(model, IDS, ["nso_zero", "nso_clique", "nso_split"], ratio=0.25).model
    assert sum(p.numel() for p in attacked.parameters()) > sum(p.numel() for p in model.parameters())
    assert torch.allclose(outputs(attacked), outputs(model), atol=1e-5)
    recovered = canon.recover(attacked, IDS).model
    assert {n: t.shape for n, t in recovered.state_dict().items()} == {
        n: t.shape for n, t in model.state_dict().items()
    }
    assert canon.certify(recovered, model, IDS).passed
    judged = canon.judge(attacked, IDS, reference=model)
    assert judged.evidence["verdict"]["kind"] == "matches"


def test_an_order_scale_and_sign_for_each_expert_is_undone() -> None:
    """By hand, and not by Canon's attack: no two experts are moved alike."""
    owner, suspect = mixtral(), mixtral()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name in expert_tensors(suspect):
            if not name.endswith("gate_up_proj"):
                continue
            wide = suspect.get_parameter(name)
            down = suspect.get_parameter(name.replace("gate_up_proj", "down_proj"))
            for expert in range(4):
                order = torch.randperm(24, generator=generator)
                factor = (torch.rand(24, generator=generator) + 0.5) * (
                    torch.randint(2, (24,), generator=generator) * 2 - 1
                )
                gate, up = wide[expert].clone().chunk(2)
                wide[expert] = torch.cat([gate[order], (up * factor[:, None])[order]])
                down[expert] = (down[expert] / factor)[:, order].clone()
    assert torch.allclose(outputs(suspect), outputs(owner), atol=1e-5)
    aligned = canon.align(suspect, owner, IDS).model
    for name in expert_tensors(owner):
        assert torch.allclose(aligned.get_parameter(name), owner.get_parameter(name), atol=1e-5), name
    assert canon.judge(suspect, IDS, reference=owner).evidence["verdict"]["kind"] == "matches"


def test_a_dead_unit_of_one_expert_stays_for_the_sake_of_the_others() -> None:
    model = mixtral()
    with torch.no_grad():
        model.get_parameter("model.layers.0.mlp.experts.down_proj")[1, :, 3] = 0
    recovered = canon.recover(model, IDS).model
    assert recovered.get_parameter("model.layers.0.mlp.experts.down_proj").shape == (4, 32, 24)
    assert torch.allclose(outputs(recovered), outputs(model), atol=1e-5)


def test_another_expert_is_another_network() -> None:
    owner, suspect = mixtral(), mixtral()
    with torch.no_grad():
        suspect.get_parameter("model.layers.1.mlp.experts.gate_up_proj")[2] += 0.05
    assert not canon.certify(suspect, owner, IDS).passed


@pytest.mark.parametrize("build", [mixtral, qwen])
def test_experts_change_places_with_the_rows_of_their_router(build: Any) -> None:
    model = build().double()
    model.config._experts_implementation = "batched_mm"  # the other one knows no float64
    blocks = free_orders(model)
    assert [routed.rows for routed in blocks] == [f"model.layers.{layer}.mlp.gate.weight" for layer in range(2)]
    orders = {routed: torch.tensor([2, 0, 3, 1]) for routed in blocks}
    moved = move_bundles(model, orders)
    assert torch.allclose(outputs(moved), outputs(model), atol=1e-12)
    alone = {routed: tuple(axis for axis in routed.axes if axis[0] != routed.rows) for routed in blocks}
    wrong = move_bundles(model, {replace(r, axes=alone[r]): order for r, order in orders.items()})
    assert not torch.allclose(outputs(wrong), outputs(model), atol=1e-3), "the router's rows matter"


@pytest.mark.parametrize("build", [mixtral, qwen, dots, ernie])
def test_an_attack_moves_experts_and_all_that_compare_put_them_back(build: Any) -> None:
    model = build()
    key = canon.register(model, IDS)
    attacked = canon.attack(model, IDS, ["nso_clique"], ratio=0.25, seed=1)
    assert torch.allclose(outputs(attacked.model), outputs(model), atol=1e-5)
    rows = [dict(m.named_parameters())["model.layers.0.mlp.gate.weight"] for m in (attacked.model, model)]
    assert not torch.equal(*rows)
    recovered = canon.recover(attacked.model, IDS).model
    assert canon.certify(recovered, model, IDS).passed
    for anchor in (model, key):
        found = canon.locate(attacked.model, anchor, IDS)
        assert found.answer == "contained", found.reason
        aligned = canon.align(recovered, anchor, IDS)
        same = dict(aligned.model.named_parameters())["model.layers.0.mlp.gate.weight"]
        assert torch.allclose(same, rows[1])
    judged = canon.judge(attacked.model, IDS, layout_key=key)
    assert judged.answers.network.answer == "equal", judged.answers.network.reason


def test_experts_of_a_stranger_stay_where_they_are() -> None:
    model, stranger = mixtral(), experts_model(num_local_experts=4, hidden_act="silu")
    with torch.no_grad():
        for parameter in stranger.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(9)) * 0.02)
    assert in_owner_order(stranger, model, (IDS,)) is stranger


def test_a_router_that_knows_where_its_experts_stand_is_left_alone() -> None:
    model = mixtral()

    def forward(self: Any, x: Tensor) -> tuple[Tensor, ...]:
        logits = x @ self.weight.T + torch.arange(4)
        shares, index = torch.topk(logits.softmax(-1), 2, dim=-1)
        return logits, shares, index

    kind: Any = type(model.get_submodule("model.layers.0.mlp.gate"))
    model.get_submodule("model.layers.0.mlp.gate").__class__ = type("Other", (kind,), {"forward": forward})
    assert [routed.rows for routed in free_orders(model)] == ["model.layers.1.mlp.gate.weight"]


def test_experts_stay_where_their_router_cannot_tell_them_apart() -> None:
    model = mixtral()
    with torch.no_grad():
        model.get_parameter("model.layers.0.mlp.gate.weight")[2] = model.get_parameter(
            "model.layers.0.mlp.gate.weight"
        )[1]
    assert [routed.rows for routed in free_orders(model)] == ["model.layers.1.mlp.gate.weight"]


def mamba(kind: str = "Mamba") -> nn.Module:
    sizes = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "use_cache": False}
    package = import_transformers()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built: nn.Module = getattr(package, f"{kind}ForCausalLM")(getattr(package, f"{kind}Config")(**sizes)).eval()
        for layer in range(2):
            for name in ("A_log", "D", "dt_proj.bias"):
                parameter = built.get_parameter(f"backbone.layers.{layer}.mixer.{name}")
                parameter.data += 0.1 * torch.randn(parameter.shape)
    return built


def test_inner_channels_of_mamba_change_places_and_are_put_back() -> None:
    model = mamba()
    free = free_orders(model)
    assert [one.count for one in free] == [64, 64]
    wide = copy.deepcopy(model).double()
    moved = move_bundles(wide, {one: torch.randperm(64) for one in free})
    assert torch.allclose(outputs(moved), outputs(wide), atol=1e-6)  # the layer itself computes in float32
    fewer = {replace(one, axes=tuple(axis for axis in one.axes if not axis[0].endswith("A_log"))) for one in free}
    wrong = move_bundles(wide, {one: torch.arange(63, -1, -1) for one in fewer})
    assert not torch.allclose(outputs(wrong), outputs(wide), atol=1e-5), "what is left behind matters"
    key = canon.register(model, IDS)
    attacked = canon.attack(model, IDS, ["nso_clique"], seed=2).model
    assert torch.allclose(outputs(attacked), outputs(model), atol=1e-5)
    name = "backbone.layers.1.mixer.A_log"
    assert not torch.equal(attacked.get_parameter(name), model.get_parameter(name))
    assert canon.certify(attacked, model, IDS).passed
    for anchor in (model, key):
        assert torch.equal(canon.align(attacked, anchor, IDS).model.get_parameter(name), model.get_parameter(name))
    assert canon.judge(attacked, IDS, layout_key=key).answers.network.answer == "equal"


def test_inner_channels_beside_norms_change_places() -> None:
    model = mamba("FalconMamba")
    free = free_orders(model)
    assert [one.count for one in free] == [64, 64]
    wide = copy.deepcopy(model).double()
    moved = move_bundles(wide, {one: torch.randperm(64) for one in free})
    assert torch.allclose(outputs(moved), outputs(wide), atol=1e-6)


def test_experts_run_otherwise_are_held() -> None:
    model = mixtral()
    model.config._experts_implementation = "eager"  # type: ignore[union-attr]
    assert expert_tensors(model) == {}


def test_gates_in_turn_that_are_asked_for_in_another_way_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpt_oss()
    kind: Any = type(model.get_submodule("model.layers.0.mlp.experts"))
    assert expert_tensors(model)
    monkeypatch.setattr(kind, "_apply_gate", lambda self, x: x[..., ::2] * x[..., 1::2].roll(1, -1) + x.mean())
    assert expert_tensors(model) == {}


class Reader(nn.Module):
    """Ids through a recurrent layer; `end` reads what it remembers too."""

    def __init__(self, kind: str, end: bool = False, **settings: Any) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embedding = nn.Embedding(99, 16)
            self.layer = getattr(nn, kind)(16, 24, batch_first=True, **settings)
            self.head = nn.Linear(24 * (2 if settings.get("bidirectional") else 1), 99)
        self.end = end
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        made, last = self.layer(self.embedding(ids))
        scores: Tensor = self.head(made)
        return scores + last[0].mean() if self.end else scores


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    "settings", [{"num_layers": 2}, {"bidirectional": True}, {"num_layers": 2, "bidirectional": True}]
)
def test_layers_and_directions_of_recurrent_modules_come_back(kind: str, settings: dict[str, Any]) -> None:
    model = Reader(kind, **settings)
    layers = settings.get("num_layers", 1) * (2 if settings.get("bidirectional") else 1)
    graph = canon.trace(model, IDS)
    assert sum(space.name.startswith("layer.") for space in graph.free) == layers
    attacked = canon.attack(model, IDS, ["nso_clique", "nso_split"], ratio=0.25).model
    with torch.no_grad():
        assert torch.allclose(attacked(IDS), model(IDS), atol=1e-5)
    recovered = canon.recover(attacked, IDS).model
    assert {n: t.shape for n, t in recovered.state_dict().items()} == {
        n: t.shape for n, t in model.state_dict().items()
    }
    assert canon.certify(recovered, model, IDS).passed


def test_what_several_layers_remember_is_held_where_it_is_read() -> None:
    graph = canon.trace(Reader("LSTM", end=True, num_layers=2), IDS)
    held = {space.name: space.pinned for space in graph.spaces if space.name.startswith("layer.")}
    assert len(held) == 2
    assert all(reason and "remember" in reason for reason in held.values())
