"""Neural structural obfuscation as programs of transforms on channel spaces."""

from canon.attacks.after import Step
from canon.attacks.channels import Channels, Kind
from canon.attacks.interface import Primitive, Setting
from canon.attacks.log import AttackLog, SpaceLog, StepLog
from canon.attacks.options import MIX, AttackOptions
from canon.attacks.pipeline import AttackResult, attack, attack_with, replay
from canon.attacks.registry import add, get, names

__all__ = [
    "attack", "attack_with", "replay", "AttackOptions", "AttackResult", "AttackLog", "SpaceLog", "StepLog",
    "Channels", "Kind", "Primitive", "Setting", "Step", "MIX", "add", "get", "names",
]  # fmt: skip
