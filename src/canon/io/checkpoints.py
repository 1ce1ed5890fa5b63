"""Where a pickle that was followed holds a model's tensors, and by which names an architecture knows them.

People save state dicts by themselves, inside dicts of all kinds, as whole modules and as TorchScript. All of them are
trees of tensors with names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from canon.errors import FileFormatError
from canon.io.pickles import Name, Note

KNOWN: Final = (
    "state_dict", "model_state_dict", "model_state", "model", "net", "network", "module", "weights", "params",
    "params_ema", "state", "state_dict_ema", "ema_state_dict", "model_ema", "ema",
)  # fmt: skip
"""What people call the state dict of a checkpoint, the likeliest first."""

_NOT_A_MODEL: Final = ("optim", "sched", "scaler", "rng", "loss", "criterion")
_WRAPPERS: Final = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_DEEPEST: Final = 64
_DEEPEST_DICT: Final = 4
_MOST_VISITS: Final = 500_000
_MOST_PREFIXES: Final = 64
_COMPILED: Final = "_orig_mod."


@dataclass(frozen=True, eq=False)
class Found:
    """A state dict among other things."""

    tensors: Mapping[str, Note]
    """What would have been tensors, by name."""

    program: str | None = None
    """What holds them, where it is more than a state dict: a pickled module, a TorchScript program."""

    notes: tuple[str, ...] = ()


def find_state(root: Any, script: bool) -> Found | None:
    """The tensors of a checkpoint; None where it holds no model."""
    found = sorted(_candidates(root, script), key=lambda item: item[0])
    if not found:
        return None
    (_, path, chosen), others = found[0], [path for _, path, _ in found[1:] if path]
    notes = (f"of the checkpoint, '{path}' was read",) if path else ()
    if path and others:
        names = ", ".join(repr(other)[:40] for other in others[:4])
        notes = (f"of the checkpoint, '{path}' was read, and not {names}",)
    return Found(chosen.tensors, chosen.program, notes)


def _candidates(root: Any, script: bool) -> Iterator[tuple[tuple[int, int, int], str, Found]]:
    """Everything that may be a model, with its rank, its place and its tensors."""
    seen: set[int] = set()
    level: list[tuple[str, Any, int]] = [("", root, len(KNOWN))]
    for depth in range(_DEEPEST_DICT + 1):
        below: list[tuple[str, Any, int]] = []
        for path, value, rank in level:
            if id(value) in seen or len(seen) > _MOST_VISITS:
                continue
            seen.add(id(value))
            found = _state(value, script)
            if found is not None and found.tensors:
                yield (_rank(path, rank, found), depth, -len(found.tensors)), path, found
            if isinstance(value, dict):
                below += [
                    (f"{path}.{key}".lstrip("."), item, KNOWN.index(key) if key in KNOWN else rank)
                    for key, item in value.items()
                    if isinstance(key, str) and isinstance(item, dict | Note) and not _is_tensor(item)
                ]
        level = below


def _rank(path: str, rank: int, found: Found) -> int:
    """Known names come first, then whatever holds several tensors, then single ones, then what is for training."""
    if any(word in path.lower() for word in _NOT_A_MODEL):
        return len(KNOWN) + 3
    if rank < len(KNOWN):
        return rank
    return len(KNOWN) + (0 if len(found.tensors) > 1 else 1)


def _state(value: Any, script: bool) -> Found | None:
    if isinstance(value, dict):
        tensors = {str(name): bare(item) for name, item in value.items() if _is_tensor(item)}
        return Found(tensors)
    if not isinstance(value, Note) or not isinstance(value.state, dict):
        return None
    tensors = {}
    for count, (name, note) in enumerate(_attributes(value, script)):
        if count > _MOST_VISITS:
            return None
        if note is not None:
            tensors[name] = note
    program = "a TorchScript program" if script else f"a pickle of a '{value.called:.120}'"
    return Found(tensors, program)


def _attributes(root: Note, script: bool) -> Iterator[tuple[str, Note | None]]:
    """The tensors of a module that was pickled or compiled, by name; None for each module on the way."""
    stack: list[tuple[str, Note, int]] = [("", root, 0)]
    while stack:
        path, module, depth = stack.pop()
        yield path, None
        state = module.state
        if not isinstance(state, dict) or depth > _DEEPEST:
            continue
        groups = [state] if script else [state.get(key) for key in ("_parameters", "_buffers", "_modules")]
        left_out = () if script else state.get("_non_persistent_buffers_set") or ()
        inner = []
        for group in groups:
            for name, item in group.items() if isinstance(group, dict) else ():
                if _is_tensor(item) and not (isinstance(left_out, list) and name in left_out):
                    yield f"{path}{name}", bare(item)
                elif isinstance(item, Note) and isinstance(item.state, dict):
                    inner.append((f"{path}{name}.", item, depth + 1))
        stack += reversed(inner)


def _is_tensor(value: Any) -> bool:
    value = bare(value)
    return isinstance(value, Note) and value.called.startswith("torch._utils._rebuild_")


def bare(value: Any) -> Any:
    """A parameter is a wrapped tensor."""
    if isinstance(value, Note) and value.called in _WRAPPERS and isinstance(value.arguments, tuple):
        return value.arguments[0] if value.arguments else None
    return value


def plain_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names without what DataParallel and torch.compile put into all of them."""
    found = {name.replace(_COMPILED, ""): tensor for name, tensor in state.items()}
    if len(found) < len(state):
        return dict(state)
    if found and all(name.startswith("module.") for name in found):
        return {name.removeprefix("module."): tensor for name, tensor in found.items()}
    return found


def fitting_names(state: Mapping[str, Tensor], wanted: Set[str]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """A state dict by the names of an architecture: a prefix that wrappers put before them is left out.

    Returns:
        The tensors, and what was done as notes for a user.
    """
    bare_names = plain_names(state)
    notes = () if bare_names.keys() == state.keys() else ("prefixes such as 'module.' were left out of names",)
    hits = sum(name in wanted for name in bare_names)
    best, most = "", hits
    prefixes = Counter(prefix for name in bare_names for prefix in _prefixes(name))
    for prefix, count in prefixes.most_common(_MOST_PREFIXES):
        if count > most:
            fitting = sum(name.startswith(prefix) and name.removeprefix(prefix) in wanted for name in bare_names)
            best, most = (prefix, fitting) if fitting > most else (best, most)
    if not best:
        return bare_names, notes
    chosen = {name.removeprefix(best): t for name, t in bare_names.items() if name.startswith(best)}
    left = len(bare_names) - len(chosen)
    words = f"the prefix '{best:.80}' of names was left out"
    return chosen, (*notes, words + (f", and {left} tensors that do not have it" if left else ""))


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")[:-1][:4]
    return [".".join(parts[: end + 1]) + "." for end in range(len(parts))]


def no_state(root: Any, where: str, hint: str) -> FileFormatError:
    """The error about a pickle that holds no model."""
    return FileFormatError(f"the file is a pickle of {what(root)}, not a state dict", where=where, hint=hint)


def what(value: Any) -> str:
    """What a pickle is of, in words."""
    if isinstance(value, Note):
        return f"a '{value.called:.120}'" if value.called else "an object"
    if isinstance(value, dict):
        return "a dict without tensors"
    return f"a '{value!s:.120}'" if isinstance(value, Name) else f"a {type(value).__name__}"
