"""From channel transforms to a new, ordinary model."""

from canon.rewrite.fold import FoldableNorm, Folded, fold_norms, foldable_norms, norms_behind_layers
from canon.rewrite.kernels import resize_kernels
from canon.rewrite.settle import settled
from canon.rewrite.spec import SpaceRewrite
from canon.rewrite.surgery import replace_tensors, rewrite
from canon.rewrite.tensors import rewrite_tensors
from canon.rewrite.unfold import restore_norms

__all__ = [
    "FoldableNorm", "Folded", "SpaceRewrite", "fold_norms", "foldable_norms", "norms_behind_layers", "replace_tensors",
    "resize_kernels", "restore_norms", "rewrite", "rewrite_tensors", "settled",
]  # fmt: skip
