"""The committed test vectors, checked by Canon and by a script that knows nothing of Canon."""

from __future__ import annotations

import random
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

import canon
from canon.claims import Presented, Trust, Used, examine
from tests.claims.authority import Authority
from tests.claims.make_vectors import VECTORS, tiny, tiny_key
from tests.claims.owner import Owner
from tests.claims.test_damage import damaged

SCRIPT = Path(__file__).parents[2] / "examples" / "check_claim.sh"
FILES = ("owner.safetensors", "layout.key", "owner.key")


def independent(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *arguments], cwd=VECTORS, capture_output=True, text=True, check=False)


def answer(claim: str, opening: str, roots: str = "roots.pem", used: Used | None = None) -> str:
    trust = Trust.load([VECTORS / roots], now=datetime(2030, 1, 1, tzinfo=UTC))
    presented = Presented.load(
        VECTORS / claim, VECTORS / opening, trust, suspect_date="2028-01-01", suspect_date_source="test"
    )
    owner = Used(tiny(), None, [tiny_key(tiny())], {"tolerance": 0.01})
    found = examine(presented, used or owner)
    return found.answer if found.answer == "first" else found.reason


def test_what_is_right_is_accepted_by_both() -> None:
    layout = canon.LayoutKey.load(VECTORS / "layout.key")
    for claim, stamps in (("owner.claim", 1), ("renewed.claim", 2)):
        assert answer(claim, "owner.opening") == "first"
        assert answer(claim, "owner.opening", used=Used(None, layout, options={"tolerance": 0.01})) == "first"
        done = independent(claim, "roots.pem", "owner.opening", *FILES)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("committed to") == 8 + len(FILES)
        assert done.stdout.count("2026 GMT") == stamps


@pytest.mark.parametrize(
    ("claim", "opening", "roots", "ours", "theirs"),
    [
        ("owner.claim", "part.opening", "roots.pem", "does not show the reference", "owner.safetensors was not"),
        ("owner.claim", "wrong.opening", "roots.pem", "belongs to another claim", "does not lead to the root"),
        ("owner.claim", "owner.opening", "stranger.pem", "ends at 'CN=Root'", "no time-stamp holds"),
        ("wrong_token.claim", "owner.opening", "roots.pem", "for another document", "no time-stamp holds"),
        ("wrong_date.claim", "owner.opening", "roots.pem", "for another document", "no time-stamp holds"),
        ("wrong_signature.claim", "owner.opening", "roots.pem", "signed with another key", "signed with another key"),
    ],
)
def test_what_is_wrong_is_refused_by_both(claim: str, opening: str, roots: str, ours: str, theirs: str) -> None:
    assert ours in answer(claim, opening, roots)
    done = independent(claim, roots, opening, *FILES)
    assert done.returncode == 1
    assert theirs in done.stderr


def test_the_script_refuses_what_was_damaged(tmp_path: Path) -> None:
    source = random.Random(3)
    names = {"claim": VECTORS / "owner.claim", "opening": VECTORS / "owner.opening"}
    for index in range(16):
        part = ("claim", "opening")[index % 2]
        whole = names[part].read_bytes()
        # Behind the leaves stand the tensors' digests, which the script does not read.
        end = whole.index(b'],"tensors":') if part == "opening" else len(whole)
        (tmp_path / part).write_bytes(damaged(whole[:end], source) + whole[end:])
        given = {**names, part: tmp_path / part}
        assert independent(given["claim"], "roots.pem", given["opening"], *FILES).returncode != 0, index


@pytest.mark.parametrize("kind", ["p256", "rsa"])
def test_the_script_knows_other_keys(kind: str, owner: Owner, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import PrivateFormat

    from canon import claims
    from tests.claims.test_keys import KINDS, written

    key = claims.load_key(written(tmp_path / "key", KINDS[kind](), PrivateFormat.PKCS8))
    made = claims.commit(owner.model, key=key)
    stamped = made.claim.stamped(owner.authority.stamp(made.claim.encode()))
    claims.Committed(stamped, made.opening).save(tmp_path / "a.claim", tmp_path / "a.opening")
    done = independent(tmp_path / "a.claim", owner.authority.root_file, tmp_path / "a.opening")
    assert done.returncode == 0, done.stderr


def test_the_script_needs_a_time_stamp_of_a_known_root(owner: Owner, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger")
    assert independent("owner.claim", stranger.root_file).returncode == 1
    assert independent("owner.claim", "roots.pem").returncode == 0
