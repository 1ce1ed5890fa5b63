"""What a user can ask of a scheme, and get wrong."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from canon import watermarks, zoo
from canon.errors import DataError, KeyFileError, WatermarkError
from canon.watermarks import Augmentation, Dataset, EpochReport, Message, TrainOptions
from canon.watermarks.passports import PassportScheme, mean_patch
from canon.watermarks.train import RISING, one_cycle
from tests.watermarks.small import QUICK, small_digits, small_net

# Watermark-bearing layers of ResNet-18 in the paper's certificates.
PAPER_LAYERS = {
    "uchida17": 2,
    "greedy": 4,
    "lottery": 18,
    "ipr_gan": 2,
    "riga21": 2,
    "ipr_ic": 1,
    "deepsigns": 2,
    "deepipr": 8,
    "passport_aware": 21,
}


@pytest.mark.parametrize("name", watermarks.names())
def test_default_layers_of_resnet18(name: str) -> None:
    key = watermarks.get(name).draw_key(zoo.model("resnet18"), zoo.dataset("digits"))
    assert len(key.layers) == PAPER_LAYERS[name]
    assert len(key.message) == (64 if name == "deepipr" else 128)


@pytest.mark.parametrize("model", ["efficientnet_b0", "inception_v3", "densenet121"])
@pytest.mark.parametrize("name", watermarks.names())
def test_defaults_hold_the_message_on_every_paper_model(name: str, model: str) -> None:
    data = zoo.dataset("digits").limited(40, 1).resized(zoo.input_size(model))
    network = zoo.model(model)
    scheme = watermarks.get(name)
    key = scheme.draw_key(network, data)
    assert 0 <= scheme.similarity(network, key) <= 1


def test_embed_with_text_and_read_it_back() -> None:
    scheme = watermarks.get("ipr_gan")
    result = scheme.embed(small_net(), small_digits(), message="Canon", options=QUICK)
    assert result.extraction.message.text == "Canon"
    assert (result.extraction.matched, result.extraction.total) == (40, 40)
    assert result.extraction.similarity == scheme.similarity(result.model, result.key) == 1.0
    assert watermarks.accuracy(result.model, small_digits()) > 0.85


def test_lottery_decodes_its_code() -> None:
    result = watermarks.get("lottery").embed(
        small_net(), small_digits(), message="Canon was here", options=replace(QUICK, epochs=2)
    )
    assert result.extraction.details["decoded"] == "Canon was here"
    assert watermarks.get("lottery").extract(small_net(), result.key).details["decoded"] != "Canon was here"


def test_greedy_checks_its_signature() -> None:
    scheme = watermarks.get("greedy")
    key = scheme.draw_key(small_net(), small_digits(), message="Canon")
    assert scheme.extract(small_net(), key).details["signature valid"] is True
    forged = replace(key, message=Message.from_text("Forge"))
    assert scheme.extract(small_net(), forged).details["signature valid"] is False


def test_same_seed_same_model() -> None:
    scheme = watermarks.get("uchida17")
    options = replace(QUICK, epochs=2)
    torch.manual_seed(1)
    first = scheme.embed(small_net(), small_digits(), seed=3, options=options)
    torch.manual_seed(2)
    again = scheme.embed(small_net(), small_digits(), seed=3, options=options)
    assert torch.equal(first.model.state_dict()["conv3.weight"], again.model.state_dict()["conv3.weight"])
    assert torch.equal(first.key.tensors["projection"], again.key.tensors["projection"])


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    scheme = watermarks.get("uchida17")
    options = replace(QUICK, epochs=3, accuracy_goal=1.1)
    whole = scheme.embed(small_net(), small_digits(), options=options)
    resumable = replace(options, checkpoint=tmp_path / "run.pt")

    def stop(report: EpochReport) -> None:
        if report.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scheme.embed(small_net(), small_digits(), options=resumable, progress=stop)
    seen: list[int] = []
    resumed = scheme.embed(
        small_net(), small_digits(), options=resumable, progress=lambda report: seen.append(report.epoch)
    )
    assert seen == [3]
    assert len(resumed.history) == 3
    for name, value in whole.model.state_dict().items():
        assert torch.allclose(value, resumed.model.state_dict()[name], atol=1e-6), name
    with pytest.raises(WatermarkError, match="another run"):
        scheme.embed(small_net(), small_digits(), seed=5, options=resumable)
    (tmp_path / "run.pt").write_bytes(b"nothing")
    with pytest.raises(WatermarkError, match="Delete it"):
        scheme.embed(small_net(), small_digits(), options=resumable)


def untrained(progress: EpochReport) -> None:
    raise AssertionError("training started")


@pytest.mark.parametrize("name", watermarks.names())
def test_bad_layer_is_refused_before_training(name: str) -> None:
    with pytest.raises(WatermarkError, match=r"no Conv2d or Linear layer 'norm1'.*conv1"):
        watermarks.get(name).embed(small_net(), small_digits(), layers=["norm1"], progress=untrained)


@pytest.mark.parametrize(("name", "capacity"), [("uchida17", 864), ("lottery", 192), ("ipr_gan", 192), ("ipr_ic", 128)])
def test_a_message_that_is_too_long_names_the_capacity(name: str, capacity: int) -> None:
    with pytest.raises(WatermarkError, match=f"these layers hold {capacity}"):
        watermarks.get(name).embed(small_net(), small_digits(), message="x" * 900, progress=untrained)


def test_a_layer_without_a_norm_is_refused() -> None:
    with pytest.raises(WatermarkError, match="followed by a batch norm"):
        watermarks.get("deepipr").draw_key(small_net(), small_digits(), message="x", layers=["fc"])


def test_no_layer_and_a_layer_twice() -> None:
    scheme = watermarks.get("uchida17")
    with pytest.raises(WatermarkError, match="no layer was named"):
        scheme.draw_key(small_net(), small_digits(), layers=[])
    with pytest.raises(WatermarkError, match="named twice"):
        scheme.draw_key(small_net(), small_digits(), layers=["conv3", "conv3"])


def test_a_key_of_another_scheme_or_architecture() -> None:
    key = watermarks.get("uchida17").draw_key(small_net(), small_digits())
    with pytest.raises(KeyFileError, match="belongs to the scheme 'uchida17'"):
        watermarks.get("greedy").extract(small_net(), key)
    with pytest.raises(KeyFileError, match="another architecture"):
        watermarks.get("uchida17").extract(zoo.model("resnet18"), key)


def test_an_empty_dataset() -> None:
    none, labels = torch.zeros(0, 3, 8, 8), torch.zeros(0, dtype=torch.int64)
    with pytest.raises(DataError, match="no training images"):
        Dataset("empty", 10, none, labels, none, labels)


@pytest.mark.parametrize(
    ("images", "labels", "complaint"),
    [
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]), "float tensor"),
        (torch.zeros(2, 3, 8), torch.tensor([0, 1]), "N×C×H×W"),
        (torch.zeros(2, 3, 8, 8), torch.tensor([0]), "expected 2 int64 labels"),
        (torch.zeros(2, 3, 8, 8), torch.tensor([0, 2]), "2 classes"),
    ],
)
def test_a_malformed_dataset(images: torch.Tensor, labels: torch.Tensor, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        Dataset("bad", 2, images, labels, images, labels)


def test_bad_training_options() -> None:
    with pytest.raises(WatermarkError, match="at least one epoch"):
        TrainOptions(epochs=0)
    with pytest.raises(WatermarkError, match="no optimiser"):
        TrainOptions(optimizer="adam")  # type: ignore[arg-type]
    with pytest.raises(WatermarkError, match="no schedule"):
        TrainOptions(schedule="cosine")  # type: ignore[arg-type]
    with pytest.raises(WatermarkError, match="label smoothing"):
        TrainOptions(label_smoothing=1.0)
    with pytest.raises(WatermarkError, match="strength of the mark"):
        TrainOptions(mark_strength=0.0)


def test_sgd_trains_too() -> None:
    options = TrainOptions(epochs=3, batch_size=32, optimizer="sgd", learning_rate=0.05)
    result = watermarks.get("ipr_gan").embed(small_net(), small_digits(), options=options)
    assert result.extraction.similarity == 1.0


def test_one_cycle_with_augmentation_trains_all_epochs() -> None:
    options = TrainOptions(
        epochs=4, batch_size=32, optimizer="sgd", learning_rate=0.1, schedule="one-cycle", label_smoothing=0.1,
        augmentation=Augmentation(shift=1), cooldown=1, accuracy_goal=0.0,
    )  # fmt: skip
    result = watermarks.get("ipr_gan").embed(small_net(), small_digits(), options=options)
    assert len(result.history) == 4, "a cycle is not cut short when the goal is reached"
    assert result.extraction.similarity == 1.0


@given(st.floats(0, 1))
def test_the_rate_rises_once_and_falls_once(passed: float) -> None:
    later = min(1.0, passed + 0.01)
    assert 0 <= one_cycle(passed) <= 1
    if later <= RISING:
        assert one_cycle(passed) <= one_cycle(later)
    if passed >= RISING:
        assert one_cycle(passed) >= one_cycle(later)


@given(shift=st.integers(0, 3), mirror=st.booleans(), seed=st.integers(0, 100))
def test_augmentation_moves_and_mirrors_and_nothing_else(shift: int, mirror: bool, seed: int) -> None:
    images = torch.randn(5, 2, 6, 7, generator=torch.Generator().manual_seed(seed))
    before = images.clone()
    varied = Augmentation(shift, mirror).applied(images, torch.Generator().manual_seed(seed))
    again = Augmentation(shift, mirror).applied(images, torch.Generator().manual_seed(seed))
    assert torch.equal(images, before)
    assert torch.equal(varied, again), "a seed says all"
    for image, found in zip(images, varied, strict=True):
        padded = [
            functional.pad(one[None], (shift,) * 4, mode="reflect")[0] if shift else one
            for one in ((image, image.flip(2)) if mirror else (image,))
        ]
        windows = [
            one[:, row : row + 6, column : column + 7]
            for one in padded
            for row in range(2 * shift + 1)
            for column in range(2 * shift + 1)
        ]
        assert any(torch.equal(found, window) for window in windows)


def test_augmentation_varies_images_apart() -> None:
    images = torch.arange(64.0).reshape(1, 1, 8, 8).expand(200, 1, 8, 8)
    moved = Augmentation(shift=1, mirror=True).applied(images, torch.Generator().manual_seed(0))
    assert len(moved.unique(dim=0)) == 2 * 3 * 3, "mirrored or not, moved by -1, 0 or 1 in both directions"


def test_only_training_images_are_varied() -> None:
    plain = small_digits(64, 32)
    varied = plain.augmented(Augmentation(shift=2))
    seed = torch.Generator().manual_seed
    first, second = (next(iter(data.shuffled_batches(64, seed(0), "cpu"))) for data in (plain, varied))
    assert torch.equal(first[1], second[1]), "the order of images is the same"
    assert not torch.equal(first[0], second[0])
    first, second = (next(iter(data.test_batches(32, "cpu"))) for data in (plain, varied))
    assert torch.equal(first[0], second[0])


def test_a_wider_model_reads_chance_and_says_why() -> None:
    scheme = watermarks.get("uchida17")
    key = scheme.draw_key(small_net(), small_digits())
    found = scheme.extract(small_net(seed=4, extra=5), key)
    assert found.shape_mismatch[0] == "conv2.weight: expected 64×32×3×3, got 69×37×3×3"
    assert abs(found.similarity - 0.5) < 0.2


@pytest.mark.parametrize("name", ["deepipr", "passport_aware"])
def test_passports_run_the_task_in_private(name: str) -> None:
    scheme = watermarks.get(name)
    assert isinstance(scheme, PassportScheme)
    data = small_digits()
    result = scheme.embed(small_net(), data, options=QUICK)
    before = watermarks.accuracy(result.model, data)
    assert scheme.private_accuracy(result.model, result.key, data) > 0.8
    stranger = scheme.draw_key(small_net(), data, seed=5)
    assert scheme.private_accuracy(result.model, stranger, data) < 0.5
    assert watermarks.accuracy(result.model, data) == before, "the public path was disturbed"


def test_the_message_is_read_in_a_new_process(tmp_path: Path) -> None:
    result = watermarks.get("ipr_gan").embed(small_net(), small_digits(), message="Canon", options=QUICK)
    save_file(result.model.state_dict(), tmp_path / "model")
    result.key.save(tmp_path / "key")
    code = (
        "import sys; from safetensors.torch import load_file; from canon import watermarks;"
        "from tests.watermarks.small import small_net; model = small_net(seed=8);"
        "model.load_state_dict(load_file(sys.argv[1] + '/model')); key = watermarks.load_key(sys.argv[1] + '/key');"
        "print(watermarks.get(key.scheme).extract(model, key).message.text)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert run.stdout.strip() == "Canon"


@pytest.mark.parametrize("padding", ["same", "valid", 1])
def test_a_passport_says_what_its_convolution_would(padding: str | int) -> None:
    layer, passport = nn.Conv2d(3, 5, 3, padding=padding, bias=False), torch.randn(1, 3, 4, 4)
    torch.testing.assert_close(layer.weight.flatten(1) @ mean_patch(passport, layer), layer(passport).mean((0, 2, 3)))


def test_data_that_the_model_does_not_take_is_told() -> None:
    with pytest.raises(WatermarkError, match="does not take the data, inputs of shape"):
        watermarks.get("uchida17").draw_key(small_net().double(), small_digits())


def test_passports_beside_a_norm_without_weights() -> None:
    model = small_net()
    first, norm = next((name, m) for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d))
    setattr(model, first, nn.BatchNorm2d(norm.num_features, affine=False))
    key = watermarks.get("deepipr").draw_key(model, small_digits(), message=Message.random(1, 16))
    assert first in key.settings["all norms"]  # type: ignore[operator]
