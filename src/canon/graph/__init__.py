"""From a model to its channel graph."""

from canon.graph.inputs import Example as Example
from canon.graph.inputs import arguments as arguments
from canon.graph.outline import Layer as Layer
from canon.graph.outline import outline as outline
from canon.graph.plain import plain as plain
from canon.graph.probes import probes as probes
from canon.graph.spec import ChannelGraph as ChannelGraph
from canon.graph.spec import Consumer as Consumer
from canon.graph.spec import LinearMap as LinearMap
from canon.graph.spec import Pin as Pin
from canon.graph.spec import Producer as Producer
from canon.graph.spec import Segment as Segment
from canon.graph.spec import Space as Space
from canon.graph.spec import Stage as Stage
from canon.graph.tracer import trace as trace
from canon.graph.tracer import trace_like as trace_like

__all__ = [
    "ChannelGraph", "Consumer", "Example", "Layer", "LinearMap", "Pin", "Producer", "Segment", "Space", "Stage",
    "arguments", "outline", "plain", "probes", "trace", "trace_like",
]  # fmt: skip
