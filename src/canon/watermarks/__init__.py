"""White-box watermarks: embed a message by training, read it back with the owner's key.

>>> from canon import watermarks
>>> watermarks.names()[:2]
('uchida17', 'greedy')
"""

from __future__ import annotations

from canon.watermarks.controls import Controls
from canon.watermarks.data import Augmentation, Dataset
from canon.watermarks.embedding import Embedding
from canon.watermarks.extraction import Extraction
from canon.watermarks.interface import EmbedResult, Scheme, Target
from canon.watermarks.key import Key, load_key
from canon.watermarks.message import Message
from canon.watermarks.reading import Reader, Reading
from canon.watermarks.registry import add, get, names
from canon.watermarks.train import EpochReport, TrainOptions, accuracy

__all__ = [
    "names",
    "get",
    "add",
    "load_key",
    "Message",
    "Key",
    "Extraction",
    "Controls",
    "EmbedResult",
    "Augmentation",
    "Dataset",
    "TrainOptions",
    "EpochReport",
    "accuracy",
    "Scheme",
    "Embedding",
    "Target",
    "Reader",
    "Reading",
]
