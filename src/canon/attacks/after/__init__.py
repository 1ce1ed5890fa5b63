"""What a thief does to the weights after a disguise: steps that change the function a little."""

from canon.attacks.after.casting import BFloat16 as BFloat16
from canon.attacks.after.casting import Float16 as Float16
from canon.attacks.after.finetune import Finetune as Finetune
from canon.attacks.after.interface import Step as Step
from canon.attacks.after.noise import Noise as Noise
from canon.attacks.after.prune import Prune as Prune
from canon.attacks.after.registry import as_steps as as_steps
from canon.attacks.after.registry import names as names
from canon.attacks.after.registry import parse as parse
from canon.attacks.after.rounding import Round as Round

__all__ = ["Step", "Noise", "Prune", "Round", "Float16", "BFloat16", "Finetune", "as_steps", "parse", "names"]
