"""What a thief does to the weights after a disguise: steps that change the function a little."""

from canon.attacks.after.casting import BFloat16, Float16
from canon.attacks.after.finetune import Finetune
from canon.attacks.after.interface import Step
from canon.attacks.after.noise import Noise
from canon.attacks.after.prune import Prune
from canon.attacks.after.registry import as_steps, names, parse
from canon.attacks.after.rounding import Round

__all__ = ["Step", "Noise", "Prune", "Round", "Float16", "BFloat16", "Finetune", "as_steps", "parse", "names"]
