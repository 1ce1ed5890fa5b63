"""Documents of every kind for the tests of the report."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
from torch import nn

from canon import attack
from canon.api import JudgeOptions, judge, recover, recovery_document
from canon.rewrite import fold_norms
from canon.verify import register
from canon.verify.digest import document_digest
from tests.verify.small import example, tiny

NAMES = ("proved", "equal", "layout", "refuted", "folded", "changed", "wider", "recovered", "clean")
"""What `documents` holds."""

MARK = {
    "scheme": "uchida17", "matched": 128, "total": 128, "similarity": 1.0, "read_from": "aligned", "spaces": ["conv3"],
    "alternatives": 1, "p_value": 2.0**-128, "alpha": 1e-6,
    "tier2": {
        "clean": 1.0, "attacked": 0.45, "recovered": 1.0, "fraction": 0.9, "slack": 0.02, "drop": 0.55, "passed": True,
    },
}  # fmt: skip
"""A watermark that was read in full."""


def hidden(net: nn.Module) -> nn.Module:
    """A network with added channels."""
    return attack(net, example(), ["nso_zero", "nso_clique", "nso_split"], ratio=0.3, seed=1).model


def noisy(net: nn.Module) -> nn.Module:
    """A copy whose weights were disturbed."""
    changed = copy.deepcopy(net)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in changed.parameters():
            tensor.mul_(1 + 0.02 * torch.randn(tensor.shape, generator=generator))
    return changed


@cache
def documents() -> dict[str, dict[str, Any]]:
    """By name: evidence of every verdict, and what recovery found."""
    owner, suspect, x = tiny(), hidden(tiny()), example()
    files = {"suspect": {"file": "suspect.safetensors", "sha256": "0" * 64}}
    proved = judge(suspect, x, reference=owner, inputs=files).evidence
    return {
        "proved": sealed({**proved, "watermark": MARK}),
        "equal": proved,
        "layout": judge(suspect, x, layout_key=register(owner, x)).evidence,
        "refuted": judge(tiny(1), x, reference=owner).evidence,
        "folded": judge(fold_norms(suspect, x).model, x, reference=owner).evidence,
        "changed": judge(noisy(owner), x, reference=owner).evidence,
        "wider": judge(suspect, x, layout_key=register(owner, x), options=JudgeOptions(recover=False)).evidence,
        "recovered": recovery_document(suspect, recover(suspect, x), x, inputs=files, options={"method": "exact"}),
        "clean": recovery_document(owner, recover(owner, x), x),
    }


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the digest that belongs to it."""
    content = {name: value for name, value in document.items() if name != "digest"}
    return {**content, "digest": document_digest(content)}


HOSTILE = (
    "<script>window.ran = 1</script>",
    '"><img src=x onerror="window.ran = 1">',
    "'><svg onload=window.ran=1>",
    "javascript:window.ran=1",
    "{{ 7 * 7 }}</style></title><script>window.ran = 1</script>",
    "\u202egnp.exe\x1b[31m\x00",
    "a" * 5000,
)
"""Names that try to be more than text."""


def hostile() -> dict[str, Any]:
    """Evidence in which every name that comes from a file is one of `HOSTILE`."""
    document = copy.deepcopy(documents()["proved"])
    names: dict[str, str] = {}

    def evil(name: str) -> str:
        return names.setdefault(name, HOSTILE[len(names) % len(HOSTILE)] + str(len(names)))

    for layer in document["network"]:
        layer["name"] = evil(layer["name"])
        layer["makes"], layer["reads"] = [evil(x) for x in layer["makes"]], [evil(x) for x in layer["reads"]]
    for space in (*document["recovery"]["spaces"], *document["alignment"]["spaces"]):
        space["name"] = evil(space["name"])
    for layer in document["certificate"]["layers"]:
        layer["name"], layer["reason"] = evil(layer["name"]), HOSTILE[0]
    document["certificate"]["parameters"] = {evil(name): 0.0 for name in HOSTILE}
    document["recovery"]["cropped"] = {evil("conv1"): [3, 3]}
    document["inputs"] = {HOSTILE[1]: {HOSTILE[0]: HOSTILE[2]}, "suspect": {"file": HOSTILE[4], "sha256": HOSTILE[1]}}
    document["options"] = {**document["options"], HOSTILE[0]: [HOSTILE[1], HOSTILE[3]]}
    pairs = [{"norm": HOSTILE[0], "layer": HOSTILE[1]}]
    document["form"] = {
        "kind": "folded", "restored": pairs, "folded": pairs, "from_owner": [HOSTILE[0]], "watermark_not_read": None,
    }  # fmt: skip
    document["watermark"]["scheme"] = HOSTILE[1]
    document["environment"] = {"canon": HOSTILE[0], HOSTILE[1]: HOSTILE[2]}
    document["verdict"]["reason"] = "".join(HOSTILE)
    return sealed(document)
