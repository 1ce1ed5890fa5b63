"""Settings that every test runs under."""

from __future__ import annotations

import os

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
settings.load_profile(os.environ.get("CANON_HYPOTHESIS_PROFILE", "default"))

# The tensors of the tests are small: more threads than one only wait for each other.
torch.set_num_threads(1)
