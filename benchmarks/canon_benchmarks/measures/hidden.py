"""What measurements on disguised networks with random weights share."""

from __future__ import annotations

import functools
from dataclasses import replace

from torch import Tensor, nn

from canon import zoo
from canon.attacks import AttackOptions, AttackResult, attack_with
from canon.bench.lab import Setup, through_a_file
from canon.bench.measures.attacked import count, refusals
from canon.bench.measures.sheet import Sheet
from canon.errors import AttackError
from canon.verify import LayoutKey, register
from canon_benchmarks.cases import Hidden
from canon_benchmarks.subjects import subject


@functools.lru_cache(maxsize=2)
def clean_model(name: str, device: str) -> nn.Module:
    """A network that nobody attacked."""
    return subject(name, device=device)


def example_of(case: Hidden, setup: Setup) -> Tensor:
    """What the network is fed."""
    return zoo.example_input(case.model).to(setup.device)


def hidden_model(case: Hidden, setup: Setup, sheet: Sheet) -> nn.Module:
    """The network with all camouflage on: permutation, scaling, expanded kernels, random split shares, chained dummies.

    Expanded kernels multiply the parameters by up to nine; where that is too many, they stay as they are.
    """
    clean, example = clean_model(case.model, setup.device), example_of(case, setup)
    sheet.note(clean=count(clean))
    options = AttackOptions(ops=(case.attack,), ratio=case.ratio, seed=case.seed, split_shares="random", chain=True)
    model = attack_kernels(clean, example, options, sheet).model
    sheet.note(attacked=count(model))
    return model


def attack_kernels(model: nn.Module, example: Tensor, options: AttackOptions, sheet: Sheet) -> AttackResult:
    """Attack with expanded kernels, or without where that would be too much; time and kernels go to the sheet."""
    with refusals():
        for expand in (True, False):
            sheet.begin()
            try:
                result = attack_with(model, example, replace(options, expand_kernels=expand))
                break
            except AttackError:
                if not expand:
                    raise
        sheet.lap("attack")
        sheet.note(kernels="expanded" if expand else "not expanded")
    return result


@functools.lru_cache(maxsize=2)
def layout_key(name: str, device: str) -> tuple[LayoutKey, float]:
    """A network's layout key as read from its file, and the file's size against the network's."""
    clean = clean_model(name, device)
    key, size = through_a_file(register(clean, zoo.example_input(name).to(device)))
    return key, round(size / sum(t.numel() * t.element_size() for t in clean.state_dict().values()), 5)
