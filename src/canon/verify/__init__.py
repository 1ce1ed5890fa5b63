"""Verification: alignment with a reference or a layout key, certificates, verdicts and evidence.

Nothing here trusts an attack or a recovery: it is given models and files, and compares them.
"""

from canon.verify.alignment import Alignment, SpaceMatch, align
from canon.verify.architecture import Architecture
from canon.verify.certificate import SWEEP, Certificate, LayerResult, certify, compare, layer_spaces
from canon.verify.key import LayoutKey, register
from canon.verify.layout import Layout, layout_of
from canon.verify.matching import Matching

__all__ = [
    "align", "certify", "compare", "register", "LayoutKey", "Alignment", "SpaceMatch", "Certificate", "LayerResult",
    "Layout", "layout_of", "layer_spaces", "Architecture", "Matching", "SWEEP",
]  # fmt: skip
