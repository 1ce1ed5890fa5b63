"""A suite that any scheme can be held against, Canon's own and a third party's.

    from canon.watermarks.conformance import Trial, check

    def test_my_scheme() -> None:
        check(Trial(MyScheme(), model, dataset, wider))

Every check raises `ConformanceError`, which names the promise that was broken.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isclose
from pathlib import Path

import torch
from torch import Tensor, nn

from canon.errors import CanonError, KeyFileError, WatermarkError
from canon.watermarks.data import Dataset
from canon.watermarks.interface import EmbedResult, Scheme
from canon.watermarks.key import load_key
from canon.watermarks.layers import layer_weight, weighted_layers
from canon.watermarks.message import Message
from canon.watermarks.train import TrainOptions


class ConformanceError(CanonError):
    """A scheme does not keep one of the promises of the interface."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A scheme, and what to try it on."""

    scheme: Scheme
    """The scheme on trial."""
    model: nn.Module
    """An untrained model, left as it is."""
    dataset: Dataset
    """Enough images to learn something."""
    wider: nn.Module
    """The same architecture with more channels in every hidden layer, as obfuscation leaves it."""
    options: TrainOptions = field(default_factory=TrainOptions)
    """How to train."""
    message: Message = None  # type: ignore[assignment]  # set below
    """What to embed; by default random bits, as many as the scheme embeds by default."""
    least_similarity: float = 1.0
    """Similarity that the marked model must reach."""
    chance: float = 0.13
    """How far from 0.5 an unmarked model or a wrong key may read."""

    def __post_init__(self) -> None:
        if self.message is None:
            object.__setattr__(self, "message", Message.random(seed=1, bits=self.scheme.default_bits))

    @property
    def example(self) -> Tensor:
        """An input of the model, as a verification has one."""
        return self.dataset.images_at(self.dataset.train_images[:1], "cpu")


def check(trial: Trial) -> EmbedResult:
    """Run every check; returns the marked model and its key for further tests."""
    given = copy.deepcopy(trial.model.state_dict()), trial.dataset.train_images.clone()
    result = trial.scheme.embed(trial.model, trial.dataset, message=trial.message, seed=1, options=trial.options)
    _require(_same(given[0], trial.model.state_dict()), "embed changed the model it was given")
    _require(torch.equal(given[1], trial.dataset.train_images), "embed changed the data it was given")
    for promise in (
        _ships_an_ordinary_model,
        _reads_its_message,
        _survives_a_file_and_a_new_process,
        _reads_chance_without_the_mark,
        _reads_chance_with_a_wrong_key,
        _passes_its_controls,
        _is_defined_on_other_shapes,
        _holds_what_it_says,
        _refuses_what_it_must,
    ):
        promise(trial, result)
    return result


def _ships_an_ordinary_model(trial: Trial, result: EmbedResult) -> None:
    _require(not result.model.training, "the shipped model is in training mode")
    _require(
        list(result.model.state_dict()) == list(trial.model.state_dict()),
        "the shipped model has other parameters than the one that was given",
    )
    kinds = [type(module) for module in result.model.modules()]
    _require(
        kinds == [type(module) for module in trial.model.modules()],
        "the shipped model has other modules than the one that was given",
    )
    hooked = [
        name for name, module in result.model.named_modules() if module._forward_hooks or module._forward_pre_hooks
    ]
    _require(not hooked, f"hooks were left on {', '.join(hooked)}")
    layers = weighted_layers(result.model)
    _require(
        bool(result.key.layers) and all(layer in layers for layer in result.key.layers),
        "the key does not name Conv2d or linear layers of the model",
    )


def _reads_its_message(trial: Trial, result: EmbedResult) -> None:
    before = copy.deepcopy((result.model.state_dict(), dict(result.key.tensors)))
    found = trial.scheme.extract(result.model, result.key, trial.example)
    _require(_same(before[0], result.model.state_dict()), "reading changes the model")
    _require(_same(before[1], result.key.tensors), "reading changes the key")
    _require(
        found.similarity >= trial.least_similarity,
        f"similarity {found.similarity:.4f} on the marked model is below {trial.least_similarity}",
    )
    _require(result.key.message == trial.message, "the key holds another message")
    _require(not found.shape_mismatch, "a shape mismatch is reported on the marked model itself")
    again = trial.scheme.extract(result.model, result.key, trial.example)
    steady = again.bits == found.bits and isclose(again.margin, found.margin, rel_tol=1e-3, abs_tol=1e-6)
    _require(steady, "reading twice gives two results")


def _survives_a_file_and_a_new_process(trial: Trial, result: EmbedResult) -> None:
    expected = trial.scheme.extract(result.model, result.key, trial.example)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "key.safetensors"
        result.key.save(path)
        read = trial.scheme.extract(result.model, load_key(path), trial.example)
        # Not the margin: where a tensor lies in memory may change the last digit of a product.
        _require(
            (read.bits, read.similarity) == (expected.bits, expected.similarity),
            "the key reads otherwise after it was saved and loaded",
        )
        code = (
            "import sys; from canon.watermarks import load_key;"
            "key = load_key(sys.argv[1]); print(key.message.hex, len(key.message), *key.layers)"
        )
        run = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    message = result.key.message
    line = " ".join([message.hex, str(len(message)), *result.key.layers])
    _require(run.stdout.strip() == line, f"a new process reads another key: {run.stderr.strip()}")


def _reads_chance_without_the_mark(trial: Trial, result: EmbedResult) -> None:
    stranger = copy.deepcopy(trial.model)
    generator = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for parameter in stranger.parameters():
            order = torch.randperm(parameter.numel(), generator=generator)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
    _require_chance(trial, trial.scheme.similarity(stranger, result.key, trial.example), "an unmarked model")


def _reads_chance_with_a_wrong_key(trial: Trial, result: EmbedResult) -> None:
    # A key that holds secrets must need them; one that holds none says what its message says.
    secrets = result.key.tensors.keys() - set(trial.scheme.idle)
    message = trial.message if secrets else Message.random(seed=7, bits=len(trial.message))
    wrong, again = (trial.scheme.draw_key(trial.model, trial.dataset, message=message, seed=7) for _ in range(2))
    alike = wrong.settings == again.settings and _same(dict(wrong.tensors), again.tensors)
    _require(alike, "one seed gives two keys: draw every secret from the target")
    _require_chance(trial, trial.scheme.similarity(result.model, wrong, trial.example), "a wrong key")


def _passes_its_controls(trial: Trial, result: EmbedResult) -> None:
    controls = trial.scheme.controls(result.model, result.key, seed=1, example=trial.example)
    _require(
        not controls.void,
        f"the owner's own key is void, because {controls.reason}; say in `unmarked` which changes take the mark away",
    )


def _is_defined_on_other_shapes(trial: Trial, result: EmbedResult) -> None:
    try:
        found = trial.scheme.extract(trial.wider, result.key, trial.example)
    except (RuntimeError, IndexError) as error:
        raise ConformanceError(
            f"reading a wider model fails: {error}",
            hint="Read weights and activations through the Reader, with the key's shapes.",
        ) from error
    _require(bool(found.shape_mismatch), "other widths are not reported as a shape mismatch")
    _require_chance(trial, found.similarity, "a wider, unmarked model")


def _holds_what_it_says(trial: Trial, result: EmbedResult) -> None:
    layers = result.key.layers
    capacity = trial.scheme.capacity(trial.model, layers, trial.example)
    numbers = sum(layer_weight(trial.model, layer).numel() for layer in layers)
    _require(capacity <= numbers, f"a capacity of {capacity} bits is more than the {numbers} numbers of the layers")
    longest = Message.random(seed=1, bits=capacity // 8 * 8)
    key = trial.scheme.draw_key(trial.model, trial.dataset, message=longest, layers=layers)
    unread = trial.scheme.extract(trial.model, key, trial.example).unread
    _require(not unread, f"of a message of {len(longest)} bits, which is its capacity, {unread} are never read")


def _refuses_what_it_must(trial: Trial, result: EmbedResult) -> None:
    scheme, model, dataset = trial.scheme, trial.model, trial.dataset
    images = dataset.images_at(dataset.train_images[:2], "cpu")
    capacity = scheme.capacity(model, result.key.layers, images)
    too_long = Message.random(seed=1, bits=8 * (capacity // 8 + 1))
    _require_error(
        WatermarkError,
        lambda: scheme.draw_key(model, dataset, layers=["no.such.layer"]),
        "a layer that does not exist",
    )
    _require_error(
        WatermarkError,
        lambda: scheme.draw_key(model, dataset, message=too_long),
        "a message longer than the capacity",
    )
    _require_error(
        KeyFileError,
        lambda: scheme.extract(model, replace(result.key, scheme="another")),
        "a key of another scheme",
    )
    _require_error(
        KeyFileError,
        lambda: scheme.extract(model, replace(result.key, architecture="another")),
        "a key for another architecture",
    )


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ConformanceError(otherwise)


def _require_chance(trial: Trial, similarity: float, what: str) -> None:
    _require(
        abs(similarity - 0.5) <= trial.chance,
        f"{what} reads a similarity of {similarity:.4f}, not 0.5 ± {trial.chance}",
    )


def _require_error(kind: type[CanonError], call: Callable[[], object], what: str) -> None:
    try:
        call()
    except kind:
        return
    raise ConformanceError(f"{what} is accepted", hint=f"Raise {kind.__name__}.")


def _same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(value, second[name]) for name, value in first.items())
