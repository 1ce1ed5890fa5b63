"""The scheme that the guide builds is a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from canon.watermarks.conformance import Trial, check
from tests.watermarks.small import QUICK, small_digits, small_net

GUIDE = Path(__file__).parents[2] / "docs" / "test_my_scheme.md"


@pytest.mark.skipif(not GUIDE.exists(), reason="the guide is not part of an installed package")
def test_the_scheme_of_the_guide_conforms() -> None:
    code = GUIDE.read_text().split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"__name__": "guide"}
    exec(code, names)
    scheme = names["ColumnScheme"]()
    check(
        Trial(
            scheme,
            small_net(),
            small_digits(),
            small_net(seed=3, extra=7),
            options=QUICK,
            chance=0.2,
        )
    )
