"""The architecture that a config names, built from the installed package's own classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from canon._quiet import quiet
from canon.errors import FileFormatError, reason_of
from canon.io.folder.config import Config


def build_skeleton(config: Config, where: str) -> nn.Module:
    """The architecture with all tensors on the meta device."""
    return _build(config, torch.device("meta"), where)


def build_unfilled(config: Config, where: str) -> nn.Module:
    """The architecture with parameters on the meta device, and with the buffers that it computes for itself."""
    return _build(config, _parameters_on_meta(), where)


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


def _build(config: Config, place: Any, where: str) -> nn.Module:
    kind = package_class(config, where)
    parsed = parsed_config(config, kind, where)
    try:
        with place, quiet():
            model: Any = kind(parsed) if config.package == "transformers" else kind.from_config(parsed)
            if hasattr(model, "tie_weights"):
                model.tie_weights()
    except Exception as error:
        raise FileFormatError(
            f"no model can be built from the config: {type(error).__name__}: {reason_of(error)}", where=where
        ) from error
    if getattr(getattr(model, "config", None), "use_cache", False) is True:
        model.config.use_cache = False  # what was computed before is no output of the function
    result: nn.Module = model.eval()
    return result


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Parameters lose their numbers as soon as a module takes them; buffers keep theirs."""
    plain = nn.Module.register_parameter

    def register(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        plain(self, name, param)
        kept = self._parameters.get(name)
        if kept is not None and not kept.is_meta:
            self._parameters[name] = nn.Parameter(kept.detach().to("meta"), requires_grad=kept.requires_grad)

    nn.Module.register_parameter = register  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = plain  # type: ignore[method-assign]


__all__ = ["build_skeleton", "build_unfilled", "import_package", "package_class", "parsed_config"]
