"""From a model to its channel graph."""

from canon.graph.inputs import Example, arguments
from canon.graph.outline import Layer, outline
from canon.graph.plain import plain
from canon.graph.probes import probes
from canon.graph.spec import ChannelGraph, Consumer, LinearMap, Pin, Producer, Segment, Space, Stage
from canon.graph.tracer import trace, trace_like

__all__ = [
    "ChannelGraph", "Consumer", "Example", "Layer", "LinearMap", "Pin", "Producer", "Segment", "Space", "Stage",
    "arguments", "outline", "plain", "probes", "trace", "trace_like",
]  # fmt: skip
