"""Public architectures by name, exactly as torchvision and timm build them.

Nothing is rewritten for small images unless it is asked for: the four models of the paper run as they are. A name is
looked up in torchvision first and then in timm; the prefix `timm:` asks for timm's. The prefix `small:` gives one of
torchvision's residual networks a stem for images of 32 pixels: a 3×3 convolution without stride, and no pooling.
`text` is Canon's own small language model.
"""

from __future__ import annotations

import difflib
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.errors import ZooError
from canon.zoo.compatibility import import_timm, import_torchvision
from canon.zoo.text import CONTEXT, VOCABULARY, LanguageModel

PAPER_MODELS: Final = ("resnet18", "efficientnet_b0", "inception_v3", "densenet121")
"""The four architectures of the paper's evaluation."""

DEFAULT_SIZE: Final = 32
"""Height and width of the images of every dataset in the zoo."""

# The smallest square image that these models can take, where that is more than 32.
_MINIMUM_SIZE: Final = {"inception_v3": 75, "alexnet": 63, "maxvit_t": 224}
# Models with an auxiliary classifier, which only trains and would change the type of the output.
_WITHOUT_AUXILIARY_HEAD: Final = {
    "inception_v3": {"aux_logits": False, "init_weights": True},
    "googlenet": {"aux_logits": False, "init_weights": True},
}
_TIMM_PREFIX: Final = "timm:"
_SMALL_PREFIX: Final = "small:"
_TEXT: Final = "text"


def model(name: str, *, classes: int = 10, seed: int = 0) -> nn.Module:
    """Build an untrained model with `classes` outputs, in evaluation mode; of `text`, these are always the bytes.

    The initial weights depend on `seed` alone; torch's global random state is left as it was.

    >>> network = model("resnet18", classes=10)
    >>> network(example_input("resnet18")).shape
    torch.Size([2, 10])
    """
    if classes < 1:
        raise ZooError(f"a model needs at least one class, got {classes}", where=name)
    source, bare = _resolve(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if reads_texts(name):
            built = LanguageModel()
        elif source == "torchvision":
            extra: dict[str, Any] = _WITHOUT_AUXILIARY_HEAD.get(bare, {})
            built = import_torchvision().models.get_model(bare, weights=None, num_classes=classes, **extra)
        else:
            built = import_timm().create_model(bare, pretrained=False, num_classes=classes)
        if name.startswith(_SMALL_PREFIX):
            _give_small_stem(built)
    assert isinstance(built, nn.Module), f"{name} built a {type(built).__name__}"
    return built.eval()


def reads_texts(name: str) -> bool:
    """Whether this model is fed token ids, and not images."""
    return name == _TEXT


def input_size(name: str) -> int:
    """Height and width of the images this model is fed: 32, or the least it can take."""
    source, bare = _resolve(name)
    if reads_texts(name):
        return DEFAULT_SIZE
    if source == "torchvision":
        if bare.startswith("vit_"):
            return 224
        return _MINIMUM_SIZE.get(bare, DEFAULT_SIZE)
    config = import_timm().get_pretrained_cfg(bare)
    if config is None:
        return DEFAULT_SIZE
    if config.fixed_input_size:
        return int(config.input_size[-1])
    if config.min_input_size is not None:
        return max(DEFAULT_SIZE, int(config.min_input_size[-1]))
    return _MINIMUM_SIZE.get(bare, DEFAULT_SIZE)


def example_input(name: str, *, batch: int = 2, seed: int = 0) -> Tensor:
    """A random batch of images of the size this model is fed, or of texts."""
    generator = torch.Generator().manual_seed(seed)
    if reads_texts(name):
        return torch.randint(VOCABULARY, (batch, CONTEXT), generator=generator)
    size = input_size(name)
    return torch.randn(batch, 3, size, size, generator=generator)


def model_names() -> tuple[str, ...]:
    """Every torchvision classification model that `model` can build, sorted."""
    models = import_torchvision().models
    return tuple(sorted(models.list_models(module=models)))


def _give_small_stem(built: Any) -> None:
    built.conv1 = nn.Conv2d(3, built.conv1.out_channels, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(built.conv1.weight, mode="fan_out", nonlinearity="relu")
    built.maxpool = nn.Identity()


def _resolve(name: str) -> tuple[str, str]:
    """Which library builds this name, and what that library calls it."""
    if reads_texts(name):
        return "canon", name
    if name.startswith(_SMALL_PREFIX):
        bare = name.removeprefix(_SMALL_PREFIX)
        if not bare.startswith(("resnet", "resnext", "wide_resnet")) or bare not in model_names():
            raise ZooError(f"'{bare}' has no stem that is known here", hint="Name a residual network of torchvision")
        return "torchvision", bare
    bare = name.removeprefix(_TIMM_PREFIX)
    if bare == name and bare in model_names():
        return "torchvision", bare
    timm = import_timm()
    if timm.is_model(bare):
        return "timm", bare
    known = sorted({*model_names(), *timm.list_models()})
    near = difflib.get_close_matches(bare, known, n=3)
    raise ZooError(
        f"neither torchvision nor timm has a model '{bare}'",
        hint=f"Did you mean {', '.join(near)}?" if near else None,
    )
