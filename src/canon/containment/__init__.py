"""Containment: the owner's network found inside whatever was built around it.

Nothing has to be shown redundant: the owner's channels are looked for, and what is nobody's is left out.
"""

from canon.containment.agreement import Agreement as Agreement
from canon.containment.locating import locate as locate
from canon.containment.location import LocatedLayer as LocatedLayer
from canon.containment.location import LocatedSpace as LocatedSpace
from canon.containment.location import Location as Location
from canon.containment.location import Updates as Updates

__all__ = ["locate", "Location", "LocatedLayer", "LocatedSpace", "Agreement", "Updates"]
