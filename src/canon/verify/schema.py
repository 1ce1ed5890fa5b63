"""The published schema of evidence, and the part of JSON Schema that it uses, checked without a further dependency."""

from __future__ import annotations

import json
import re
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, Final

from canon.errors import VerificationError

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


@cache
def evidence_schema() -> dict[str, Any]:
    """The schema of evidence."""
    text = Path(__file__).with_name("evidence.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


@cache
def outline_schema() -> dict[str, Any]:
    """The same for the parts of a document alone, whatever they hold."""
    whole = evidence_schema()
    parts = {name: {key: part[key] for key in part.keys() & {"type"}} for name, part in whole["properties"].items()}
    return {**whole, "properties": parts}


def check_schema(value: Any, schema: dict[str, Any], where: str = "") -> None:
    """Raise a `VerificationError` where a value does not follow a schema."""
    problem = _problem(value, schema)
    if problem is not None:
        raise VerificationError(f"the document does not follow the schema: {where or 'it'} {problem}")
    if isinstance(value, dict):
        known, other = schema.get("properties", {}), schema.get("additionalProperties", {})
        for name, item in value.items():
            check_schema(item, known.get(name, other), f"{where}.{name:.40}".lstrip("."))
    if isinstance(value, list):
        for index, item in enumerate(value):
            check_schema(item, schema.get("items", {}), f"{where}[{index}]")


def _problem(value: Any, schema: dict[str, Any]) -> str | None:
    """What is wrong with a value itself; None: nothing."""
    if "const" in schema and value != schema["const"]:
        return f"is {value!r:.40} instead of {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        return f"is {value!r:.40}, which is none of {schema['enum']}"
    names = schema.get("type", [])
    names = names if isinstance(names, list) else [names]
    if names and not any(_is(value, name) for name in names):
        return f"is {value!r:.40}, which is no {' or '.join(names)}"
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        return f"is {value!r:.40}, which is not of its form"
    if isinstance(value, int | float) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return f"is {value!r:.40}, which is out of range"
    if isinstance(value, dict):
        missing = sorted(set(schema.get("required", ())) - value.keys())
        surplus = sorted(value.keys() - schema.get("properties", {}).keys())
        if missing:
            return f"lacks '{missing[0]}'"
        if surplus and schema.get("additionalProperties", True) is False:
            return f"holds '{surplus[0]:.40}', which evidence does not"
    return None


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if isinstance(value, int | float) and not isfinite(value):
        return False
    return isinstance(value, _TYPES[name])
