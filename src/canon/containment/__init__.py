"""Containment: the owner's network found inside whatever was built around it.

Nothing has to be shown redundant: the owner's channels are looked for, and what is nobody's is left out.
"""

from canon.containment.agreement import Agreement
from canon.containment.locating import locate
from canon.containment.location import LocatedLayer, LocatedSpace, Location, Span, Updates

__all__ = ["locate", "Location", "LocatedLayer", "LocatedSpace", "Agreement", "Span", "Updates"]
