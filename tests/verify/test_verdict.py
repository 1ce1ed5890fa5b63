"""The table of verdicts: every combination of answers has one, and the strong words are hard to get."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest

from canon.verify.answers import (
    Answers,
    Function,
    FunctionWord,
    MarkAnswer,
    MarkWord,
    Network,
    NetworkWord,
    Priority,
    PriorityWord,
)
from canon.verify.verdict import TABLE, Inconclusive, Matches, Proved, Refuted, decide, table_lines

EVERY = [
    Answers(Network(n, "n"), Function(f, "f"), MarkAnswer(m, "m"), Priority(p, "p", ({"claim": 1},)))
    for n, f, m, p in product(get_args(NetworkWord), get_args(FunctionWord), get_args(MarkWord), get_args(PriorityWord))
]
FOUND = ("equal", "contained", "derived")


def test_every_combination_has_a_verdict_and_every_line_is_used() -> None:
    used = {next(index for index, rule in enumerate(TABLE) if rule.holds(answers)) for answers in EVERY}
    assert used == set(range(len(TABLE)))
    assert len(table_lines(", ".join)) == len(TABLE)


@pytest.mark.parametrize("answers", EVERY)
def test_laws_of_the_table(answers: Answers) -> None:
    verdict = decide(answers)
    network, mark, priority = answers.network.answer, answers.mark.answer, answers.priority.answer
    if isinstance(verdict, Refuted):
        assert network == "unrelated", "refuting needs invariants that disagree"
        assert answers.function.answer == "disagree", "and outputs that disagree"
        assert mark != "read"
    if isinstance(verdict, Proved):
        assert priority == "first", "proof needs a claim that was there first"
    if isinstance(verdict, Matches):
        assert network in FOUND
        assert mark in ("read", "no key")
        assert priority == "nothing shown"
        assert "can be made afterwards" in verdict.reason
    if network not in FOUND:
        assert not isinstance(verdict, Proved | Matches), "a mark alone gives no strong word"
    if mark in ("unread", "void") or priority == "not first":
        assert not isinstance(verdict, Proved | Matches)
    assert all(reason in verdict.reason for reason in ("; n", "; f"))
    assert not isinstance(decide(answers, ("a tolerance of 9",)), Proved | Matches)


def test_the_documented_table_is_the_one_that_decides() -> None:
    def cell(words: tuple[str, ...], every: tuple[str, ...]) -> str:
        return "any" if set(words) == set(every) else ", ".join(words)

    rows = [
        f"| {', '.join(rule.network)} | {cell(rule.function, get_args(FunctionWord))}"
        f"{', and move apart' * rule.apart} | "
        f"{cell(rule.mark, get_args(MarkWord))} | "
        f"{cell(rule.priority, get_args(PriorityWord))} | {rule.verdict.kind} |"
        for rule in TABLE
    ]
    page = (Path(__file__).parents[2] / "docs" / "evidence.md").read_text(encoding="utf-8")
    assert "\n".join(rows) in page


def test_an_honest_owner_gets_the_words() -> None:
    def words(**changes: Any) -> Answers:
        given = {
            "network": Network("equal", "n"),
            "function": Function("agree", "f"),
            "mark": MarkAnswer("read", "m"),
            "priority": Priority("nothing shown", "p"),
        }
        return Answers(**{**given, **changes})

    assert isinstance(decide(words()), Matches)
    assert isinstance(decide(words(priority=Priority("first", "p"))), Proved)
    assert isinstance(decide(words(priority=Priority("first", "p"), network=Network("derived", "n"))), Proved)
    assert isinstance(decide(words(mark=MarkAnswer("unread", "m"))), Inconclusive)
