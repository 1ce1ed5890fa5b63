"""Inputs for a model of transformers or diffusers, made from its config: token ids, images, sound, masks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.errors import ExampleError

BATCH: Final = 2
TOKENS: Final = 12
_SIDE: Final = 64


def config_example(model: nn.Module) -> dict[str, Any]:
    """Random inputs by name, for the inputs that a model cannot do without.

    Raises:
        ExampleError: The model takes inputs that its config says nothing about.
    """
    names = list(inspect.signature(model.forward).parameters)
    config = _Values(getattr(model, "config", None))
    generator = torch.Generator().manual_seed(0)
    diffusion = type(model).__module__.startswith("diffusers.")
    makers: dict[str, Callable[[], Tensor | None]] = {
        "input_ids": lambda: _ids(config, generator),
        "decoder_input_ids": lambda: _ids(config, generator) if config.get("is_encoder_decoder") else None,
        "pixel_values": lambda: _image(config, generator),
        "input_features": lambda: _sound(config, generator),
        "input_values": lambda: torch.randn((BATCH, 3200), generator=generator),
        "sample": lambda: _latent(config, generator),
        "hidden_states": lambda: _latent(config, generator) if diffusion else None,
        "timestep": lambda: torch.full((BATCH,), 7, dtype=torch.int64),
        "encoder_hidden_states": lambda: _context(config, generator),
        "class_labels": lambda: _classes(config, generator),
    }
    found: dict[str, Any] = {}
    for name, make in makers.items():
        if name in names and (diffusion or name not in ("timestep", "encoder_hidden_states", "class_labels")):
            made = make()
            if made is not None:
                found[name] = made
    if not found:
        raise ExampleError(
            f"no example can be made from the config of {type(model).__name__}",
            hint=f"Give one with --example file.npz, with an array for each of: {', '.join(names[:8])}",
        )
    return found


class _Values:
    """A config's values, looked for in its parts as well."""

    def __init__(self, config: Any) -> None:
        whole = config.to_dict() if hasattr(config, "to_dict") else dict(config or {})
        parts = [value for name, value in whole.items() if name.endswith("_config") and isinstance(value, dict)]
        self._places = [whole, *parts]

    def get(self, *names: str) -> Any:
        for name in names:
            for place in self._places:
                if place.get(name) is not None:
                    return place[name]
        return None


def _ids(config: _Values, generator: torch.Generator) -> Tensor | None:
    size = config.get("vocab_size")
    if not isinstance(size, int) or size < 1:
        return None
    longest = config.get("max_position_embeddings", "n_positions", "max_target_positions", "context_length")
    length = min(TOKENS, longest - 2) if isinstance(longest, int) and longest > 3 else TOKENS
    ids = torch.randint(0, size, (BATCH, length), generator=generator)
    ids[0, 0], ids[-1, -1] = 0, size - 1  # probes are drawn between the smallest and the largest
    return ids


def _image(config: _Values, generator: torch.Generator) -> Tensor:
    side = config.get("image_size", "sample_size")
    height, width = side if isinstance(side, (list, tuple)) else (side or _SIDE, side or _SIDE)
    frames = config.get("num_frames")  # of a video
    shape = (BATCH, *([frames] if isinstance(frames, int) else []), config.get("num_channels", "in_channels") or 3)
    return torch.randn((*shape, height, width), generator=generator)


def _sound(config: _Values, generator: torch.Generator) -> Tensor:
    frames = 2 * (config.get("max_source_positions") or 50)
    return torch.randn((BATCH, config.get("num_mel_bins", "feature_size") or 80, frames), generator=generator)


def _latent(config: _Values, generator: torch.Generator) -> Tensor:
    side = config.get("sample_size") or 32
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    return torch.randn((BATCH, config.get("in_channels") or 4, height, width), generator=generator)


def _context(config: _Values, generator: torch.Generator) -> Tensor | None:
    size = config.get("cross_attention_dim", "joint_attention_dim", "caption_channels")
    if isinstance(size, (list, tuple)):
        size = size[0]
    return torch.randn((BATCH, TOKENS, size), generator=generator) if isinstance(size, int) else None


def _classes(config: _Values, generator: torch.Generator) -> Tensor | None:
    size = config.get("num_embeds_ada_norm", "num_class_embeds")
    return torch.randint(0, size, (BATCH,), generator=generator) if isinstance(size, int) else None
