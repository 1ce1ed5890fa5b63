"""Documents of every kind for the tests of the report."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from canon import attack, watermarks
from canon.api import JudgeOptions, judge, recover, recovery_document
from canon.rewrite import fold_norms
from canon.verify import register
from canon.verify.answering import answers_of, unusual_options
from canon.verify.digest import document_digest
from canon.verify.evidence import FROM_OWNER, write_evidence
from canon.verify.verdict import decide
from canon.watermarks import Dataset, Key, Message
from tests.verify.small import example, tiny

NAMES = (
    "equal", "claimed", "contained", "derived", "unrelated", "undecided", "wrong_key", "void_key", "stranger",
    "new_head", "layout", "folded", "loose", "wired", "refused", "recovered", "clean",
)  # fmt: skip
"""What `documents` holds."""

BITS = 64
NOTES = {
    "command": "canon verify suspect.safetensors --reference owner.safetensors --case '2026/17 O''Neill'",
    "case": "2026/17",
    "examiner": "R. Example, Institute of Examples",
}


def hidden(net: nn.Module) -> nn.Module:
    """A network with added channels."""
    return attack(net, example(), ["nso_zero", "nso_clique", "nso_split"], ratio=0.3, seed=1).model


def noisy(net: nn.Module, size: float = 0.02) -> nn.Module:
    """A copy whose weights were disturbed."""
    changed = copy.deepcopy(net)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in changed.parameters():
            tensor.mul_(1 + size * torch.randn(tensor.shape, generator=generator))
    return changed


def new_head(net: nn.Module) -> nn.Module:
    """A copy with another classifier."""
    changed: Any = copy.deepcopy(net)
    changed.fc.load_state_dict(tiny(5).fc.state_dict())  # type: ignore[union-attr]
    return changed  # type: ignore[no-any-return]


def wider(net: nn.Module, channels: int = 9) -> nn.Module:
    """A copy with channels in `conv3` that are always zero, which no look at the weights alone can tell."""
    changed: Any = copy.deepcopy(net)
    other: Any = tiny(7, width=channels)
    old, norm, head = changed.conv3, changed.norm3, changed.fc
    width = old.out_channels + channels
    changed.conv3 = nn.Conv2d(old.in_channels, width, 3, stride=2, padding=1, bias=False)
    changed.norm3, changed.fc = nn.BatchNorm2d(width), nn.Linear(width, head.out_features)
    rows = torch.randn(channels, *old.weight.shape[1:], generator=torch.Generator().manual_seed(2)) * 0.1
    with torch.no_grad():
        changed.conv3.weight.copy_(torch.cat([old.weight, rows]))
        for name in ("weight", "bias", "running_mean", "running_var"):
            added = getattr(other.norm1, name)[:channels] if name != "bias" else torch.full((channels,), -50.0)
            getattr(changed.norm3, name).copy_(torch.cat([getattr(norm, name), added]))
        columns = torch.randn(head.out_features, channels, generator=torch.Generator().manual_seed(3))
        changed.fc.weight.copy_(torch.cat([head.weight, columns], dim=1))
        changed.fc.bias.copy_(head.bias)
    return changed.eval()  # type: ignore[no-any-return]


def data() -> Dataset:
    """Images and labels that only have the right shapes."""
    return Dataset("none", 10, example(), torch.tensor([0, 1]), example(), torch.tensor([0, 1]))


def key_of(net: nn.Module, seed: int) -> Key:
    """A key as its owner draws it."""
    return watermarks.get("uchida17").draw_key(net, data(), message=Message.random(seed, BITS), seed=seed)


def marked(net: nn.Module, key: Key) -> nn.Module:
    """A copy that carries the key's message: the least change of the mean kernels that gives every bit its sign."""
    changed = copy.deepcopy(net)
    layers = [changed.get_submodule(name) for name in key.layers]
    means = torch.cat([_weight(layer).mean(0).flatten() for layer in layers]).double()
    projection = key.tensors["projection"].double()
    wanted = key.message.signs().double()
    step = torch.linalg.pinv(projection.T) @ (wanted - means @ projection)
    with torch.no_grad():
        for layer, part in zip(layers, step.split([_weight(layer)[0].numel() for layer in layers]), strict=True):
            weight = _weight(layer)
            weight += part.reshape(weight.shape[1:]).to(weight.dtype)
    return changed


def _weight(layer: nn.Module) -> Tensor:
    assert isinstance(layer.weight, Tensor)
    return layer.weight


def void_key(key: Key) -> Key:
    """A key that reads its message from half of all models: its carriers are nearly one."""
    generator = torch.Generator().manual_seed(4)
    size, bits = key.tensors["projection"].shape
    carriers = torch.randn(size, 1, generator=generator) + 0.1 * torch.randn(size, bits, generator=generator)
    return Key(key.scheme, key.architecture, key.shapes, Message.of([1] * bits), key.settings, {"projection": carriers})


class Chain(nn.Module):
    """A network that is wired otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.fc = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(torch.relu(self.conv1(images)).mean((2, 3)))
        return logits


@cache
def documents() -> dict[str, dict[str, Any]]:
    """By name: evidence of every answer, and what recovery found."""
    key = key_of(tiny(), 0)
    owner, x = marked(tiny(), key), example()
    suspect = hidden(owner)
    files = {"suspect": {"file": "suspect.safetensors", "sha256": "0" * 64}}
    probes = {"photographs.npz": [torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(6))]}
    torch.manual_seed(0)
    equal = judge(suspect, x, reference=owner, watermark_key=key, inputs=files, probes=probes, notes=NOTES).evidence
    loose = JudgeOptions(tolerance=0.5, alpha=1e-3)
    return {
        "equal": equal,
        "claimed": concluded(equal, priority=CLAIM),
        "contained": judge(wider(suspect), x, reference=owner, notes=NOTES).evidence,
        "derived": judge(noisy(suspect, 0.05), x, reference=owner, watermark_key=key).evidence,
        "unrelated": judge(tiny(1), x, reference=owner).evidence,
        "undecided": judge(tiny(1, width=1), x, reference=tiny(0, width=1)).evidence,
        "wrong_key": judge(suspect, x, reference=owner, watermark_key=key_of(tiny(), 9)).evidence,
        "void_key": judge(suspect, x, reference=owner, watermark_key=void_key(key)).evidence,
        "stranger": judge(hidden(tiny(1)), x, reference=owner, watermark_key=key).evidence,
        "new_head": judge(new_head(owner), x, reference=owner).evidence,
        "layout": judge(suspect, x, layout_key=register(owner, x), watermark_key=key).evidence,
        "folded": judge(fold_norms(suspect, x).model, x, reference=owner, watermark_key=key).evidence,
        "loose": judge(noisy(owner), x, reference=owner, options=loose).evidence,
        "wired": judge(Chain().eval(), x, reference=owner, watermark_key=key).evidence,
        "refused": judge(suspect, x, reference=owner, watermark_key=misplaced(key)).evidence,
        "recovered": recovery_document(suspect, recover(suspect, x), x, inputs=files, options={"method": "exact"}),
        "clean": recovery_document(owner, recover(owner, x), x),
    }


def misplaced(key: Key) -> Key:
    """A key of another network."""
    return Key(key.scheme, "0" * 16, key.shapes, key.message, key.settings, key.tensors)


CLAIM = {
    "answer": "first",
    "reason": "the claim of 2025-02-03 covers the reference and the key, and the suspect is of 2026-05-20",
    "claims": [
        {
            "role": "presented",
            "owner": "ed25519:5f2c",
            "time": "2025-02-03T10:00:00Z",
            "timestamps": [{"time": "2025-02-03T10:00:00Z", "authority": "stamps", "wrong": None}],
            "opened": ["reference", "watermark_key"],
            "notes": [],
            "wrong": [],
        }
    ],
}
"""What a claim that was there first looks like."""


def concluded(document: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The document with other figures, and with the answers, verdict and digest that belong to them."""
    made = ("format", "version", "record", "verdict", "answers", "environment", "digest")
    figures = {name: value for name, value in {**document, **changes}.items() if name not in made}
    answers = answers_of(figures)
    verdict = decide(answers, unusual_options(figures["options"]))
    found = write_evidence(figures, answers, verdict, {})
    return sealed(
        {**found, "record": document["record"], "environment": changes.get("environment", document["environment"])}
    )


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
    document = copy.deepcopy(documents()["derived"])
    names: dict[str, str] = {}

    def evil(name: str) -> str:
        return names.setdefault(name, HOSTILE[len(names) % len(HOSTILE)] + str(len(names)))

    for layer in document["network"]:
        layer["name"] = evil(layer["name"])
        layer["makes"], layer["reads"] = [evil(x) for x in layer["makes"]], [evil(x) for x in layer["reads"]]
    containment = document["containment"]
    for item in (*document["recovery"]["spaces"], *containment["spaces"], *containment["layers"]):
        item["name"] = evil(item["name"])
    for layer in document["certificate"]["layers"]:
        layer["name"] = evil(layer["name"])
    document["recovery"]["cropped"] = {evil("conv1"): [3, 3]}
    containment["notes"], containment["refitted"] = [*HOSTILE], [evil("conv1")]
    containment["reason"] = "".join(HOSTILE)
    containment["fixed"] = {evil(f"fixed {index}"): 0.5 for index in range(len(HOSTILE))}
    comparison = document["function"]["comparisons"][0]
    document["function"]["comparisons"] += [
        {**comparison, "source": HOSTILE[1], "difference": None, "problem": HOSTILE[4]},
        {**comparison, "source": HOSTILE[5]},
    ]
    document["notes"] = [*HOSTILE]
    document["inputs"] = {
        HOSTILE[1]: {HOSTILE[0]: HOSTILE[2]},
        "suspect": {"file": HOSTILE[4], "sha256": HOSTILE[1]},
        "reference": {"file": HOSTILE[3]},
    }
    pairs = [{"norm": HOSTILE[0], "layer": HOSTILE[1]}]
    document["form"] = {"kind": "folded", "restored": pairs, "folded": pairs, "from_owner": [*FROM_OWNER]}
    document["record"] = {
        **document["record"],
        "note": HOSTILE[5],
        "command": HOSTILE[0],
        "case": HOSTILE[1],
        HOSTILE[2]: HOSTILE[4],
    }
    document["priority"] = {
        "answer": "nothing shown",
        "reason": HOSTILE[4],
        "claims": [{HOSTILE[0]: HOSTILE[1], "covers": [*HOSTILE]}],
    }
    return concluded(document, environment={"canon": HOSTILE[0], HOSTILE[1]: HOSTILE[2]})
