"""One owner, one authority and one claim that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import canon
from canon import claims, watermarks
from canon.claims import Committed
from tests.claims.authority import Authority
from tests.claims.owner import Owner
from tests.watermarks.small import small_digits, small_net


@pytest.fixture(scope="session")
def new_owner(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Owner]:
    data = small_digits()

    def build(seed: int = 0, **options: Any) -> Owner:
        folder = tmp_path_factory.mktemp("owner")
        model = small_net(seed)
        return Owner(
            model,
            canon.register(model, torch.zeros(2, 3, 16, 16)),
            watermarks.get("uchida17").draw_key(model, data, seed=seed),
            claims.new_key(folder / "owner.pem"),
            Authority(folder / "authority", **options),
        )

    return build


@pytest.fixture(scope="session")
def owner(new_owner: Callable[..., Owner]) -> Owner:
    return new_owner()


@pytest.fixture(scope="session")
def made(owner: Owner) -> Committed:
    return owner.commit()
