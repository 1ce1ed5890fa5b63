"""The algebra of channel transforms."""

from canon.transforms.transform import ChannelTransform as ChannelTransform

__all__ = ["ChannelTransform"]
