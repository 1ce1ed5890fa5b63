"""The same network as another program: a normal form, and a suspect's numbers brought into the owner's program."""

from canon.normal.housing import Housed as Housed
from canon.normal.housing import has_ties as has_ties
from canon.normal.housing import house as house
from canon.normal.outline import Outline as Outline
from canon.normal.outline import outline_of as outline_of
from canon.normal.simplify import simplify as simplify
from canon.normal.taps import idle_taps as idle_taps
from canon.normal.taps import without_idle_taps as without_idle_taps

__all__ = ["Housed", "Outline", "has_ties", "house", "idle_taps", "outline_of", "simplify", "without_idle_taps"]
