"""Networks with tensors that no channel goes along with: attention, tokens, embeddings, recurrent weights, experts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


class Perceptron(nn.Module):
    """Linear layers with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(12, 48), nn.Linear(48, 48), nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.third(torch.relu(self.second(torch.relu(self.first(x)))))
        return logits


class Attention(nn.Module):
    """A block of a transformer: attention, then an MLP whose hidden channels are free."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.MultiheadAttention(width, 4, batch_first=True)
        self.up, self.down = nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.norm1(x)
        x = x + self.mix(seen, seen, seen, need_weights=False)[0]
        out: Tensor = x + self.down(torch.relu(self.up(self.norm2(x))))
        return out


class Vision(nn.Module):
    """Patches, a class token and positions, and two blocks."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 17, width))
        self.blocks = nn.ModuleList([Attention(width), Attention(width)])
        self.head = nn.Linear(width, 7)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x[:, 0])
        return logits


class Language(nn.Module):
    """Embeddings of tokens and positions, a block, and a head that is the embedding again."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, width), nn.Embedding(10, width)
        self.block = Attention(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        logits: Tensor = self.block(x) @ self.words.weight.T
        return logits


class Recurrent(nn.Module):
    """An LSTM between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.middle, self.after = nn.Linear(6, 40), nn.Linear(40, 16), nn.Linear(20, 5)
        self.memory = nn.LSTM(16, 20, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.memory(self.middle(torch.relu(self.before(x))))
        logits: Tensor = self.after(states[:, -1])
        return logits


class Experts(nn.Module):
    """Weights of four experts in two tensors of three axes, mixed by a router."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.narrow = nn.Linear(10, 48), nn.Linear(48, 16)
        self.router = nn.Linear(16, 4)
        self.up = nn.Parameter(torch.randn(4, 16, 32) * 0.3)
        self.down = nn.Parameter(torch.randn(4, 32, 16) * 0.3)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.narrow(torch.relu(self.into(x)))
        share = self.router(x).softmax(-1)
        hidden = torch.einsum("bi,eih->beh", x, self.up).relu()
        mixed = torch.einsum("beh,eho,be->bo", hidden, self.down, share)
        logits: Tensor = self.head(x + mixed)
        return logits


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A network of this kind whose biases do something."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = make()
        for name, parameter in net.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(parameter, 0, 0.3)
        return net.eval()


def replaced(model: nn.Module, names: Iterable[str], seed: int = 9) -> nn.Module:
    """A copy with noise of the same size in place of these parameters, or of all whose names begin like this."""
    generator = torch.Generator().manual_seed(seed)
    chosen = tuple(names)
    noisy = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in noisy.named_parameters():
            if name.startswith(chosen):
                size = parameter.std() if parameter.numel() > 1 else parameter.abs()
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * size * 2)
    return noisy
