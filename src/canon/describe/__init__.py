"""What channels compute, free of order and scale: sketches, signatures, constants and clusters.

Recovery compares a space's channels with each other, alignment with those of another model; both describe them here.
"""

from canon.describe.arrays import Array
from canon.describe.cluster import cluster
from canon.describe.constants import constant_values
from canon.describe.coordinates import Coordinates
from canon.describe.parameters import Parameters
from canon.describe.program import Program, program_of
from canon.describe.signature import Signature, Stack, describe
from canon.describe.sketch import SKETCH, RowSketch, sketch_rows

__all__ = [
    "Array", "Coordinates", "Parameters", "Program", "RowSketch", "Signature", "Stack", "cluster", "constant_values",
    "describe", "program_of", "sketch_rows", "SKETCH",
]  # fmt: skip
