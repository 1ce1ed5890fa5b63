"""From channel transforms to a new, ordinary model."""

from canon.rewrite.fold import FoldableNorm as FoldableNorm
from canon.rewrite.fold import Folded as Folded
from canon.rewrite.fold import fold_norms as fold_norms
from canon.rewrite.fold import foldable_norms as foldable_norms
from canon.rewrite.fold import norms_behind_layers as norms_behind_layers
from canon.rewrite.kernels import resize_kernels as resize_kernels
from canon.rewrite.spec import SpaceRewrite as SpaceRewrite
from canon.rewrite.surgery import replace_tensors as replace_tensors
from canon.rewrite.surgery import rewrite as rewrite
from canon.rewrite.tensors import rewrite_tensors as rewrite_tensors
from canon.rewrite.unfold import restore_norms as restore_norms

__all__ = [
    "FoldableNorm", "Folded", "SpaceRewrite", "fold_norms", "foldable_norms", "norms_behind_layers", "replace_tensors",
    "resize_kernels", "restore_norms", "rewrite", "rewrite_tensors",
]  # fmt: skip
