"""The architecture that a config names, built from the installed package's own classes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import torch
from torch import nn

from canon._quiet import quiet
from canon.errors import FileFormatError, reason_of
from canon.io.folder.config import Config

MORE: Final = 8
"""Parameters that an architecture may have for each tensor of the files: older files hold some of them in one."""

ANYHOW: Final = 1000
"""Parameters that it may have in any case."""


def build_skeleton(config: Config, where: str, held: int | None = None) -> nn.Module:
    """The architecture with all tensors on the meta device.

    Args:
        config: The folder's.
        where: For errors.
        held: Tensors in the folder's files, where these are known: an architecture with far more is not built to its
            end, for a config may ask for millions of layers.
    """
    return _build(config, torch.device("meta"), where, None if held is None else MORE * held + ANYHOW)


def build_unfilled(config: Config, where: str) -> nn.Module:
    """The architecture with parameters on the meta device, and with the buffers that it computes for itself."""
    return _build(config, nullcontext(), where, None, parameters_on_meta=True)


def package_class(config: Config, where: str) -> Any:
    """The class that a config names, if the installed package has it."""
    package = import_package(config.package)
    kind = getattr(package, config.architecture, None)
    base = package.PreTrainedModel if config.package == "transformers" else package.ModelMixin
    if not isinstance(kind, type) or not issubclass(kind, base):
        raise FileFormatError(
            f"the config names the class '{config.architecture}', which the installed {config.package} "
            f"({package.__version__}) does not have",
            where=where,
            hint="Upgrade the package, or name the architecture's factory yourself with --arch",
        )
    return kind


def import_package(name: str) -> Any:
    """transformers or diffusers, without their messages."""
    from canon.zoo.compatibility import import_diffusers, import_transformers

    return import_transformers() if name == "transformers" else import_diffusers()


def parsed_config(config: Config, kind: Any, where: str) -> Any:
    """The config as the class's own type of config."""
    if config.package == "diffusers":
        return config.values
    expected = kind.config_class
    if expected is None:
        raise FileFormatError(
            f"the config names the class '{config.architecture}', which is no model of its own",
            where=where,
            hint="Name the class that the weights were saved from in config.json (architectures)",
        )
    if config.values["model_type"] != expected.model_type:
        raise FileFormatError(
            f"the config is that of another model: it says '{config.values['model_type']:.80}', and the class "
            f"'{config.architecture}' takes '{expected.model_type}'",
            where=where,
        )
    try:
        with quiet():
            return expected.from_dict(dict(config.values))
    except Exception as error:  # what a class does with nonsense is its own affair
        raise FileFormatError(f"the config is not understood: {reason_of(error)}", where=where) from error


def _build(config: Config, place: Any, where: str, most: int | None, *, parameters_on_meta: bool = False) -> nn.Module:
    kind = package_class(config, where)
    parsed = parsed_config(config, kind, where)
    try:
        with place, quiet(), _offline(), _registering(most, parameters_on_meta):
            model: Any = kind(parsed) if config.package == "transformers" else kind.from_config(parsed)
            if hasattr(model, "tie_weights"):
                model.tie_weights()
    except _TooMany as error:
        raise FileFormatError(
            f"the weights belong to another model than the config: it asks for more than {most:,} parameters, far more "
            "than there are tensors in the files",
            where=where,
            hint="Check that config.json and the weights come from one model",
        ) from error
    except Exception as error:
        raise FileFormatError(
            f"no model can be built from the config: {type(error).__name__}: {reason_of(error)}", where=where
        ) from error
    if getattr(getattr(model, "config", None), "use_cache", False) is True:
        model.config.use_cache = False  # what was computed before is no output of the function
    result: nn.Module = model.eval()
    return result


class _TooMany(BaseException):
    """More parameters than were allowed; no class of a package may take it for an error of its own."""


@contextmanager
def _offline() -> Iterator[None]:
    """Nothing is fetched, whatever addresses a config has in it, as for a backbone."""
    constants: Any = importlib.import_module("huggingface_hub.constants")
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def _registering(most: int | None, on_meta: bool) -> Iterator[None]:
    """Count parameters as modules take them; with `on_meta`, they lose their numbers then, and buffers keep theirs."""
    plain, count = nn.Module.register_parameter, 0

    def register(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        nonlocal count
        plain(self, name, param)
        count += 1
        if most is not None and count > most:
            raise _TooMany
        kept = self._parameters.get(name) if on_meta else None
        if kept is not None and not kept.is_meta:
            self._parameters[name] = nn.Parameter(kept.detach().to("meta"), requires_grad=kept.requires_grad)

    nn.Module.register_parameter = register  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = plain  # type: ignore[method-assign]
