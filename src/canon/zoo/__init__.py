"""Models and datasets by name, for experiments, examples and tests.

torchvision, timm and scikit-learn are imported when something of theirs is asked for.
"""

from __future__ import annotations

from canon.watermarks.data import Dataset
from canon.zoo.compatibility import import_timm, import_torchvision
from canon.zoo.datasets import dataset, dataset_names
from canon.zoo.models import (
    DEFAULT_SIZE,
    PAPER_MODELS,
    example_input,
    input_size,
    model,
    model_names,
    reads_texts,
)
from canon.zoo.training import train_options

__all__ = [
    "DEFAULT_SIZE",
    "PAPER_MODELS",
    "Dataset",
    "dataset",
    "dataset_names",
    "example_input",
    "import_timm",
    "import_torchvision",
    "input_size",
    "model",
    "model_names",
    "reads_texts",
    "train_options",
]
