# %% [markdown]
# # Check a suspect
#
# A model turns up that behaves like yours. Your watermark key reads noise from it. Is it yours?
#
# The first half of this file plays both parties, so that there is something to check. Run it cell by cell in an editor
# that knows `# %%`, or as a whole: `python examples/check_a_suspect.py`. It writes into a folder of its own.

# %%
import tempfile
from pathlib import Path

import canon
from canon import watermarks, zoo
from canon.report import write_report

folder = Path(tempfile.mkdtemp(prefix="canon-"))
example = zoo.example_input("test_resnet")

# %% [markdown]
# ## Before: what an owner does once
#
# Train with a mark, keep the key, and register the layout. The layout key is small, holds no weights, and spares you
# from keeping (or handing over) the model itself.

# %%
scheme = watermarks.get("uchida17")
embedded = scheme.embed(
    zoo.model("test_resnet"),
    zoo.dataset("digits").limited(600, 300),
    message="random:1",
    options=watermarks.TrainOptions(epochs=4, cooldown=1),
)
owner, key = embedded.model, embedded.key
canon.register(owner, example).save(folder / "layout.key")
key.save(folder / "owner.key")
print(f"the key reads {scheme.similarity(owner, key):.1%} from the owner's model")

# %% [markdown]
# ## Meanwhile: what a thief does
#
# Channels are added, copied, shuffled and rescaled. The function stays; the weights no longer look alike.

# %%
stolen = canon.attack(owner, example, ops=["nso_zero", "nso_clique", "nso_split"], ratio=0.3, seed=7).model
canon.save(stolen, folder / "suspect.safetensors", architecture="test_resnet")
print(f"the key reads {scheme.similarity(stolen, key):.1%} from the suspect")

# %% [markdown]
# ## Now: check it
#
# The file comes from somebody you do not trust. `canon.load` runs nothing in it, and takes the widths from its tensors.

# %%
suspect = canon.load(folder / "suspect.safetensors")
found = canon.judge(
    suspect,
    example,
    layout_key=canon.LayoutKey.load(folder / "layout.key"),
    watermark_key=watermarks.load_key(folder / "owner.key"),
    inputs={"suspect": {"file": "suspect.safetensors"}},
)
print(found.evidence["verdict"])

# %% [markdown]
# The evidence is one JSON document that checks itself; the report is the same for people. With the owner's model at
# hand, give `reference=owner` instead of the layout key, and every layer is compared weight by weight.

# %%
write_report(found.evidence, folder / "report.html")
print(f"report: {folder / 'report.html'}")

# %% [markdown]
# ## And a model that is not yours
#
# A verdict is worth something only if strangers are refused.

# %%
stranger = canon.judge(zoo.model("test_resnet", seed=5), example, reference=owner, watermark_key=key)
print(stranger.evidence["verdict"])

# %%
assert found.evidence["verdict"]["kind"] == "matches"
assert stranger.evidence["verdict"]["kind"] == "refuted"
