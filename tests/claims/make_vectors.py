"""Make the test vectors: `python -m tests.claims.make_vectors`. They are committed; this says how they came about."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

import canon
from canon import claims
from canon.claims import Claim
from canon.claims.claim import PAYLOAD_TYPE
from canon.claims.envelope import sign
from canon.verify.digest import file_digest
from canon.watermarks import Key, Message
from canon.watermarks.layers import architecture
from tests.claims.authority import Authority, holder

VECTORS = Path(__file__).parent / "vectors"


class Tiny(nn.Module):
    """Small enough to be committed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.second(torch.relu(self.first(images))).mean((2, 3))
        return result


def tiny() -> Tiny:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Tiny().eval()


def tiny_key(model: Tiny) -> Key:
    bits, generator = Message.random(0, 8), torch.Generator().manual_seed(0)
    projection = torch.randn(27, 8, generator=generator)
    return Key("uchida17", architecture(model), {"first": (4, 3, 3, 3)}, bits, tensors={"projection": projection})


def main() -> None:
    VECTORS.mkdir(exist_ok=True)
    model = tiny()
    canon.save(model, VECTORS / "owner.safetensors", force=True)
    canon.register(model, torch.zeros(1, 3, 8, 8)).save(VECTORS / "layout.key", force=True)
    tiny_key(model).save(VECTORS / "owner.key")
    roles = {"reference": "owner.safetensors", "layout_key": "layout.key", "watermark_key": "owner.key"}
    files = {role: [file_digest(VECTORS / name)] for role, name in roles.items()}
    with TemporaryDirectory() as folder:
        root = holder("Root", days=(-1, 36500))
        authority = Authority(Path(folder) / "authority", days=(-1, 36400), root=root)
        authority.between = holder("Between", root, days=(-1, 36450))
        authority.signer = holder("Stamps", authority.between, stamps=True, days=(-1, 36400))
        authority.install()
        (VECTORS / "roots.pem").write_bytes(root.pem)
        (VECTORS / "stranger.pem").write_bytes(holder("Stranger", days=(-1, 36500)).pem)
        key = claims.new_key(Path(folder) / "signing.pem")
        made = claims.commit(
            model,
            key=key,
            layout_key=canon.LayoutKey.load(VECTORS / "layout.key"),
            watermark_keys=[canon.watermarks.load_key(VECTORS / "owner.key")],
            options={"tolerance": 0.01},
            files=files,
        )
        first = made.claim.stamped(authority.stamp(made.claim.encode()))
        claims.Committed(first, made.opening).save(VECTORS / "owner.claim", VECTORS / "owner.opening", force=True)
        mark = made.opening.of("watermark_key")[0].thing
        made.opening.reveal(mark).save(VECTORS / "part.opening", force=True)
        time.sleep(1.1)
        first.stamped(authority.stamp(first.encode())).save(VECTORS / "renewed.claim", force=True)
        other = claims.commit(model, key=key)
        Claim(made.claim.envelope, (authority.stamp(other.claim.encode()),)).save(
            VECTORS / "wrong_token.claim", force=True
        )
        other.opening.save(VECTORS / "wrong.opening", force=True)
        earlier = replace(made.claim.statement, created=datetime(2020, 1, 1, tzinfo=UTC))
        Claim(sign(earlier.encode(), PAYLOAD_TYPE, key), first.tokens).save(VECTORS / "wrong_date.claim", force=True)
        thief = claims.new_key(Path(folder) / "thief.pem")
        Claim(sign(made.claim.statement.encode(), PAYLOAD_TYPE, thief), first.tokens).save(
            VECTORS / "wrong_signature.claim", force=True
        )
    for path in VECTORS.iterdir():
        path.chmod(0o644)


if __name__ == "__main__":
    main()
