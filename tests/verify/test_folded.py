"""Suspects whose norms were folded away: recovered, certified on folded forms, read, but never from lent numbers."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from canon import watermarks, zoo
from canon.api import certify, check_evidence, judge, recover
from canon.attacks import attack
from canon.errors import KeyFileError, VerificationError
from canon.rewrite import fold_norms
from canon.verify import LayoutKey, align, register
from canon.verify.digest import document_digest
from canon.verify.forms import conform, norms_of
from canon.verify.verdict import Inconclusive, Matches, Refuted
from canon.watermarks import Key, Message
from canon_benchmarks.subjects import VARIANTS, subject
from tests.networks import Net, conv, head
from tests.preservation import outputs, relative_error
from tests.verify.small import example, tiny

BITS = 48
NORMS = [{"norm": f"norm{k}", "layer": f"conv{k}"} for k in (1, 2, 3)]


def flipped(seed: int) -> nn.Module:
    """A network of which every third norm scale is negative, so that folding flips rows."""
    model = tiny(seed)
    with torch.no_grad():
        for k in (1, 2, 3):
            model.get_parameter(f"norm{k}.weight")[::3] *= -1
    return model


def folded(model: nn.Module) -> nn.Module:
    return fold_norms(model, example()).model


def key_of(model: nn.Module, scheme: str) -> Key:
    """A key whose message is what the model says anyway: a mark without training."""
    data = zoo.dataset("digits").limited(48, 12).resized(8)
    key = watermarks.get(scheme).draw_key(model, data, message=Message.random(0, BITS), seed=5)
    return replace(key, message=watermarks.get(scheme).extract(model, key).message)


@dataclass(frozen=True, eq=False)
class Owner:
    """A model with its keys, and a suspect made of it: attacked, then folded."""

    model: nn.Module
    key: Key
    layout: LayoutKey
    suspect: nn.Module

    def anchor(self, by_key: bool) -> dict[str, object]:
        return {"layout_key": self.layout} if by_key else {"reference": self.model}


@pytest.fixture(scope="module")
def owner() -> Owner:
    model = flipped(0)
    hidden = attack(model, example(), "mix-opseq", ratio=0.3, seed=1).model
    return Owner(model, key_of(model, "uchida17"), register(model, example()), folded(hidden))


# -- recovery and certificate ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_folded_models_are_recovered_exactly(variant: str) -> None:
    model = flipped(2)
    hidden = attack(model, example(), variant, ratio=0.5, seed=3).model
    recovered = recover(folded(hidden), example()).model
    found = certify(recovered, model, example(), 1e-4, canonical=False)
    assert found.passed, [layer.reason for layer in found.failed]
    assert found.folded
    assert found.alignment is not None
    assert found.alignment.distinct == 1.0
    assert max(found.parameters.values()) < 1e-4, "folded biases agree"


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0"])
def test_folded_models_of_the_paper_are_recovered_exactly(name: str) -> None:
    model, given = subject(name), zoo.example_input(name)
    hidden = attack(model, given, "mix-opseq-per-merge-group", ratio=0.2, seed=1).model
    recovered = recover(fold_norms(hidden, given).model, given).model
    found = certify(recovered, model, given, 1e-4, canonical=False)
    assert found.passed, [layer.reason for layer in found.failed]


def test_a_changed_scale_shows_in_the_folded_certificate() -> None:
    """Rows are compared with the scale of the norm behind them, where no layer behind could take that scale up."""
    model = Net(lambda n, x: head(n, F.silu(n.norm(n.a(x)))), a=conv(3, 8), norm=nn.BatchNorm2d(8), fc=nn.Linear(8, 4))
    changed = copy.deepcopy(model.eval())
    with torch.no_grad():
        changed.get_parameter("norm.weight")[5] *= 1.01
    found = certify(folded(changed), model, example())
    assert [layer.name for layer in found.failed] == ["a"]
    assert certify(folded(model), model, example()).passed


def test_dead_channels_of_the_owner_are_no_obstacle() -> None:
    model = flipped(4)
    with torch.no_grad():
        model.get_parameter("norm3.weight")[7] = 0
    suspect = folded(attack(model, example(), "nso_clique", ratio=0.3, seed=2).model)
    found = judge(suspect, example(), reference=model)
    assert isinstance(found.verdict, Matches), found.verdict


# -- verdicts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_key", [False, True])
def test_a_folded_suspect_is_proved_and_its_message_read(owner: Owner, by_key: bool) -> None:
    found = judge(owner.suspect, example(), watermark_key=owner.key, **owner.anchor(by_key))  # type: ignore[arg-type]
    assert isinstance(found.verdict, Matches), found.verdict
    assert found.answers.network.answer == "equal"
    assert "with norms folded" in found.verdict.reason
    mark = found.mark
    assert mark is not None
    assert (mark.matched, mark.read_from) == (BITS, "aligned")
    check_evidence(found.evidence)
    form = found.evidence["form"]
    assert form["kind"] == "folded"
    assert form["restored"] == NORMS
    assert len(form["from_owner"]) == 2
    assert found.aligned is not None
    assert relative_error(outputs(found.aligned, example()), outputs(owner.suspect, example())) < 1e-4


@pytest.mark.parametrize("by_key", [False, True])
def test_the_aligned_rows_are_the_owners_in_scale_and_sign(owner: Owner, by_key: bool) -> None:
    found = judge(owner.suspect, example(), **owner.anchor(by_key))  # type: ignore[arg-type]
    assert found.aligned is not None
    for k in (1, 2, 3):
        mine, yours = found.aligned.get_parameter(f"conv{k}.weight"), owner.model.get_parameter(f"conv{k}.weight")
        assert (mine - yours).norm() < 1e-4 * yours.norm()


def test_order_and_scales_are_all_that_comes_from_the_reference(owner: Owner) -> None:
    """Numbers planted in the reference within tolerance do not arrive in the aligned suspect."""
    marked = copy.deepcopy(owner.model)
    planted = 1e-4 * torch.randn(marked.get_parameter("conv3.weight").shape)
    with torch.no_grad():
        marked.get_parameter("conv3.weight").add_(planted)
        marked.get_parameter("norm3.bias").add_(1e-3)
        marked.get_buffer("norm3.running_mean").add_(5.0)
    recovered = recover(owner.suspect, example()).model
    formed, _ = conform(recovered, norms_of(marked, example()), example())
    aligned = align(formed, marked, example()).model
    own, theirs = owner.model.get_parameter("conv3.weight"), marked.get_parameter("conv3.weight")
    got = aligned.get_parameter("conv3.weight")
    # A factor per row is taken, nothing within a row.
    rows = got.flatten(1) / got.flatten(1).norm(dim=1, keepdim=True)
    apart = [(rows - w.flatten(1) / w.flatten(1).norm(dim=1, keepdim=True)).norm() for w in (own, theirs)]
    assert apart[0] < apart[1] / 50
    assert relative_error(outputs(aligned, example()), outputs(owner.suspect, example())) < 1e-4


@pytest.mark.parametrize("by_key", [False, True])
def test_folded_strangers_are_refuted(owner: Owner, by_key: bool) -> None:
    for stranger in (flipped(11), attack(flipped(12), example(), "nso_split", ratio=0.3).model):
        found = judge(folded(stranger), example(), watermark_key=owner.key, **owner.anchor(by_key))  # type: ignore[arg-type]
        assert isinstance(found.verdict, Refuted), found.verdict
        assert found.mark is not None
        assert found.mark.read_from == "recovered", "the owner's scales lend nothing to strangers"


def test_another_owners_scales_do_not_make_the_message(owner: Owner) -> None:
    other = flipped(13)
    found = judge(owner.suspect, example(), reference=other, watermark_key=key_of(other, "uchida17"))
    assert isinstance(found.verdict, Refuted), found.verdict


@pytest.mark.parametrize("by_key", [False, True])
def test_a_mark_in_the_scales_of_norms_is_not_read(by_key: bool) -> None:
    model = flipped(3)
    owner = Owner(model, key_of(model, "ipr_gan"), register(model, example()), folded(model))
    found = judge(owner.suspect, example(), watermark_key=owner.key, **owner.anchor(by_key))  # type: ignore[arg-type]
    assert found.mark is None
    assert isinstance(found.verdict, Inconclusive), found.verdict
    assert found.answers.network.answer == "equal", "the weights alone show it"
    assert "the mark was not read: “ipr_gan reads 'norm2.weight'" in found.verdict.reason
    assert found.evidence["watermark"]["refused"]
    check_evidence(found.evidence)
    if not by_key:
        assert found.compared.certificate is not None
        assert len(found.compared.certificate.layers) == 4, "without a mark all layers count"
    stranger = judge(folded(flipped(14)), example(), watermark_key=owner.key, **owner.anchor(by_key))  # type: ignore[arg-type]
    assert isinstance(stranger.verdict, Refuted), stranger.verdict


def test_evidence_that_hides_the_folding_contradicts_itself(owner: Owner) -> None:
    document = judge(folded(owner.model), example(), layout_key=owner.layout).evidence
    changed = {**document, "form": {**document["form"], "kind": "given"}}
    changed["digest"] = document_digest({name: value for name, value in changed.items() if name != "digest"})
    with pytest.raises(VerificationError, match="form"):
        check_evidence(changed)


def test_norms_that_somebody_put_in_are_folded(owner: Owner) -> None:
    """The owner's model has no norms; the suspect has some that do nothing but hide it."""
    reference = folded(owner.model)
    suspect = attack(owner.model, example(), "nso_zero", ratio=0.3).model
    found = judge(suspect, example(), reference=reference)
    assert isinstance(found.verdict, Matches), found.verdict
    assert found.evidence["form"]["folded"] == NORMS
    assert found.evidence["form"]["from_owner"] == []


def test_layers_inside_folders_of_their_names_are_found(owner: Owner) -> None:
    """As one exporter writes them: `conv1.Conv` instead of `conv1`."""
    traced = fx.symbolic_trace(owner.suspect)
    layers = {}
    for node in traced.graph.nodes:
        if node.op == "call_module":
            module = traced.get_submodule(str(node.target))
            node.target = f"{node.target}.Conv" if isinstance(module, nn.Conv2d) else node.target
            layers[str(node.target)] = module
    suspect = fx.GraphModule(layers, traced.graph).eval()
    found = judge(suspect, example(), layout_key=owner.layout, watermark_key=owner.key)
    assert isinstance(found.verdict, Matches), found.verdict
    assert found.evidence["form"]["restored"] == NORMS


def test_a_partly_folded_suspect_keeps_the_norms_it_has(owner: Owner) -> None:
    suspect = fold_norms(owner.model, example(), layers={"conv2"}).model
    found = judge(suspect, example(), reference=owner.model, watermark_key=key_of(owner.model, "deepsigns"))
    assert isinstance(found.verdict, Matches), found.verdict
    assert found.evidence["form"]["restored"] == NORMS[1:2]


def test_norms_without_scales_stay_where_they_are() -> None:
    """They leave no scale to take up, so they are not put back; a suspect that has them is judged as ever."""
    layers = {"a": conv(3, 8), "norm": nn.BatchNorm2d(8, affine=False), "fc": nn.Linear(8, 4)}
    model = Net(lambda n, x: head(n, F.relu(n.norm(n.a(x)))), **layers).eval()
    found = judge(attack(model, example(), "nso_split", ratio=0.5).model, example(), reference=model)
    assert isinstance(found.verdict, Matches), found.verdict
    assert found.evidence["form"]["kind"] == "given"
    assert "wired in different ways" in judge(folded(model), example(), reference=model).answers.network.reason


def test_other_architectures_are_not_decided(owner: Owner) -> None:
    found = judge(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval(), example(), reference=owner.model)
    assert isinstance(found.verdict, Inconclusive)
    assert found.answers.network.answer == "not decided"
    assert "different architectures" in found.answers.network.reason
    check_evidence(found.evidence)


def test_the_key_file_names_the_norms_and_trusts_no_name(owner: Owner, tmp_path: Path) -> None:
    owner.layout.save(tmp_path / "layout.safetensors")
    assert (
        LayoutKey.load(tmp_path / "layout.safetensors").norms == owner.layout.norms == norms_of(owner.model, example())
    )
    hostile = replace(owner.layout, norms=(replace(owner.layout.norms[0], layer="nowhere"),))
    hostile.save(tmp_path / "hostile.safetensors")
    with pytest.raises(KeyFileError, match="no layer"):
        LayoutKey.load(tmp_path / "hostile.safetensors")


def test_a_key_that_does_not_name_norms_serves_other_suspects_only(owner: Owner, tmp_path: Path) -> None:
    replace(owner.layout, norms=None).save(tmp_path / "layout.safetensors")
    older = LayoutKey.load(tmp_path / "layout.safetensors")
    assert isinstance(judge(owner.model, example(), layout_key=older).verdict, Matches)
    found = judge(folded(owner.model), example(), layout_key=older)
    assert "wired in different ways" in found.answers.network.reason
