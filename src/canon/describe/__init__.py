"""What channels compute, free of order and scale: sketches, signatures, constants and clusters.

Recovery compares a space's channels with each other, alignment with those of another model; both describe them here.
"""

from canon.describe.arrays import Array as Array
from canon.describe.cluster import cluster as cluster
from canon.describe.constants import constant_values as constant_values
from canon.describe.coordinates import Coordinates as Coordinates
from canon.describe.parameters import Parameters as Parameters
from canon.describe.program import Program as Program
from canon.describe.program import program_of as program_of
from canon.describe.signature import Signature as Signature
from canon.describe.signature import Stack as Stack
from canon.describe.signature import describe as describe
from canon.describe.sketch import SKETCH as SKETCH
from canon.describe.sketch import RowSketch as RowSketch
from canon.describe.sketch import sketch_rows as sketch_rows

__all__ = [
    "Array", "Coordinates", "Parameters", "Program", "RowSketch", "Signature", "Stack", "cluster", "constant_values",
    "describe", "program_of", "sketch_rows", "SKETCH",
]  # fmt: skip
