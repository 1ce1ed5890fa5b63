"""The drawing: what reads what, what was added, and how large networks are gathered."""

from __future__ import annotations

from typing import Any

import pytest

from canon.graph import outline, trace
from canon.report.network import FEW, Row, draw, edges, stretches
from canon.zoo import example_input, model
from tests.report.documents import documents
from tests.verify.small import example, tiny


def layers(name: str) -> list[dict[str, Any]]:
    graph = trace(model(name), example_input(name))
    return [
        {
            "name": layer.name, "kind": layer.kind, "makes": layer.makes, "reads": layer.reads,
            "suspect": layer.width, "recovered": layer.width, "reference": None,
        }
        for layer in outline(graph)
    ]  # fmt: skip


def named(network: list[dict[str, Any]], pairs: list[tuple[int, int]]) -> set[tuple[str, str]]:
    return {(network[a]["name"], network[b]["name"]) for a, b in pairs}


def test_a_residual_stream_is_a_chain() -> None:
    network = [dict(vars(layer)) for layer in outline(trace(tiny(), example()))]
    reads, joins = edges(network)
    assert named(network, reads) == {("conv1", "conv2"), ("conv2", "conv3"), ("conv3", "fc")}
    assert named(network, joins) == set()
    network = layers("resnet18")
    reads, joins = edges(network)
    assert ("conv1", "layer1.0.conv2") in named(network, joins)
    assert ("layer1.1.conv2", "layer2.0.downsample.0") in named(network, reads)


def test_depthwise_layers_stand_between_their_neighbours() -> None:
    network = layers("mobilenet_v2")
    names = [layer["name"] for layer in network]
    assert names[:4] == ["features.0.0", "features.1.conv.0.0", "features.1.conv.1", "features.2.conv.0.0"]
    reads, _ = edges(network)
    assert ("features.1.conv.0.0", "features.1.conv.1") in named(network, reads)
    assert len(set(names)) == len(names) == 53


@pytest.mark.parametrize(
    ("name", "stages"),
    [("densenet121", 9), ("efficientnet_b0", 10), ("inception_v3", 17)],
)
def test_large_networks_are_drawn_by_stages(name: str, stages: int) -> None:
    network = layers(name)
    drawing = draw(network, None)
    assert len(network) > FEW
    assert len(drawing.rows) == stages
    assert sum(row.layers for row in drawing.rows) == len(network)
    assert sum(row.given for row in drawing.rows) == sum(layer["suspect"] for layer in network)
    inner = [row for stage in drawing.rows if stage.inside for row in stage.inside.rows]
    assert {row.name for row in inner} <= {layer["name"] for layer in network}


def lengths(row: Row) -> dict[str, int]:
    return {part.kind: part.channels for part in row.parts}


def test_bars_hold_every_channel_once() -> None:
    document = documents()["equal"]
    drawing = draw(document["network"], document["recovery"])
    for row, layer in zip(drawing.rows, document["network"], strict=True):
        assert sum(lengths(row).values()) == layer["suspect"]
        assert lengths(row)["left"] == layer["recovered"]
        assert row.parts[-1].start + row.parts[-1].length <= 100.001
    assert {kind for row in drawing.rows for kind in lengths(row)} == {"left", "silent", "cancelling", "copied"}


def test_what_was_not_recovered_is_left() -> None:
    document = documents()["derived"]
    drawing = draw(document["network"], None)
    for row, layer in zip(drawing.rows, document["network"], strict=True):
        assert lengths(row) == {"left": layer["suspect"]}


def test_stretches_are_in_proportion() -> None:
    owned, missing = stretches({"owned": 30, "copied": 0, "missing": 10}, 40)
    assert (owned.kind, owned.start, owned.length) == ("owned", 0.0, 75.0)
    assert (missing.kind, missing.start, missing.length) == ("missing", 75.0, 25.0)
