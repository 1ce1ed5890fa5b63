"""What a pass is."""

from __future__ import annotations

from collections.abc import Callable

from canon.recovery.facts import Facts, Subject
from canon.recovery.proposal import Proposal

Pass = Callable[[Subject, Facts], Proposal | None]
"""From what there is and what is known of it to what should change; None: nothing.

Its name in reports is that of the function. Once it has been applied, it is asked again only when another pass has
changed something."""
