"""A thief who turns, mixes or negates channels, and then changes what the outputs say, is not called another network.

Nothing of the owner's is found then, and outputs differ: as in a stranger. But the function was kept up to the last
layer, so that a difference was not shown. A stranger is still told where something that no turn changes shows it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from canon.api import check_evidence, judge
from canon.containment.foreign import foreign_spaces
from canon.containment.walk import Walk
from canon.verify import register
from canon.verify.layout import survey
from canon.verify.portrait import portray
from canon.verify.traced import Traced

WIDTH = 24
WORDS = torch.arange(12).reshape(2, 6)
NUMBERS = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def turn(size: int) -> Tensor:
    drawn = torch.randn(size, size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found: Tensor = torch.linalg.qr(drawn).Q.float()
    return found


def linear(modules: Iterable[nn.Module]) -> list[nn.Linear]:
    return [module for module in modules if isinstance(module, nn.Linear)]


class Text(nn.Module):
    """A stream with norms of whole vectors in front of its layers, and positions that fix its channels."""

    def __init__(self, positions: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(40, WIDTH)
        self.places = nn.Parameter(torch.randn(6, WIDTH)) if positions else None
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(WIDTH, 64) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(64, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, 40)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        x = x if self.places is None else x + self.places
        for norm, up, down in zip(self.norms[:2], self.up, self.down, strict=True):
            x = x + down(nn.functional.gelu(up(norm(x))))
        result: Tensor = self.head(self.norms[2](x))
        return result

    def hide(self) -> None:
        """Turn the stream; gains go into the layers that read it."""
        basis = turn(WIDTH)
        for norm, layer in zip(self.norms, linear([*self.up, self.head]), strict=True):
            gain = norm.get_parameter("weight")
            layer.weight.copy_(layer.weight * gain @ basis.T)
            gain.fill_(1)
        self.table.weight.copy_(self.table.weight @ basis.T)
        if self.places is not None:
            self.places.copy_(self.places @ basis.T)
        for layer in linear(self.down):
            layer.weight.copy_(basis @ layer.weight)
            layer.bias.copy_(basis @ layer.bias)


class Odd(nn.Module):
    """A perceptron with an odd function."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 40), nn.Linear(40, 40), nn.Linear(40, 40)])
        self.head = nn.Linear(40, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        result: Tensor = self.head(x)
        return result

    def hide(self) -> None:
        """Negate every other channel."""
        signs = torch.tensor([1.0, -1.0]).repeat(20)
        layers = linear([*self.layers, self.head])
        for layer, reader in pairwise(layers):
            layer.weight.mul_(signs[:, None])
            layer.bias.mul_(signs)
            reader.weight.mul_(signs)


class Complements(Odd):
    """A perceptron whose first function is a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        widths = (8, 48, 32, 48, 32)
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sigmoid(self.layers[0](x))
        for layer in self.layers[1:]:
            x = torch.relu(layer(x))
        result: Tensor = self.head(x)
        return result

    def hide(self) -> None:
        """Half the channels of the first layer become what they lack to one: `σ(−u) = 1 − σ(u)`."""
        signs = torch.tensor([1.0, -1.0]).repeat(24)
        first, second, *_ = linear(self.layers)
        first.weight.mul_(signs[:, None])
        first.bias.mul_(signs)
        second.bias.add_(second.weight @ ((1 - signs) / 2))
        second.weight.mul_(signs)


class Stream(nn.Module):
    """A stream that nothing but linear layers read."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 10)
        self.up = nn.ModuleList(nn.Linear(WIDTH, 48) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(48, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(torch.relu(up(x)))
        result: Tensor = self.head(x)
        return result

    def hide(self) -> None:
        """Turn the stream."""
        basis = turn(WIDTH)
        for layer in linear([self.into, *self.down]):
            layer.weight.copy_(basis @ layer.weight)
            layer.bias.copy_(basis @ layer.bias)
        for layer in linear([*self.up, self.head]):
            layer.weight.copy_(layer.weight @ basis.T)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "behind norms of vectors": (lambda: Text(positions=False), WORDS),
    "pinned by positions": (lambda: Text(positions=True), WORDS),
    "behind an odd function": (Odd, NUMBERS),
    "behind complements": (Complements, NUMBERS),
    "between linear layers": (Stream, NUMBERS),
}
NO_TURN_HIDES_IT = ("behind norms of vectors", "pinned by positions", "behind an odd function", "behind complements")


def network(name: str, seed: int) -> tuple[nn.Module, Tensor]:
    make, example = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = make().eval()
        with torch.no_grad():
            for part, tensor in made.named_parameters():
                if part.startswith("norms"):
                    tensor.uniform_(0.5, 1.5)
                elif part.endswith("bias"):
                    tensor.normal_(0, 0.3)
    return made, example


@pytest.mark.parametrize("by_key", [False, True], ids=["reference", "key"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_hidden_copy_with_other_outputs_is_not_refuted(name: str, by_key: bool) -> None:
    owner, example = network(name, 0)
    thief = copy.deepcopy(owner)
    head = thief.get_submodule("head")
    with torch.no_grad():
        thief.hide()  # type: ignore[operator]
        torch.testing.assert_close(thief(example), owner(example), atol=1e-4, rtol=1e-4)
        for tensor in head.parameters():
            tensor.copy_(tensor.roll(1, 0))
    found = judge(thief, example, **({"layout_key": register(owner, example)} if by_key else {"reference": owner}))
    assert found.answers.function.answer == "disagree"
    assert found.answers.network.answer != "unrelated", found.answers.network
    assert found.verdict.kind != "refuted"
    check_evidence(found.evidence)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_stranger_is_told_where_no_turn_could_hide_the_owners(name: str) -> None:
    owner, example = network(name, 0)
    found = judge(network(name, 5)[0], example, reference=owner)
    assert found.answers.network.answer == ("unrelated" if name in NO_TURN_HIDES_IT else "not decided")
    assert found.verdict.kind == ("refuted" if name in NO_TURN_HIDES_IT else "inconclusive")


def test_rows_that_read_what_was_half_found_show_nothing() -> None:
    """Half of what a layer reads are complements of the owner's: its rows look like another network's, and are not."""
    owner, example = network("behind complements", 0)
    thief = copy.deepcopy(owner)
    with torch.no_grad():
        thief.hide()  # type: ignore[operator]
    theirs, ours = Traced.of(owner, example), Traced.of(thief, example)
    layout = survey(theirs)
    walk = Walk(ours.graph, ours.tensors, portray(theirs, layout, 16, layout.seed), owner=theirs)
    walk.run()
    assert walk.poor(1), "the rows of the second layer are not found"
    assert "layers.1" not in foreign_spaces(walk, theirs)
