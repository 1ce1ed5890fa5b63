"""Settings that every test and every example in a docstring runs under: what is drawn depends on the test alone.

Tests run in any order and in several processes, so nothing may depend on what ran before in the same one.
"""

from __future__ import annotations

import os
import random
import secrets

import numpy as np
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

SHOWN = "COLUMNS LINES TERM TERMINAL_WIDTH TTY_COMPATIBLE TTY_INTERACTIVE GITHUB_ACTIONS".split()
COLOURS = "NO_COLOR FORCE_COLOR CLICOLOR CLICOLOR_FORCE PY_COLORS".split()
for variable in SHOWN + COLOURS:  # what is printed looks the same whatever runs the tests
    os.environ.pop(variable, None)

# The tensors of the tests are small: more threads than one only wait for each other.
torch.set_num_threads(1)

SECRETS = random.Random(0)
"""Secret seeds of keys and controls that a failing test draws again; the nightly profile leaves them to chance."""

if PROFILE == "default":
    patch = pytest.MonkeyPatch()
    patch.setattr(secrets, "randbits", SECRETS.getrandbits)
    patch.setattr(secrets, "token_bytes", lambda nbytes=None: SECRETS.randbytes(nbytes or 32))
    # Else examples are also drawn from the constants of whatever modules are imported by then.
    patch.setattr("hypothesis.internal.conjecture.providers.is_local_module_file", lambda path: False, raising=False)


def begin(name: str) -> None:
    """Every source of chance starts anew, for this name."""
    SECRETS.seed(name)
    own = random.Random(name)
    random.seed(own.getrandbits(64))
    np.random.seed(own.getrandbits(32))  # noqa: NPY002
    torch.manual_seed(own.getrandbits(63))


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> None:
    """A fixture that several tests share is the same whichever of them needs it first."""
    begin(f"{request.node.nodeid}:{fixturedef.argname}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """And a test is the same whichever fixtures were there already."""
    begin(item.nodeid)
