"""The config of a folder: read with care, and held against what the installed packages know."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from canon._untrusted import Limits, damaged, parse_json
from canon.errors import FileFormatError

CONFIG: Final = "config.json"
WIDTHS: Final = "canon_widths"
"""Entry that lists widths which the other entries cannot say."""

ADAPTER: Final = "adapter_config.json"
"""A folder with this file holds changes to a model, as LoRA makes them."""

PIPELINE: Final = "model_index.json"
_TOKENIZER: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "tokenizer.model",
    "special_tokens_map.json",
)
_MOST_DEPTH: Final = 32

MOST: Final = 4_000_000
"""How many of something a config may ask for: its class makes lists as long as that before anything can be checked."""

_COUNTED: Final = frozenset({"num", "n", "layer", "layers", "labels", "blocks", "depth"})
"""Words in the names of such numbers."""


@dataclass(frozen=True, eq=False)
class Config:
    """What a folder says about its architecture."""

    values: dict[str, Any]
    """As the file has it."""

    package: str
    """`transformers` or `diffusers`."""

    architecture: str
    """Name of a class of that package."""


def read_config(folder: Path, limits: Limits) -> Config:
    """The config of a folder, if it describes a model by an installed package's own code.

    Raises:
        FileFormatError: There is none, it is damaged, or it asks for code that is not part of the package.
    """
    where = str(folder)
    path = folder / CONFIG
    if not path.is_file():
        raise _without_config(folder)
    _check_adapter(folder)
    limits.check_header(path.stat().st_size, str(path))
    values = parse_json(path.read_bytes(), str(path))
    if not isinstance(values, dict):
        raise damaged("the config is no JSON object", str(path))
    _check_values(values, str(path))
    if "_class_name" in values:
        return Config(values, "diffusers", _name(values["_class_name"], str(path)))
    listed = values.get("architectures")
    if "model_type" not in values or not isinstance(values["model_type"], str):
        raise FileFormatError(
            "the config names no kind of model (model_type)", where=str(path), hint="Give the folder of a model"
        )
    if not isinstance(listed, list) or not listed:
        raise FileFormatError(
            "the config does not say which class the weights belong to (architectures)",
            where=where,
            hint="Save the model with save_pretrained, or add the class's name to config.json",
        )
    return Config(values, "transformers", _name(listed[0], str(path)))


def _without_config(folder: Path) -> FileFormatError:
    where, held = str(folder), {one.name for one in folder.iterdir()}
    if not held:
        return FileFormatError("the folder is empty", where=where, hint="Fetch the model again")
    if PIPELINE in held:
        parts = sorted(one.name for one in folder.iterdir() if (one / CONFIG).is_file())
        return FileFormatError(
            "the folder holds a pipeline of several models",
            where=where,
            hint=f"Give one of them: {', '.join(parts)}" if parts else "Give the folder of one model",
        )
    _check_adapter(folder)
    if any(name.endswith(".gguf") for name in held):
        return FileFormatError(
            "the folder holds a GGUF file, and no model of transformers or diffusers",
            where=where,
            hint="Give the folder that the file was converted from",
        )
    if held & set(_TOKENIZER):
        return FileFormatError(
            "the folder holds a tokenizer, and no model", where=where, hint="Give the folder with the model's weights"
        )
    hint = "Give one of the files in it; a folder is read if it holds config.json and safetensors files"
    return FileFormatError("the path is a folder without config.json", where=where, hint=hint)


def _check_adapter(folder: Path) -> None:
    """Refuse what changes a model when it is read, as LoRA does: the weights beside it are then not the model's."""
    if (folder / ADAPTER).exists():
        raise FileFormatError(
            f"the folder holds an adapter ({ADAPTER}), which is a change to a model",
            where=str(folder),
            hint="Merge it into the model first: load both with peft and call merge_and_unload()",
        )


def _check_values(values: Any, where: str, depth: int = 0) -> None:
    """No part of a config may ask for code that comes with the model, or for millions of parts."""
    if depth > _MOST_DEPTH:
        raise damaged("the config is nested too deep", where)
    if isinstance(values, dict):
        for name in ("auto_map", "trust_remote_code", "custom_pipelines"):
            if values.get(name):
                raise FileFormatError(
                    f"the config asks for code that comes with the model ({name}): Canon runs no such code",
                    where=where,
                    hint="Use a model whose class is part of transformers, or a copy without this entry",
                )
        for name, value in values.items():
            if "implementation" in name and not _is_named(value):
                raise FileFormatError(
                    f"the config asks for code from elsewhere ({name:.80}): Canon runs no such code",
                    where=where,
                    hint="Use a copy of the config without this entry",
                )
            if isinstance(value, int) and value > MOST and _COUNTED & set(name.split("_")):
                what = f"the config says {name:.80} = {value:,}, and no model has more than {MOST:,} of anything"
                raise FileFormatError(what, where=where)
            _check_values(value, where, depth + 1)
    elif isinstance(values, list):
        for value in values:
            _check_values(value, where, depth + 1)


def _is_named(value: Any) -> bool:
    """Whether an implementation of attention or experts is one of the package's: others are addresses of code."""
    if isinstance(value, dict):
        return all(map(_is_named, value.values()))
    return value is None or (isinstance(value, str) and (value.isidentifier() or not value))


def _name(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.isidentifier() or value.startswith("_") or len(value) > 100:
        raise FileFormatError(f"the config names a class {value!r:.80}, which is no name of one", where=where)
    return value
