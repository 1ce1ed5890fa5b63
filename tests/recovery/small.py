"""Small networks whose channels a test can add to by hand, knowing nothing of Canon's graph or attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = dict[str, Tensor]
NORM = ("weight", "bias", "running_mean", "running_var")


def norm(name: str) -> tuple[str, ...]:
    """The tensors of a norm."""
    return tuple(f"{name}.{part}" for part in NORM)


class Small(nn.Module):
    """A network with named spaces. Widths are read off a state dict, so that any width can be built."""

    rows: ClassVar[Mapping[str, tuple[str, ...]]]
    """By space: tensors whose first axis is the space's."""

    columns: ClassVar[Mapping[str, tuple[str, ...]]]
    """By space: weights whose second axis is the space's."""

    @classmethod
    def of(cls, state: State) -> Self:
        """The network that a state dict describes, in its dtype, evaluating."""
        widths = {name: state[tensors[0]].shape[0] for name, tensors in cls.rows.items()}
        model = cls(**widths).eval()
        dtype = next(iter(state.values())).dtype
        model = model.to(dtype)
        model.load_state_dict(state)
        return model


class Chain(Small):
    """Three convolutions in a row: padded, not padded, padded without bias."""

    rows: ClassVar = {"a": ("a.weight", "a.bias", *norm("na")), "b": ("b.weight", "b.bias", *norm("nb")),
                      "c": ("c.weight",)}  # fmt: skip
    columns: ClassVar = {"a": ("b.weight",), "b": ("c.weight",), "c": ("fc.weight",)}

    def __init__(self, a: int = 6, b: int = 5, c: int = 4) -> None:
        super().__init__()
        self.a, self.na = nn.Conv2d(3, a, 3, padding=1), nn.BatchNorm2d(a)
        self.b, self.nb = nn.Conv2d(a, b, 1), nn.BatchNorm2d(b)
        self.c = nn.Conv2d(b, c, 3, padding=1, bias=False)
        self.fc = nn.Linear(c, 3)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.na(self.a(x)))
        x = F.relu(self.nb(self.b(x)))
        return self.fc(F.relu(self.c(x)).mean((2, 3)))


class Residual(Small):
    """A stem and two residual blocks: one space that three layers make, and two inner ones."""

    rows: ClassVar = {
        "r": ("stem.weight", *norm("ns"), "p2.weight", *norm("np2"), "q2.weight", *norm("nq2")),
        "p": ("p1.weight", *norm("np1")),
        "q": ("q1.weight", *norm("nq1")),
    }
    columns: ClassVar = {"r": ("p1.weight", "q1.weight", "fc.weight"), "p": ("p2.weight",), "q": ("q2.weight",)}

    def __init__(self, r: int = 6, p: int = 5, q: int = 4) -> None:
        super().__init__()
        self.stem, self.ns = nn.Conv2d(3, r, 3, padding=1, bias=False), nn.BatchNorm2d(r)
        self.p1, self.np1 = nn.Conv2d(r, p, 3, padding=1, bias=False), nn.BatchNorm2d(p)
        self.p2, self.np2 = nn.Conv2d(p, r, 3, padding=1, bias=False), nn.BatchNorm2d(r)
        self.q1, self.nq1 = nn.Conv2d(r, q, 3, padding=1, bias=False), nn.BatchNorm2d(q)
        self.q2, self.nq2 = nn.Conv2d(q, r, 3, padding=1, bias=False), nn.BatchNorm2d(r)
        self.fc = nn.Linear(r, 3)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.ns(self.stem(x)))
        x = F.relu(x + self.np2(self.p2(F.relu(self.np1(self.p1(x))))))
        x = F.relu(x + self.nq2(self.q2(F.relu(self.nq1(self.q1(x))))))
        return self.fc(x.mean((2, 3)))


class Gated(Small):
    """A squeeze-and-excitation gate between two convolutions."""

    rows: ClassVar = {"a": ("a.weight", "a.bias", *norm("na"), "s2.weight", "s2.bias"),
                      "s": ("s1.weight", "s1.bias"), "b": ("b.weight", "b.bias")}  # fmt: skip
    columns: ClassVar = {"a": ("s1.weight", "b.weight"), "s": ("s2.weight",), "b": ("fc.weight",)}

    def __init__(self, a: int = 6, s: int = 3, b: int = 5) -> None:
        super().__init__()
        self.a, self.na = nn.Conv2d(3, a, 3, padding=1), nn.BatchNorm2d(a)
        self.s1, self.s2 = nn.Conv2d(a, s, 1), nn.Conv2d(s, a, 1)
        self.b, self.fc = nn.Conv2d(a, b, 1), nn.Linear(b, 3)

    def forward(self, x: Tensor) -> Any:
        x = F.silu(self.na(self.a(x)))
        gate = torch.sigmoid(self.s2(F.relu(self.s1(x.mean((2, 3), keepdim=True)))))
        return self.fc(F.relu(self.b(x * gate)).mean((2, 3)))


SMALL: tuple[type[Small], ...] = (Chain, Residual, Gated)


def example(dtype: torch.dtype = torch.float64) -> Tensor:
    """A fixed input."""
    return torch.randn(2, 3, 7, 7, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(dtype)


class Draft:
    """The tensors of a network, open to be added to."""

    def __init__(self, model: Small, seed: int = 0) -> None:
        self.kind = type(model)
        self.state: State = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.generator = torch.Generator().manual_seed(seed)

    def random(self, *shape: int) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def width(self, space: str) -> int:
        """Channels of a space as it is now."""
        return self.state[self.kind.rows[space][0]].shape[0]

    def add(
        self, space: str, rows: Mapping[str, Tensor | float] | None = None, columns: Mapping[str, Tensor] | None = None
    ) -> int:
        """Append a channel. Rows that are not given are random, columns that are not given are zero."""
        index = self.width(space)
        for name in self.kind.rows[space]:
            old = self.state[name]
            given = (rows or {}).get(name)
            if given is None:
                given = self.random(*old.shape[1:])
                given = given.abs() + 0.5 if name.endswith("running_var") else given
            new = torch.as_tensor(given, dtype=old.dtype).expand(old.shape[1:])
            self.state[name] = torch.cat([old, new[None]])
        for name in self.kind.columns[space]:
            old = self.state[name]
            column = (columns or {}).get(name, torch.zeros_like(old[:, 0]))
            self.state[name] = torch.cat([old, column.to(old.dtype)[:, None]], 1)
        return index

    def silent(self, space: str) -> Mapping[str, float]:
        """Rows that make a channel zero before any activation: no weight, no offset."""
        return dict.fromkeys((n for n in self.kind.rows[space] if not n.endswith(("running_var",))), 0.0)

    def copy(self, space: str, channel: int, keep: float, given: float) -> int:
        """Append a copy of a channel; the old one keeps a share of its columns and the copy is given another."""
        rows = {name: self.state[name][channel] for name in self.kind.rows[space]}
        columns = {name: self.state[name][:, channel] * given for name in self.kind.columns[space]}
        for name in self.kind.columns[space]:
            self.state[name][:, channel] *= keep
        return self.add(space, rows, columns)

    def clique(self, space: str, size: int, rows: Mapping[str, Tensor | float] | None = None) -> list[int]:
        """Append equal channels whose columns sum to zero, drawn anew for every row that reads them."""
        first = self.add(space, rows)
        members = [first] + [self.copy(space, first, 1.0, 0.0) for _ in range(size - 1)]
        for name in self.kind.columns[space]:
            weight = self.state[name]
            free = self.random(weight.shape[0], size, *weight.shape[2:])
            weight[:, members] = (free - free.mean(1, keepdim=True)).to(weight.dtype)
        return members

    def scale(self, rows: Sequence[str], columns: Sequence[str], channel: int, factor: float) -> None:
        """Multiply entries of rows and divide entries of columns."""
        for name in rows:
            self.state[name][channel] *= factor
        for name in columns:
            self.state[name][:, channel] /= factor

    def shuffle(self, space: str) -> None:
        """Put the channels of a space in another order."""
        order = torch.randperm(self.width(space), generator=self.generator)
        for name in self.kind.rows[space]:
            self.state[name] = self.state[name][order]
        for name in self.kind.columns[space]:
            self.state[name] = self.state[name][:, order]

    def build(self) -> Small:
        """The network, every space shuffled."""
        for space in self.kind.rows:
            self.shuffle(space)
        return self.kind.of(self.state)
