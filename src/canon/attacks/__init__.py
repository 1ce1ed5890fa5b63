"""Neural structural obfuscation as programs of transforms on channel spaces."""

from canon.attacks.after import Step as Step
from canon.attacks.channels import Channels as Channels
from canon.attacks.channels import Kind as Kind
from canon.attacks.interface import Primitive as Primitive
from canon.attacks.interface import Setting as Setting
from canon.attacks.log import AttackLog as AttackLog
from canon.attacks.log import SpaceLog as SpaceLog
from canon.attacks.log import StepLog as StepLog
from canon.attacks.options import MIX as MIX
from canon.attacks.options import AttackOptions as AttackOptions
from canon.attacks.pipeline import AttackResult as AttackResult
from canon.attacks.pipeline import attack as attack
from canon.attacks.pipeline import attack_with as attack_with
from canon.attacks.pipeline import replay as replay
from canon.attacks.registry import add as add
from canon.attacks.registry import get as get
from canon.attacks.registry import names as names

__all__ = [
    "attack", "attack_with", "replay", "AttackOptions", "AttackResult", "AttackLog", "SpaceLog", "StepLog",
    "Channels", "Kind", "Primitive", "Setting", "Step", "MIX", "add", "get", "names",
]  # fmt: skip
