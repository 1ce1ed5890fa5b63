"""The sizes that layers keep in attributes, brought up to date from their tensors."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd


def _is_transposed_linear(module: nn.Module) -> bool:
    """transformers' Conv1D: a linear layer with its weight stored the other way around."""
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


def update_sizes(module: nn.Module) -> None:
    """Make a layer's attributes agree with its tensors."""
    layer: Any = module
    if isinstance(module, nn.Linear):
        layer.out_features, layer.in_features = layer.weight.shape
    elif isinstance(module, _ConvTransposeNd):
        if layer.groups > 1 and layer.groups == layer.in_channels:
            layer.groups = layer.weight.shape[0]
        layer.in_channels = layer.weight.shape[0]
        layer.out_channels = layer.weight.shape[1] * layer.groups
    elif isinstance(module, _ConvNd):
        if layer.groups > 1 and layer.groups == layer.in_channels:
            layer.groups = layer.weight.shape[0] // (layer.out_channels // layer.in_channels)
        layer.in_channels = layer.weight.shape[1] * layer.groups
        layer.out_channels = layer.weight.shape[0]
    elif isinstance(module, _NormBase):
        sized = layer.weight if layer.weight is not None else layer.running_mean
        if sized is not None:
            layer.num_features = sized.shape[0]
    elif isinstance(module, nn.GroupNorm) and layer.weight is not None:
        if layer.num_groups == layer.num_channels:
            layer.num_groups = layer.weight.shape[0]
        layer.num_channels = layer.weight.shape[0]
    elif isinstance(module, nn.RNNBase) and layer.proj_size == 0:
        layer.hidden_size, layer.input_size = layer.weight_hh_l0.shape[1], layer.weight_ih_l0.shape[1]
    elif isinstance(module, nn.Embedding):
        layer.num_embeddings, layer.embedding_dim = layer.weight.shape
    elif _is_transposed_linear(module):
        layer.nx, layer.nf = layer.weight.shape
    elif isinstance(module, nn.PReLU):
        layer.num_parameters = layer.weight.shape[0]
