"""The algebra of channel transforms."""

from canon.transforms.transform import ChannelTransform, entries

__all__ = ["ChannelTransform", "entries"]
