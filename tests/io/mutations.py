"""Ways to damage a file: blindly, or with the damage hidden behind right checksums and lengths."""

from __future__ import annotations

import copy
import io
import json
import random
import struct
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]

EXTREMES = (
    0, 1, 2, 7, 127, 128, 255, 256, 65535, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1,
    (1 << 64) - 1,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 3, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 70, 0.5, 1e308, "", "x", "../../etc/passwd",
    "a" * 300, [], {}, [[]], [1, 2], {"a": 1}, "__class__", "forward", "F64", "NaN", "torch.ops.aten.from_file.default",
    "os.system", [1 << 40, 1 << 40], [-1],
)  # fmt: skip
TEXTS = [value for value in VALUES if isinstance(value, str)]
INTEGERS = [value for value in VALUES if type(value) is int and abs(value) < 1 << 63]


def flip_bits(data: bytes, draw: random.Random) -> bytes:
    """A few bits change."""
    if not data:
        return b"\0"
    found = bytearray(data)
    reach = len(found) if draw.random() < 0.5 else min(len(found), 512)
    for _ in range(draw.choice((1, 1, 2, 4, 16, 64))):
        place = draw.randrange(reach) if draw.random() < 0.7 else len(found) - 1 - draw.randrange(reach)
        found[place] ^= 1 << draw.randrange(8)
    return bytes(found)


def truncate(data: bytes, draw: random.Random) -> bytes:
    """The end is missing."""
    return data[: draw.randrange(len(data) + 1)] if draw.random() < 0.7 else data[: -draw.randrange(1, 64)]


def lie_about_lengths(data: bytes, draw: random.Random) -> bytes:
    """Some number in the file becomes an extreme one."""
    found = bytearray(data)
    width = draw.choice((1, 2, 4, 8))
    reach = len(found) if draw.random() < 0.4 else min(len(found), 256)
    place = draw.randrange(max(1, reach))
    if draw.random() < 0.3:
        place = max(0, len(found) - reach + draw.randrange(max(1, reach)))
    value = draw.choice(EXTREMES) & ((1 << 8 * width) - 1)
    found[place : place + width] = value.to_bytes(width, draw.choice(("little", "little", "big")))
    return bytes(found)


def splice(data: bytes, draw: random.Random) -> bytes:
    """A stretch is copied over another, inserted or taken out."""
    size = min(len(data), draw.choice((1, 4, 16, 64, 512, 4096)))
    a, b = draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)
    piece = data[a : a + size]
    match draw.randrange(4):
        case 0:
            return data[:b] + piece + data[b + size :]
        case 1:
            return data[:b] + piece + data[b:]
        case 2:
            return data[:b] + data[b + size :]
        case _:
            return data[:b] + piece * draw.choice((2, 10, 1000)) + data[b:]


def grow(data: bytes, draw: random.Random) -> bytes:
    """Something stands before or after."""
    more = draw.randbytes(draw.choice((1, 8, 100, 5000)))
    return data + more if draw.random() < 0.7 else more + data


BLIND: tuple[Mutation, ...] = (flip_bits, flip_bits, truncate, lie_about_lengths, lie_about_lengths, splice, grow)


def blindly(data: bytes, draw: random.Random) -> bytes:
    """One to three kinds of damage."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        data = draw.choice(BLIND)(data, draw) or b"\0"
    return data


def change_json(data: bytes, draw: random.Random) -> bytes:
    """Values of a JSON document are exchanged, removed, doubled or renamed."""
    try:
        document = json.loads(data)
    except ValueError:
        return blindly(data, draw)
    for _ in range(draw.choice((1, 1, 2, 5))):
        _change(document, draw)
    return json.dumps(document).encode()


def _change(document: Any, draw: random.Random) -> None:
    parent: Any = None
    key: Any = None
    node = document
    while isinstance(node, dict | list) and node and (parent is None or draw.random() < 0.85):
        parent = node
        key = draw.choice(list(node)) if isinstance(node, dict) else draw.randrange(len(node))
        node = node[key]
    if parent is None:
        return
    match draw.randrange(6):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent[draw.choice(TEXTS)] = parent.pop(key)
        case 2 if isinstance(parent, list):
            parent.insert(key, copy.deepcopy(node))
        case 3:
            other = draw.choice(list(parent)) if isinstance(parent, dict) else draw.randrange(len(parent))
            parent[key], parent[other] = parent[other], parent[key]
        case 4 if isinstance(node, int):
            parent[key] = (
                node + draw.choice((-1, 1, 1 << 20)) if draw.random() < 0.7 else node * draw.choice((-1, 2, 1 << 33))
            )
        case _:
            parent[key] = copy.deepcopy(draw.choice(VALUES))


def change_safetensors(data: bytes, draw: random.Random) -> bytes:
    """The header changes and its length is right; the text of a key's own header may change inside it."""
    size = int.from_bytes(data[:8], "little")
    header, rest = data[8 : 8 + size], data[8 + size :]
    document = json.loads(header)
    note = document.get("__metadata__", {}).get("canon")
    if note is not None and draw.random() < 0.6:
        document["__metadata__"]["canon"] = change_json(note.encode(), draw).decode("utf-8", "replace")
        header = json.dumps(document).encode()
    else:
        header = change_json(header, draw)
    if draw.random() < 0.1:
        rest = blindly(rest, draw)
    return len(header).to_bytes(8, "little") + header + rest


def change_archive(data: bytes, draw: random.Random) -> bytes:
    """Records of an archive change, and its checksums are right; or the directory itself is edited."""
    if draw.random() < 0.3:
        return _edit_directory(data, draw)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        records = [(info.filename, archive.read(info)) for info in archive.infolist()]
    parsed = [i for i, (name, _) in enumerate(records) if name.endswith((".json", ".pkl"))]
    for _ in range(draw.choice((1, 1, 2))):
        index = draw.choice(parsed) if parsed and draw.random() < 0.8 else draw.randrange(len(records))
        name, content = records[index]
        records[index] = (name, (change_json if name.endswith(".json") else blindly)(content, draw))
    match draw.randrange(12):
        case 0:
            records.append(draw.choice(records))
        case 1:
            records.append((draw.choice(("../evil", "/etc/evil", "a/../../b", "C:\\evil", "x")), b"evil"))
        case 2:
            records.pop(draw.randrange(len(records)))
        case 3:
            draw.shuffle(records)
    method = zipfile.ZIP_DEFLATED if draw.random() < 0.03 else zipfile.ZIP_STORED
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in records:
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # two records of one name are what is wanted
                archive.writestr(info, content)
    return out.getvalue()


def _edit_directory(data: bytes, draw: random.Random) -> bytes:
    """Fields of the central directory or of its end become extreme."""
    found = bytearray(data)
    places = [
        i for i in range(len(data) - 4) if data[i : i + 4] in (b"PK\1\2", b"PK\5\6", b"PK\3\4", b"PK\6\6", b"PK\6\7")
    ]
    for _ in range(draw.choice((1, 2, 4))):
        start = draw.choice(places) if draw.random() < 0.7 else places[-1]
        place = start + 4 + draw.randrange(42)
        width = draw.choice((2, 4))
        value = draw.choice((*EXTREMES, start, len(data))) & ((1 << 8 * width) - 1)
        found[place : place + width] = struct.pack("<H" if width == 2 else "<L", value)
    return bytes(found)


def change_onnx(data: bytes, draw: random.Random) -> bytes:
    """Fields of the graph change, and all lengths are right."""
    import onnx

    model = onnx.load_from_string(data)
    graph = model.graph
    for _ in range(draw.choice((1, 1, 2, 4))):
        node, tensor = draw.choice(graph.node), draw.choice(graph.initializer)
        match draw.randrange(11):
            case 0:
                node.op_type = draw.choice(
                    [n.op_type for n in graph.node] + ["If", "Loop", "Reshape", "Expand", "Tile"]
                )
            case 1 if node.attribute:
                attribute = draw.choice(node.attribute)
                attribute.i = draw.choice(INTEGERS)
                attribute.ints[:] = [draw.choice(INTEGERS) for _ in attribute.ints]
            case 2:
                tensor.dims[:] = [draw.choice((*tensor.dims, *INTEGERS)) for _ in range(draw.randrange(6))]
            case 3:
                tensor.raw_data = blindly(tensor.raw_data, draw)
            case 4:
                tensor.data_type = draw.randrange(30)
            case 5:
                node.input[:] = [draw.choice([*node.input, *node.output, "", "x"]) for _ in node.input]
            case 6:
                name = draw.choice(TEXTS)
                draw.choice((node, tensor)).name = name
            case 7:
                tensor.data_location = onnx.TensorProto.EXTERNAL
                tensor.external_data.add(key="location", value=draw.choice(("../corpus/old.pth", "/etc/passwd", "x")))
                tensor.external_data.add(key="length", value=str(draw.choice(EXTREMES)))
            case 8:
                graph.node.add().CopyFrom(node)
            case 9 if graph.input:
                for dim in draw.choice(graph.input).type.tensor_type.shape.dim:
                    if draw.random() < 0.4:
                        dim.dim_value = draw.choice(INTEGERS)
            case _:
                graph.node.remove(node)
                if not graph.node:
                    break
    return bytes(model.SerializeToString())


def mutate(data: bytes, kind: str, draw: random.Random) -> bytes:
    """A damaged copy of a file of this kind."""
    if draw.random() < 0.4:
        return blindly(data, draw)
    match kind:
        case "safetensors" | "layout key" | "watermark key":
            return change_safetensors(data, draw)
        case "index":
            return change_json(data, draw)
        case "state dict" | "torch.export":
            return change_archive(data, draw)
        case "onnx":
            return change_onnx(data, draw)
    return blindly(data, draw)
