"""The part of JSON Schema that the published schema uses, checked without a further dependency."""

from __future__ import annotations

import re
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_KNOWN = {
    "$schema", "title", "description", "type", "additionalProperties", "required", "properties", "const", "enum",
    "items", "pattern",
}  # fmt: skip


def check_schema(value: Any, schema: dict[str, Any], where: str = "document") -> None:
    """Raise AssertionError where a value does not follow a schema."""
    assert schema.keys() <= _KNOWN, f"{where}: this checker does not know {schema.keys() - _KNOWN}"
    if "const" in schema:
        assert value == schema["const"], f"{where}: {value!r} instead of {schema['const']!r}"
    if "enum" in schema:
        assert value in schema["enum"], f"{where}: {value!r} is none of {schema['enum']}"
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert any(_is(value, name) for name in names), f"{where}: {value!r:.60} is no {names}"
    if "pattern" in schema:
        assert re.search(schema["pattern"], value), f"{where}: {value!r} does not match {schema['pattern']}"
    if isinstance(value, dict):
        missing = set(schema.get("required", ())) - value.keys()
        assert not missing, f"{where}: {missing} missing"
        known, other = schema.get("properties", {}), schema.get("additionalProperties", True)
        for name, item in value.items():
            if name in known:
                check_schema(item, known[name], f"{where}.{name}")
            elif isinstance(other, dict):
                check_schema(item, other, f"{where}.{name}")
            else:
                assert other, f"{where}: '{name}' is not in the schema"
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            check_schema(item, schema["items"], f"{where}[{index}]")


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name])
