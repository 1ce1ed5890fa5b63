"""An ONNX file as plain data: nodes, tensors that are still where they were, inputs and outputs.

Only what the importer needs is read; the numbers of fields are those of `onnx.proto`. A field that may stand once must
stand once, so that no two programs can read two different models from one file.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from canon._untrusted import Limits
from canon.errors import FileFormatError
from canon.io.onnx.model import Branch, Model, Node, Port, StoredTensor
from canon.io.onnx.wire import BYTES, VARINT, Meter, fields, packed_integers, real, signed

OLDEST: Final = 7
"""Before this version of the operator set, shapes were broadcast by attributes."""

NEWEST: Final = 28
"""The newest version whose operators were looked at."""

_GRAPH_ATTRIBUTES: Final = frozenset({5, 10})
_DEEPEST: Final = 8
"""Branches within branches."""

_NO_TEXT: Final = (BYTES, b"")
_ZERO: Final = (VARINT, 0)
"""What a field is that is left out."""

_GRAPH_FIELDS: Final = {1: "nodes", 5: "tensors", 11: "inputs", 12: "outputs", 15: "sparse"}


def parse(path: Path, limits: Limits) -> Model:
    """Read a file's graph.

    Raises:
        FileFormatError: The file is no ONNX model, is damaged, or holds what is refused.
    """
    size = path.stat().st_size
    limits.check_file(size, str(path))
    if not size:
        raise FileFormatError("the file is empty", where=str(path))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return _Parser(limits).model(memoryview(mapped))


class _Parser:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.meter = Meter()
        self.depth = 0

    def message(self, view: memoryview, once: Mapping[int, str], many: Mapping[int, str]) -> dict[str, Any]:
        """The fields of a message by name, unread: single ones as they are, others as lists."""
        found: dict[str, Any] = {name: [] for name in many.values()}
        for number, kind, value in fields(view, self.meter):
            if number in many:
                found[many[number]].append((kind, value))
            elif number in once:
                name = once[number]
                if name in found:
                    raise FileFormatError(f"the field '{name}' stands twice where it may stand once")
                found[name] = (kind, value)
        return found

    def model(self, view: memoryview) -> Model:
        """A ModelProto."""
        found = self.message(view, {2: "producer", 7: "graph"}, {8: "opset", 25: "functions"})
        if "graph" not in found:
            raise FileFormatError("the file is no ONNX model: it holds no graph")
        opset = None
        for entry in found["opset"]:
            domain, version = self.opset(_bytes(*entry))
            if domain in ("", "ai.onnx"):
                opset = version
        if opset is None:
            raise FileFormatError("the model does not use the operators of ONNX itself")
        if not OLDEST <= opset <= NEWEST:
            raise FileFormatError(
                f"the model is made for operator set {opset}; sets {OLDEST} to {NEWEST} are read",
                hint="Convert it with onnx.version_converter",
            )
        if found["functions"]:
            raise FileFormatError(
                "the model defines operators of its own", hint="Inline them with onnx.inliner.inline_local_functions"
            )
        graph, nodes, tensors = self.graph(_bytes(*found["graph"]))
        return Model(
            nodes=nodes,
            tensors=tensors,
            inputs=tuple(self.port(_bytes(*entry)) for entry in graph["inputs"]),
            outputs=tuple(self.port(_bytes(*entry)) for entry in graph["outputs"]),
            opset=opset,
            producer=_text(*found.get("producer", _NO_TEXT)),
        )

    def graph(self, view: memoryview) -> tuple[dict[str, Any], tuple[Node, ...], tuple[StoredTensor, ...]]:
        """A GraphProto: its fields, nodes and tensors."""
        graph = self.message(view, {}, _GRAPH_FIELDS)
        if graph["sparse"]:
            raise FileFormatError("the model holds sparse tensors", hint="Store them as ordinary ones")
        self.limits.check_count(len(graph["tensors"]), "the graph")
        nodes = tuple(self.node(_bytes(*entry)) for entry in graph["nodes"])
        return graph, nodes, tuple(self.tensor(_bytes(*entry)) for entry in graph["tensors"])

    def branch(self, view: memoryview) -> Branch:
        """A GraphProto inside a node."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise FileFormatError(f"branches are nested more than {_DEEPEST} deep")
        graph, nodes, tensors = self.graph(view)
        self.depth -= 1
        return Branch(nodes, tensors, tuple(self.port(_bytes(*entry)).name for entry in graph["outputs"]))

    def opset(self, view: memoryview) -> tuple[str, int]:
        """An OperatorSetIdProto."""
        found = self.message(view, {1: "domain", 2: "version"}, {})
        domain = _text(*found.get("domain", _NO_TEXT))
        return domain, _integer(*found.get("version", _ZERO))

    def node(self, view: memoryview) -> Node:
        """A NodeProto."""
        found = self.message(view, {3: "name", 4: "op", 7: "domain"}, {1: "inputs", 2: "outputs", 5: "attributes"})
        op = _text(*found.get("op", _NO_TEXT))
        attributes: dict[str, Any] = {}
        branches: dict[str, Branch] = {}
        has_graph = False
        for entry in found["attributes"]:
            name, value, graph = self.attribute(_bytes(*entry))
            if name in attributes:
                raise FileFormatError(f"the attribute '{name[:80]}' stands twice")
            attributes[name] = None if graph else value
            has_graph |= graph
            if graph and op == "If" and value is not None:
                branches[name] = self.branch(value)
        domain = _text(*found.get("domain", _NO_TEXT))
        return Node(
            op=op,
            domain="" if domain == "ai.onnx" else domain,
            name=_text(*found.get("name", _NO_TEXT)),
            inputs=tuple(_text(*entry) for entry in found["inputs"]),
            outputs=tuple(_text(*entry) for entry in found["outputs"]),
            attributes=attributes,
            has_graph=has_graph,
            branches=branches,
        )

    def attribute(self, view: memoryview) -> tuple[str, Any, bool]:
        """An AttributeProto: its name, its value, and whether it is a graph, which then is left unread."""
        once = {1: "name", 2: "real", 3: "integer", 4: "text", 5: "tensor", 6: "graph", 20: "kind"}
        found = self.message(view, once, {7: "reals", 8: "integers", 9: "texts", 11: "graphs"})
        name = _text(*found.get("name", _NO_TEXT))
        kind = _integer(*found.get("kind", _ZERO))
        value: Any = None
        if "graph" in found or found["graphs"] or kind in _GRAPH_ATTRIBUTES:
            return name, _bytes(*found["graph"]) if "graph" in found else None, True
        if "tensor" in found:
            value = self.tensor(_bytes(*found["tensor"]))
        elif "text" in found or kind == 3:
            value = _text(*found.get("text", _NO_TEXT))
        elif "real" in found or kind == 1:
            value = _real(*found["real"]) if "real" in found else 0.0
        elif "integer" in found or kind == 2:
            value = _integer(*found.get("integer", _ZERO))
        elif found["texts"] or kind == 8:
            value = [_text(*entry) for entry in found["texts"]]
        elif found["reals"] or kind == 6:
            value = _numbers(found["reals"], np.dtype("<f4")).tolist()
        else:
            value = _integers(found["integers"]).tolist()
        return name, value, False

    def tensor(self, view: memoryview) -> StoredTensor:
        """A TensorProto."""
        once = {2: "dtype", 3: "segment", 8: "name", 9: "raw", 14: "location"}
        many = {1: "dims", 4: "float_data", 5: "int32_data", 6: "string_data", 7: "int64_data", 10: "double_data",
                11: "uint64_data", 13: "external"}  # fmt: skip
        found = self.message(view, once, many)
        name = _text(*found.get("name", _NO_TEXT))
        if "segment" in found or found["string_data"]:
            raise FileFormatError("the tensor is stored in segments or holds text", where=name[:80])
        shape = tuple(_integers(found["dims"]).tolist())
        if any(size < 0 for size in shape):
            raise FileFormatError(f"the tensor has the shape {shape}", where=name[:80])
        typed = {key: _integers(found[key]) for key in ("int32_data", "int64_data", "uint64_data") if found[key]}
        if found["float_data"]:
            typed["float_data"] = _numbers(found["float_data"], np.dtype("<f4"))
        if found["double_data"]:
            typed["double_data"] = _numbers(found["double_data"], np.dtype("<f8"))
        outside = "location" in found and _integer(*found["location"]) == 1
        external = dict(self.entry(_bytes(*entry)) for entry in found["external"]) if outside else {}
        return StoredTensor(
            name=name,
            dtype=_integer(*found.get("dtype", _ZERO)),
            shape=shape,
            raw=_bytes(*found["raw"]) if "raw" in found else None,
            typed=typed,
            external={"location": "", **external} if outside else {},
        )

    def entry(self, view: memoryview) -> tuple[str, str]:
        """A StringStringEntryProto."""
        found = self.message(view, {1: "key", 2: "value"}, {})
        return _text(*found.get("key", _NO_TEXT)), _text(*found.get("value", _NO_TEXT))

    def port(self, view: memoryview) -> Port:
        """A ValueInfoProto."""
        found = self.message(view, {1: "name", 2: "type"}, {})
        name = _text(*found.get("name", _NO_TEXT))
        kind = self.message(_bytes(*found["type"]), {1: "tensor"}, {}) if "type" in found else {}
        if "tensor" not in kind:
            return Port(name, 0, None)
        tensor = self.message(_bytes(*kind["tensor"]), {1: "dtype", 2: "shape"}, {})
        shape: tuple[int | str | None, ...] | None = None
        if "shape" in tensor:
            sizes = self.message(_bytes(*tensor["shape"]), {}, {1: "sizes"})["sizes"]
            shape = tuple(self.size(_bytes(*entry)) for entry in sizes)
        return Port(name, _integer(*tensor.get("dtype", _ZERO)), shape)

    def size(self, view: memoryview) -> int | str | None:
        """One size of a shape."""
        found = self.message(view, {1: "number", 2: "name"}, {})
        if "number" in found:
            return _integer(*found["number"])
        return _text(*found["name"]) if "name" in found else None


def _bytes(kind: int, value: Any) -> memoryview:
    if kind != BYTES:
        raise FileFormatError("a number stands where a message belongs")
    return memoryview(value)


def _text(kind: int, value: Any) -> str:
    try:
        return str(_bytes(kind, value), "utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError("a name is not valid UTF-8") from error


def _integer(kind: int, value: Any) -> int:
    if kind != VARINT:
        raise FileFormatError("a message stands where a whole number belongs")
    return signed(value)


def _real(kind: int, value: Any) -> float:
    if kind == VARINT or len(value) != 4:
        raise FileFormatError("a field that should hold a 32-bit number does not")
    return real(value)


def _integers(entries: list[tuple[int, Any]]) -> np.ndarray:
    """A repeated field of whole numbers, each by itself or packed."""
    if all(kind == VARINT for kind, _ in entries):
        return np.array([signed(value) for _, value in entries], np.int64)
    pieces = [np.array([signed(v)], np.int64) if k == VARINT else packed_integers(_bytes(k, v)) for k, v in entries]
    return np.concatenate(pieces)


def _numbers(entries: list[tuple[int, Any]], dtype: np.dtype[Any]) -> np.ndarray:
    """A repeated field of floating point numbers, each by itself or packed."""
    pieces = []
    for kind, value in entries:
        if kind == VARINT or len(value) % dtype.itemsize:
            raise FileFormatError("a list of floating point numbers is cut off")
        pieces.append(np.frombuffer(value, dtype))
    return np.concatenate(pieces) if len(pieces) != 1 else pieces[0]
