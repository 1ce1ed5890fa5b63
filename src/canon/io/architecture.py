"""Architectures that a user names, and weights put into them: as wide as the weights are."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from canon.errors import FileFormatError, ZooError
from canon.graph import trace
from canon.graph.tensors import tensor_names
from canon.rewrite import fold_norms, foldable_norms, replace_tensors, resize_kernels

FACTORY: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""`package.module:factory`."""

ROOM: Final = 4
"""How many times the numbers of a file an architecture may have that the file names."""

SPARE_ROOM: Final = 1 << 20

_PART: Final = re.compile(r"-\d+-of-\d+\.")
"""What stands in the name of one file of several."""

_ARCH_HINT: Final = "Check the architecture (--arch)"


def is_factory(name: str) -> bool:
    """Whether a name is a Python function rather than an architecture of the zoo."""
    return FACTORY.fullmatch(name) is not None and not name.startswith("timm:")


def build_architecture(name: str) -> nn.Module:
    """An untrained model: a torchvision or timm name, or `package.module:factory`, which is imported and called.

    Importing runs code, so a factory may come from the user alone and never from a file.
    """
    from canon import zoo

    if not is_factory(name):
        return zoo.model(name)
    module, _, path = name.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for part in path.split("."):
            value = getattr(value, part)
        model = value()
    except Exception as error:  # the user's own code may raise anything
        raise ZooError(
            f"the factory failed: {type(error).__name__}: {error}",
            where=name,
            hint="It must be importable from here and take no arguments",
        ) from error
    if not isinstance(model, nn.Module):
        raise ZooError(f"the factory made a {type(model).__name__}, not a torch.nn.Module", where=name)
    return model.eval()


class _Unfilled(TorchFunctionMode):
    """New tensors without numbers, where they would be parameters or buffers; small ones that are computed stay."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FILLERS and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


_FILLERS: Final = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)


def check_size(name: str, state: Mapping[str, Tensor], where: str) -> None:
    """Raise unless the public architecture that a file names is about as large as the file; it is not built for that.

    A disguised network is larger than its architecture, and a pruned one somewhat smaller. A file of three tensors that
    calls itself the largest network there is would take minutes and gigabytes before it is found out.

    Raises:
        FileFormatError: The architecture is far larger, or nobody can tell without building it.
    """
    from canon import zoo

    needed = None
    for mode in (torch.device("meta"), _Unfilled()):  # some libraries compute widths with tensors, which needs numbers
        try:
            with mode:
                needed = sum(tensor.numel() for tensor in zoo.model(name).state_dict().values())
            break
        except ZooError:
            raise
        except Exception:  # what a library does without numbers is its own affair
            continue
    if needed is None:
        raise FileFormatError(
            f"the file says that it is a {name:.80}, whose size is not known before it is built",
            where=where,
            hint="If you believe it, name the architecture yourself (--arch)",
        )
    held = sum(tensor.numel() for tensor in state.values())
    if needed > ROOM * held + SPARE_ROOM:
        raise FileFormatError(
            f"the file says that it is a {name:.80}, which has {needed:,} numbers, but it holds {held:,}",
            where=where,
            hint=_ARCH_HINT,
        )


def folded_alike(
    model: nn.Module, state: Mapping[str, Tensor], example: Tensor | tuple[Any, ...]
) -> tuple[nn.Module, int]:
    """An architecture without the norms that a file's layers have taken up, and how many these are.

    A norm was folded away if the file holds none of its tensors, but a bias for the layer that it stands behind.
    """
    held = {name.rpartition(".")[0] for name in state}
    if all(name in held for name, module in model.named_modules() if isinstance(module, _NormBase)):
        return model, 0
    pairs = foldable_norms(model, trace(model, example), example)
    layers = {pair.layer for pair in pairs if pair.norm not in held and f"{pair.layer}.bias" in state}
    return (fold_norms(model, example, layers=layers).model if layers else model), len(layers)


def with_tensors(model: nn.Module, state: Mapping[str, Tensor], where: str) -> nn.Module:
    """A copy of a model with these weights, as wide as they are.

    Raises:
        FileFormatError: The weights belong to another architecture.
    """
    tensors, aliases = tensor_names(model)
    unknown = [name for name in state if name not in aliases]
    given = {aliases[name] for name in state if name in aliases}
    saved = {aliases[name] for name in model.state_dict() if name in aliases}
    missing = [name for name in tensors if name in saved - given and not name.endswith("num_batches_tracked")]
    if unknown or missing:
        what = (
            f"lacks '{missing[0]}'" if missing else f"holds '{unknown[0]:.120}', which the architecture does not have"
        )
        raise FileFormatError(
            f"the weights belong to another architecture: the file {what}",
            where=where,
            hint="It is one part of several: give their index" if _PART.search(where) else _ARCH_HINT,
        )
    changed, rings = {}, {}
    for name, value in state.items():
        if aliases[name] != name and aliases[name] in state:
            continue
        old = tensors[aliases[name]]
        if value.ndim != old.ndim or value.is_floating_point() != old.is_floating_point() or value.is_complex():
            raise FileFormatError(f"the tensor '{name}' does not fit the architecture", where=where, hint=_ARCH_HINT)
        changed[aliases[name]] = value
        if value.ndim > 2 and value.shape[2:] != old.shape[2:]:
            rings[aliases[name]] = _rings(name, value, old, where)
    result = replace_tensors(model, changed)
    resize_kernels(result, rings)
    return result


def _rings(name: str, value: Tensor, old: Tensor, where: str) -> int:
    """How many rings a kernel has grown by; it grows alike on every side."""
    grown = {new - before for new, before in zip(value.shape[2:], old.shape[2:], strict=True)}
    if len(grown) != 1 or (count := grown.pop()) % 2:
        raise FileFormatError(f"the kernel of '{name}' does not fit the architecture", where=where, hint=_ARCH_HINT)
    return count // 2
