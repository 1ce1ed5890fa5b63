"""Facts: all that is known of one subject, found out when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from canon.describe import Parameters
from canon.describe.curves import Curves
from canon.recovery.facts.magnitudes import Magnitudes
from canon.recovery.facts.ranges import Ranges
from canon.recovery.facts.sizes import Sizes
from canon.recovery.facts.subject import Subject
from canon.recovery.partition import Classes

FindClasses = Callable[[Subject], Mapping[int, Classes]]
"""How channels are compared."""


class Facts:
    """What is known of a subject."""

    def __init__(self, subject: Subject, find: FindClasses) -> None:
        self._subject, self._find = subject, find

    @cached_property
    def classes(self) -> Mapping[int, Classes]:
        """By space id: which channels are proportional, and which are constant."""
        return self._find(self._subject)

    @cached_property
    def parameters(self) -> Parameters:
        """Per-channel tensors on the host."""
        return Parameters(self._subject.graph, self._subject.tensors)

    @cached_property
    def curves(self) -> Curves:
        """What functions are like."""
        return Curves()

    @cached_property
    def ranges(self) -> Ranges:
        """Between which numbers values lie."""
        return Ranges(self._subject, self.parameters, lambda: self.sizes)

    @cached_property
    def sizes(self) -> Sizes:
        """How loud channels are."""
        return Sizes(self._subject, self.parameters)

    def magnitudes(self, small: float) -> Magnitudes:
        """How large weights are; less than `small` of the median is unusual."""
        return Magnitudes(self._subject, self.parameters, small)
