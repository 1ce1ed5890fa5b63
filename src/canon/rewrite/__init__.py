"""From channel transforms to a new, ordinary model."""

from canon.rewrite.spec import SpaceRewrite as SpaceRewrite
from canon.rewrite.surgery import replace_tensors as replace_tensors
from canon.rewrite.surgery import resize_kernels as resize_kernels
from canon.rewrite.surgery import rewrite as rewrite
from canon.rewrite.tensors import rewrite_tensors as rewrite_tensors

__all__ = ["SpaceRewrite", "replace_tensors", "resize_kernels", "rewrite", "rewrite_tensors"]
