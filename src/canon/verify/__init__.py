"""Verification: alignment with a reference or a layout key, certificates, verdicts and evidence.

Nothing here trusts an attack or a recovery: it is given models and files, and compares them.
"""

from canon.verify.alignment import Alignment as Alignment
from canon.verify.alignment import SpaceMatch as SpaceMatch
from canon.verify.alignment import align as align
from canon.verify.architecture import Architecture as Architecture
from canon.verify.certificate import SWEEP as SWEEP
from canon.verify.certificate import Certificate as Certificate
from canon.verify.certificate import LayerResult as LayerResult
from canon.verify.certificate import certify as certify
from canon.verify.certificate import compare as compare
from canon.verify.certificate import layer_spaces as layer_spaces
from canon.verify.key import LayoutKey as LayoutKey
from canon.verify.key import register as register
from canon.verify.layout import Layout as Layout
from canon.verify.layout import layout_of as layout_of
from canon.verify.matching import Matching as Matching

__all__ = [
    "align", "certify", "compare", "register", "LayoutKey", "Alignment", "SpaceMatch", "Certificate", "LayerResult",
    "Layout", "layout_of", "layer_spaces", "Architecture", "Matching", "SWEEP",
]  # fmt: skip
