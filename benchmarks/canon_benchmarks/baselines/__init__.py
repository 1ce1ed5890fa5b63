"""What others do against structural obfuscation, behind one interface, to compare Canon with.

>>> sorted(BASELINES)
['neuron-map', 'single-pass', 'yan-full', 'yan-partial', 'yan-skilled']
"""

from canon_benchmarks.baselines.interface import Baseline, BaselineResult
from canon_benchmarks.baselines.neuron_map import NeuronMap
from canon_benchmarks.baselines.single_pass import SinglePass
from canon_benchmarks.baselines.yan import FullyKnowledgeable, PartiallyKnowledgeable, Skilled

BASELINES: dict[str, Baseline] = {
    baseline.name: baseline
    for baseline in (PartiallyKnowledgeable(), Skilled(), FullyKnowledgeable(), NeuronMap(), SinglePass())
}
"""By name."""

__all__ = [
    "BASELINES", "Baseline", "BaselineResult", "FullyKnowledgeable", "NeuronMap", "PartiallyKnowledgeable",
    "SinglePass", "Skilled",
]  # fmt: skip
