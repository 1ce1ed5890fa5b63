"""What others do against structural obfuscation, behind one interface, to compare Canon with.

>>> sorted(BASELINES)
['neuron-map', 'single-pass', 'yan-full', 'yan-partial', 'yan-skilled']
"""

from canon_benchmarks.baselines.interface import Baseline as Baseline
from canon_benchmarks.baselines.interface import BaselineResult as BaselineResult
from canon_benchmarks.baselines.neuron_map import NeuronMap as NeuronMap
from canon_benchmarks.baselines.single_pass import SinglePass as SinglePass
from canon_benchmarks.baselines.yan import FullyKnowledgeable as FullyKnowledgeable
from canon_benchmarks.baselines.yan import PartiallyKnowledgeable as PartiallyKnowledgeable
from canon_benchmarks.baselines.yan import Skilled as Skilled

BASELINES: dict[str, Baseline] = {
    baseline.name: baseline
    for baseline in (PartiallyKnowledgeable(), Skilled(), FullyKnowledgeable(), NeuronMap(), SinglePass())
}
"""By name."""

__all__ = [
    "BASELINES", "Baseline", "BaselineResult", "FullyKnowledgeable", "NeuronMap", "PartiallyKnowledgeable",
    "SinglePass", "Skilled",
]  # fmt: skip
