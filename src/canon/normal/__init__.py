"""The same network as another program: a normal form, and a suspect's numbers brought into the owner's program."""

from canon.normal.housing import Housed, has_ties, house
from canon.normal.outline import Outline, outline_of
from canon.normal.simplify import simplify
from canon.normal.taps import idle_taps, without_idle_taps

__all__ = ["Housed", "Outline", "has_ties", "house", "idle_taps", "outline_of", "simplify", "without_idle_taps"]
