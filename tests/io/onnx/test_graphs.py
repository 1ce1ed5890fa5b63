"""What becomes of a graph: ordinary layers, idioms by their names, sizes that follow a rewrite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import canon
from canon.errors import FileFormatError, UnsupportedModelError
from canon.graph.tensors import tensor_names
from canon.io import Limits
from canon.io.onnx import example_input, load_onnx
from tests.io.onnx.graphs import graph, images, node, numbers, read, run, write


def called(model: Any) -> list[str]:
    """The operations of a graph module, in order."""
    nodes = [n for n in model.graph.nodes if n.op.startswith("call") and n.target != "size"]
    return [
        type(model.get_submodule(n.target)).__name__
        if n.op == "call_module"
        else getattr(n.target, "__name__", n.target)
        for n in nodes
    ]


IDIOMS = {
    "silu": [node("Sigmoid", "x", "s"), node("Mul", "x s")],
    "hardswish": [node("HardSigmoid", "x", "s", alpha=1 / 6, beta=0.5), node("Mul", "s x")],
    "mish": [node("Softplus", "x", "a"), node("Tanh", "a", "s"), node("Mul", "x s")],
    "relu6": [node("Clip", "x zero six")],
    "relu": [node("Clip", "x zero")],
    "gelu": [
        node("Div", "x root", "a"), node("Erf", "a", "e"), node("Add", "e one", "s"), node("Mul", "x s", "p"),
        node("Mul", "p half"),
    ],
    "adaptive_avg_pool2d": [node("GlobalAveragePool", "x")],
}  # fmt: skip
NUMBERS = {"zero": 0.0, "six": 6.0, "three": 3.0, "one": 1.0, "half": 0.5, "root": 2**0.5}


@pytest.mark.parametrize("name", IDIOMS)
def test_idioms_get_their_names(name: str, tmp_path: Path) -> None:
    model = graph(IDIOMS[name], {key: np.array(value, np.float32) for key, value in NUMBERS.items()})
    ours = read(model, tmp_path)
    assert called(ours) == [name]
    torch.testing.assert_close(ours(images()), run(model, images())[0])


def test_hardswish_written_out(tmp_path: Path) -> None:
    nodes = [
        node("Add", "x three", "a"),
        node("Clip", "a zero six", "c"),
        node("Mul", "x c", "m"),
        node("Div", "m six"),
    ]
    model = graph(nodes, {key: np.array(value, np.float32) for key, value in NUMBERS.items()})
    ours = read(model, tmp_path)
    assert called(ours) == ["hardswish"]
    torch.testing.assert_close(ours(images()), run(model, images())[0])


def convolutional(last: list[Any], tensors: dict[str, np.ndarray]) -> Any:
    nodes = [node("Conv", "x a.weight", "h", pads=[1] * 4), node("Relu", "h", "r"), *last]
    return graph(nodes, {"a.weight": numbers(6, 4, 3, 3), **tensors})


FLATTENS = {
    "literal": ([node("GlobalAveragePool", "r", "p"), node("Reshape", "p shape", "f")], [-1, 6]),
    "copied": ([node("GlobalAveragePool", "r", "p"), node("Reshape", "p shape", "f")], [0, -1]),
    "computed": (
        [
            node("GlobalAveragePool", "r", "p"), node("Shape", "p", "s"), node("Gather", "s first", "b"),
            node("Unsqueeze", "b axes", "u"), node("Concat", "u shape", "t", axis=0), node("Reshape", "p t", "f"),
        ],
        [6],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FLATTENS)
def test_written_sizes_follow_the_width(name: str, tmp_path: Path) -> None:
    last, shape = FLATTENS[name]
    tensors = {
        "shape": np.array(shape), "first": np.array(0), "axes": np.array([0]),
        "b.weight": numbers(5, 6), "b.bias": numbers(5),
    }  # fmt: skip
    model = convolutional([*last, node("Gemm", "f b.weight b.bias", transB=1)], tensors)
    ours = read(model, tmp_path)
    torch.testing.assert_close(ours(images()), run(model, images())[0])
    assert canon.trace(ours, images()).space_named("a").pinned is None
    attacked = canon.attack(ours, images(), ops=["mix-opseq"], ratio=0.5, seed=0).model
    torch.testing.assert_close(attacked(images()), ours(images()), rtol=1e-4, atol=1e-4)
    result = canon.recover(attacked, images())
    assert tensor_names(result.model)[0]["a.weight"].shape == (6, 4, 3, 3)


def test_names_and_layers_are_those_of_the_tensors(tmp_path: Path) -> None:
    tensors = {"head.fc.weight": numbers(6, 5), "head.bias": numbers(5)}
    model = convolutional([node("Transpose", "r", "t", perm=[0, 2, 3, 1]), node("MatMul", "t head.fc.weight", "m"),
                           node("Add", "m head.bias")], tensors)  # fmt: skip
    ours = read(model, tmp_path)
    layer = ours.get_submodule("head.fc")
    assert isinstance(layer, nn.Linear)
    assert layer.bias is not None
    assert called(ours) == ["Conv2d", "relu", "permute", "Linear"]
    torch.testing.assert_close(ours(images()), run(model, images())[0])


@pytest.mark.parametrize("shape", [(8,), (8, 1), (1, 8, 1), (1, 1, 1, 8)])
def test_only_what_is_added_per_channel_is_a_bias(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Eight channels, eight rows and eight columns: the axis decides."""
    model = graph([node("Conv", "x w", "h", pads=[1] * 4), node("Add", "h b")],
                  {"w": numbers(8, 4, 3, 3), "b": numbers(*shape)})  # fmt: skip
    ours = read(model, tmp_path)
    assert called(ours) == ["Conv2d", "add"]
    torch.testing.assert_close(ours(images()), run(model, images())[0])


def test_a_tensor_used_twice_is_one_parameter(tmp_path: Path) -> None:
    model = graph([node("Conv", "x w", "h", pads=[1] * 4), node("Relu", "h", "r"), node("Conv", "r w", pads=[1] * 4)],
                  {"w": numbers(4, 4, 3, 3)})  # fmt: skip
    ours = read(model, tmp_path)
    assert len(list(ours.parameters())) == 1
    assert called(ours) == ["Conv2d", "relu", "Conv2d"]
    torch.testing.assert_close(ours(images()), run(model, images())[0])


def test_uneven_padding_is_a_step_of_its_own(tmp_path: Path) -> None:
    model = graph([node("Conv", "x w", strides=[2, 2], auto_pad="SAME_UPPER")], {"w": numbers(4, 4, 3, 3)},
                  shape=(2, 4, 8, 8))  # fmt: skip
    ours = read(model, tmp_path)
    assert called(ours) == ["pad", "Conv2d"]
    torch.testing.assert_close(ours(images()), run(model, images())[0])


def test_open_sizes_can_be_given(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", strides=[2, 2], auto_pad="SAME_UPPER")]
    path = write(graph(nodes, {"w": numbers(4, 4, 3, 3)}, shape=("batch", 4, "height", "width")), tmp_path)
    with pytest.raises(UnsupportedModelError, match="padding depends on the size of the input"):
        load_onnx(path, Limits())
    ours = load_onnx(path, Limits(), size=(4, 9, 9))
    (x,) = example_input(ours)
    assert x.shape == (2, 4, 9, 9)
    torch.testing.assert_close(ours(x), run(path, x)[0])


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.FLOAT])
@pytest.mark.parametrize("raw", [True, False])
def test_element_types(kind: int, raw: bool, tmp_path: Path) -> None:
    array = numbers(3, 4).astype(helper.tensor_dtype_to_np_dtype(kind))
    data = array.tobytes() if raw else array.flatten().tolist()
    model = graph([node("Gemm", "x w", transB=1)], shape=("batch", 4))
    model.graph.input[0].type.tensor_type.elem_type = kind
    model.graph.initializer.append(helper.make_tensor("w", kind, (3, 4), data, raw=raw))
    ours = read(model, tmp_path)
    np.testing.assert_array_equal(next(ours.parameters()).detach().numpy(), array)


def test_unknown_operators_are_all_named(tmp_path: Path) -> None:
    nodes = [node("Det", "x", "a"), node("Unique", "a", "b"), helper.make_node("Mine", ["b"], ["y"], domain="my.own")]
    with pytest.raises(UnsupportedModelError, match=r"3 operators .*: Det, Unique, my\.own\.Mine"):
        read(graph(nodes), tmp_path)


def branching(condition: list[Any], tensors: dict[str, np.ndarray]) -> Any:
    """ReLU or the negative, as the value `c` says; both branches call their inner value alike."""
    results = [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
    then = helper.make_graph([node("Relu", "h", "inner"), node("Identity", "inner", "z")], "then", [], results)
    other = helper.make_graph([node("Neg", "h", "inner"), node("Mul", "inner two", "z")], "else", [], results)
    other.initializer.append(numpy_helper.from_array(np.array(2, np.float32), "two"))
    nodes = [node("Abs", "x", "h"), *condition]
    nodes += [helper.make_node("If", ["c"], [name], then_branch=then, else_branch=other) for name in ("a", "b")]
    return graph([*nodes, node("Add", "a b")], tensors, shape=(2, 4, 8, 8))


@pytest.mark.parametrize("taken", [True, False])
def test_branches_that_are_decided_are_followed(taken: bool, tmp_path: Path) -> None:
    known = branching([], {"c": np.array(taken)})
    torch.testing.assert_close(read(known, tmp_path)(images()), run(known, images())[0])
    size = np.array([2 if taken else 3, 4, 8, 8], np.int64)
    sizes = branching(
        [node("Shape", "h", "s"), node("Equal", "s n", "e"), node("Gather", "e first", "c")],
        {"n": size, "first": np.array(0, np.int64)},
    )
    torch.testing.assert_close(read(sizes, tmp_path)(images()), run(sizes, images())[0])


def test_control_flow_is_refused(tmp_path: Path) -> None:
    decided = [node("ReduceSum", "x", "s", keepdims=0), node("Cast", "s", "c", to=TensorProto.BOOL)]
    with pytest.raises(UnsupportedModelError, match="control flow: If, decided by values"):
        read(branching(decided, {}), tmp_path)
    body = helper.make_graph([node("Relu", "x")], "b", [], [helper.make_tensor_value_info("y", 1, None)])
    with pytest.raises(UnsupportedModelError, match="control flow: Loop"):
        read(graph([helper.make_node("Loop", ["", "c"], ["y"], body=body)], {"c": np.array(True)}), tmp_path)


def test_nodes_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    model = graph([node("Relu", "h"), node("Neg", "x", "h")])
    assert called(read(model, tmp_path)) == ["neg", "relu"]
    with pytest.raises(FileFormatError, match="read before anything makes it"):
        read(graph([node("Add", "x b", "a"), node("Neg", "a", "b"), node("Relu", "b")]), tmp_path)


def test_a_state_for_one_sample_fixes_the_batch(tmp_path: Path) -> None:
    """The file leaves its batch open and has a state for one sample: it can only mean one sample."""
    shapes: dict[str, Any] = {"x": [5, "batch", 6], "state": [1, 1, 4], "y": None}
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    made = helper.make_graph(
        [node("GRU", "x w r b _ state", "y", hidden_size=4, linear_before_reset=1)], "test", ports[:2], ports[2:],
        [numpy_helper.from_array(numbers(1, *shape), name)
         for name, shape in (("w", (12, 6)), ("r", (12, 4)), ("b", (24,)))],
    )  # fmt: skip
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    ours: Any = read(model, tmp_path)
    x, state = example_input(ours)
    assert x.shape[1] == state.shape[1] == 1
    assert any("one sample" in note for note in ours.meta["notes"])
    assert ours(x, state).shape == (x.shape[0], 1, 1, 4)
