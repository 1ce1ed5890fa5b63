"""The algebra of channel transforms."""

from canon.transforms.transform import ChannelTransform as ChannelTransform
from canon.transforms.transform import entries as entries

__all__ = ["ChannelTransform", "entries"]
