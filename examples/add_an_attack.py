# %% [markdown]
# # Add an attack
#
# You have an idea how a thief might hide a model. Write it down in symbols; Canon turns it into weights that compute
# the same, on any architecture, under any camouflage. Then see whether recovery finds it.

# %%
from typing import ClassVar

import torch

import canon
from canon import attacks, zoo
from canon.attacks import Channels, Kind, Primitive, Setting

# %% [markdown]
# ## The attack
#
# Half of the new channels cancel each other, the other half are copies of the first channel. No weight is touched here.


# %%
@attacks.add
class Twins(Primitive):
    """A clique, and copies of the first channel."""

    name: ClassVar[str] = "twins"

    def inject(self, channels: Channels, count: int, setting: Setting) -> Channels:
        """Say what the new channels are."""
        half = count // 2
        return channels.append(Kind.CLIQUE, half).split(0, count - half)


# %% [markdown]
# ## Does the function stay?
#
# Compare outputs in float64, over several seeds, alone and together with the other primitives.

# %%
example = zoo.example_input("test_resnet").double()
model = zoo.model("test_resnet").double()
with torch.no_grad():
    expected = model(example)
    for seed in range(3):
        attacked = canon.attack(model, example, ops=["twins", "nso_zero"], ratio=0.4, seed=seed)
        assert torch.allclose(attacked.model(example), expected, rtol=1e-9)
        added = sum(space.injected for space in attacked.log.spaces)
        print(f"seed {seed}: {added} channels added, and the outputs agree")

# %% [markdown]
# ## Does recovery find it?
#
# Recovery has never heard of this attack. It finds what any attack must leave: redundancy.

# %%
result = canon.recover(attacked.model, example)
print(result.report.table())

# %%
certificate = canon.certify(result.model, model, example, tolerance=1e-6)
print(f"certificate: {'passed' if certificate.passed else 'failed'}, worst residual {certificate.max_rel_err:.1e}")

# %%
assert result.report.changed
assert certificate.passed
