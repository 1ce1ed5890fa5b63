"""No liar's key gets further than it says, and every check is there for a reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from canon import watermarks
from tests.liars import verifier
from tests.liars.forgers import FORGERIES, SKELETONS, Forger
from tests.liars.tables import Stop
from tests.liars.verifier import bare, outcome, reads
from tests.liars.victims import images, victim

ALL = [forger for table in (FORGERIES, SKELETONS) for forgers in table.values() for forger in forgers]
WEAK = ("searched_statement", "best_of_many_places")
"""As far as honest work gets without a mark: no more than luck, however few checks there are."""


def named(forger: Forger) -> str:
    return f"{forger.scheme}-{forger.name}"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_there_are_enough_liars() -> None:
    for scheme in watermarks.names():
        assert len(FORGERIES[scheme]) >= 3
        assert len(SKELETONS[scheme]) >= 1
        assert all(forger.stopped_by != "nothing" for forger in SKELETONS[scheme]), "no skeleton key opens anything"


@pytest.mark.parametrize("forger", ALL, ids=named)
def test_every_liar_is_stopped_where_it_says(forger: Forger) -> None:
    assert outcome(forger, victim(1), images()) == forger.stopped_by


@pytest.mark.parametrize("forger", ALL, ids=named)
def test_every_liar_succeeds_where_nothing_is_checked(forger: Forger, monkeypatch: pytest.MonkeyPatch) -> None:
    bare(monkeypatch)
    skeleton = forger in SKELETONS[forger.scheme]
    key = forger(victim(1), images())
    others = [victim(seed, pruned=False) for seed in (1, 2, 3)] if skeleton else [victim(1)]
    found = [reads(watermarks.get(forger.scheme).extract(other, key)) for other in others]
    assert all(found) == (forger.name not in WEAK)


def one(scheme: str, name: str) -> Forger:
    return next(forger for forger in ALL if (forger.scheme, forger.name) == (scheme, name))


@pytest.mark.parametrize(
    ("scheme", "name", "removed", "controls", "then"),
    [
        ("greedy", "unit_of_signs", ["schema"], True, "nothing"),
        ("ipr_ic", "key_signs_that_are_no_signs", ["schema"], True, "nothing"),
        ("uchida17", "the_model_itself", ["schema"], True, "controls"),
        ("uchida17", "the_model_itself", ["schema"], False, "nothing"),
        ("uchida17", "projection_of_zeros", ["schema"], True, "unread"),
        ("uchida17", "projection_of_zeros", ["schema", "unread"], True, "controls"),
        ("uchida17", "projection_of_zeros", ["schema", "unread"], False, "nothing"),
        ("deepipr", "passports_of_nan", ["schema"], True, "unread"),
        ("deepipr", "passports_of_nan", ["schema", "unread"], False, "nothing"),
        ("greedy", "signature_of_nobody", ["signature"], False, "nothing"),
        ("greedy", "modulus_made_to_fit", ["schema"], True, "unread"),
        ("ipr_gan", "slopes_of_an_activation", ["structure"], True, "controls"),
        ("ipr_gan", "slopes_of_an_activation", ["structure"], False, "nothing"),
        ("ipr_ic", "rectified_units", ["structure"], True, "unread"),
        ("ipr_ic", "rectified_units", ["structure", "unread"], True, "controls"),
        ("ipr_ic", "rectified_units", ["structure", "unread"], False, "nothing"),
        ("deepsigns", "rectified_activations", ["structure"], False, "nothing"),
        ("uchida17", "columns_that_hang_together", [], False, "nothing"),
        ("uchida17", "few_positions", [], False, "nothing"),
        ("deepsigns", "rows_that_hang_together", [], False, "nothing"),
        ("ipr_gan", "message_of_ones", [], False, "nothing"),
        ("riga21", "huge_biases", [], False, "nothing"),
    ],
)
def test_every_check_matters(
    scheme: str, name: str, removed: list[str], controls: bool, then: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    forger = one(scheme, name)
    for check in removed:
        remove: Callable[[pytest.MonkeyPatch], None] = getattr(verifier, f"without_{check}")
        remove(monkeypatch)
    assert outcome(forger, victim(1), images(), with_controls=controls) == then != forger.stopped_by


STOPS: dict[Stop, tuple[str, ...]] = {
    "construction": ("schema",),
    "model": ("structure", "shapes"),
    "unread": ("signature",),
    "controls": (),
    "luck": ("balance",),
}
"""The checks behind every word for what stops a liar; controls are left out by name."""


@pytest.mark.parametrize("forger", [f for f in ALL if f.stopped_by != "nothing" and f.name not in WEAK], ids=named)
def test_without_the_check_that_stops_it_a_liar_gets_further(forger: Forger, monkeypatch: pytest.MonkeyPatch) -> None:
    for check in STOPS[forger.stopped_by]:
        getattr(verifier, f"without_{check}")(monkeypatch)
    controls = forger.stopped_by not in ("controls", "luck")
    model = victim(1, pruned=forger.scheme != "lottery" or forger.stopped_by != "luck")
    assert outcome(forger, model, images(), with_controls=controls) != forger.stopped_by
