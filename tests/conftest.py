"""Settings that every test runs under."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default",
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("nightly", max_examples=1000, deadline=None)
PROFILE = os.environ.get("CANON_HYPOTHESIS_PROFILE", "default")
settings.load_profile(PROFILE)

# The tensors of the tests are small: more threads than one only wait for each other.
torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def secret_seeds() -> Iterator[random.Random]:
    """Secret seeds of keys and controls that a failing test draws again; the nightly profile leaves them to chance."""
    source = random.Random(0)
    with pytest.MonkeyPatch.context() as patch:
        if PROFILE == "default":
            patch.setattr(secrets, "randbits", source.getrandbits)
        yield source


@pytest.fixture(autouse=True)
def own_secret_seeds(secret_seeds: random.Random, request: pytest.FixtureRequest) -> None:
    """No test depends on which others ran before it."""
    secret_seeds.seed(request.node.nodeid)
