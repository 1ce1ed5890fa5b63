"""What a layout key keeps of a model beside its channels: tensors whose entries have no freedom, and outputs on probes.

Both are a few random projections: enough to see that a model differs, too little to rebuild anything from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.errors import VerificationError
from canon.verify.coverage import Coverage, Uncompared
from canon.verify.fixed import NUMBERS, fixed_projections, fixed_tensors, projection_residual
from canon.verify.function import (
    Comparison,
    Inputs,
    Outputs,
    compare_outputs,
    fingerprint,
    outputs_of,
    probe_count,
    random_probes,
)
from canon.verify.traced import Traced

MOST_NUMBERS: Final = 1 << 26
"""Largest input that a key may ask for."""

FLOATS: Final = ("float32", "float64", "float16", "bfloat16")
WHOLE: Final = ("int64", "int32", "uint8", "bool")


@dataclass(frozen=True)
class Input:
    """One input of the registered model: what random probes are drawn from."""

    dtype: str
    shape: tuple[int, ...]
    low: int = 0
    high: int = 0

    @staticmethod
    def of(x: Tensor) -> Input:
        """The kind of an example."""
        dtype = str(x.dtype).removeprefix("torch.")
        ends = (0, 0) if dtype in FLOATS or not x.numel() else (int(x.min()), int(x.max()))
        return Input(dtype, tuple(x.shape), *ends)

    def example(self) -> Tensor:
        """An example of this kind, with its smallest and largest number."""
        made = torch.zeros(self.shape, dtype=getattr(torch, self.dtype))
        if self.dtype in WHOLE and made.numel():
            made.fill_(self.low).view(-1)[-1] = self.high
        return made


@dataclass(frozen=True, eq=False)
class Registered:
    """Projections of a registered model's fixed tensors and outputs."""

    seed: int
    """Of the projections; drawn anew for each key."""

    numbers: int
    """Numbers in all tensors of the model that its forward pass uses."""

    fixed: Mapping[str, tuple[tuple[int, ...], Tensor]] = field(default_factory=dict)
    """By tensor: its shape and its projections."""

    inputs: tuple[Input, ...] = ()
    outputs: Tensor | None = None
    """`probes x numbers`; None where the model could not be run."""

    parts: tuple[int, ...] | None = None
    """How many of the numbers each output has; None: there is one output."""

    @property
    def sizes(self) -> dict[str, int]:
        """By fixed tensor: its numbers."""
        return {name: prod(shape) for name, (shape, _) in self.fixed.items()}

    @staticmethod
    def of(traced: Traced, seed: int) -> Registered:
        """Of a model that is being registered."""
        tensors = fixed_tensors(traced)
        projections = fixed_projections(tensors, seed)
        fixed = {name: (tuple(tensors[name].shape), projections[name].float().double()) for name in tensors}
        used = sum(traced.tensors[name].numel() for name in traced.used)
        example = traced.example if isinstance(traced.example, tuple) else (traced.example,)
        kinds = [
            x for x in example if isinstance(x, Tensor) and str(x.dtype).removeprefix("torch.") in (*FLOATS, *WHOLE)
        ]
        if len(kinds) < len(example):
            return Registered(seed, used, fixed)
        inputs = tuple(Input.of(x) for x in kinds)
        try:
            outputs = fingerprint(outputs_of(traced.model, _calls(inputs, probe_count(traced.model))))
        except VerificationError:
            return Registered(seed, used, fixed)
        if not bool(outputs.values.isfinite().all()):
            return Registered(seed, used, fixed, inputs)
        parts = outputs.sizes if len(outputs.sizes) > 1 else None
        return Registered(seed, used, fixed, inputs, outputs.values.float(), parts)

    def compare_fixed(self, traced: Traced) -> tuple[dict[str, float], Coverage]:
        """By tensor: its residual in a model in the owner's layout; and what all of that covers."""
        ours = fixed_tensors(traced)
        same = {name: t for name, t in ours.items() if name in self.fixed and tuple(t.shape) == self.fixed[name][0]}
        found: dict[str, float] = {}
        if same.keys() == self.fixed.keys():
            mine = fixed_projections(same, self.seed)
            found = {name: projection_residual(mine[name], self.fixed[name][1]) for name in same}
        missing = [
            Uncompared(name, prod(shape), "the suspect has no tensor of this name and shape")
            for name, (shape, _) in self.fixed.items()
            if name not in found
        ]
        # What a key leaves out was not compared, whatever it says of its numbers.
        missing += [
            Uncompared(name, tensor.numel(), "the key says nothing of it")
            for name, tensor in ours.items()
            if name not in self.fixed
        ]
        used = {name: traced.tensors[name] for name in traced.used}
        return found, Coverage.of(used, missing)

    def compare_function(self, suspect: nn.Module) -> tuple[Comparison, ...]:
        """How far a suspect's outputs agree with what was registered."""
        if self.outputs is None:
            return (Comparison("random", 0, None, None, "the key holds no outputs to compare with"),)
        try:
            ours = self._outputs_like(suspect)
        except VerificationError as error:
            return (Comparison("random", len(self.outputs), None, None, error.message),)
        theirs = Outputs(self.outputs.double(), self.parts or (self.outputs.shape[1],))
        found = compare_outputs(ours, theirs, "random")
        # What is compared are projections of outputs; which of these is the largest decides nothing.
        return (replace(found, same_decision=None),)

    def outputs_like(self, suspect: nn.Module) -> Tensor:
        """A suspect's outputs on the key's probes, told as the key's are.

        Raises:
            VerificationError: The suspect cannot be run on them.
        """
        return self._outputs_like(suspect).values.float()

    def _outputs_like(self, suspect: nn.Module) -> Outputs:
        calls = _calls(self.inputs, 0 if self.outputs is None else len(self.outputs))
        return fingerprint(outputs_of(suspect, calls), joined=self.parts is None)

    def header(self) -> dict[str, Any]:
        """What is not a tensor, as JSON."""
        return {
            "seed": self.seed,
            "numbers": self.numbers,
            "fixed": [[name, *shape] for name, (shape, _) in sorted(self.fixed.items())],
            "inputs": [[x.dtype, list(x.shape), x.low, x.high] for x in self.inputs],
            **({} if self.parts is None else {"outputs": list(self.parts)}),
        }

    def tensors(self) -> dict[str, Tensor]:
        """The numbers, as a key file holds them."""
        found = {}
        if self.fixed:
            found["fixed"] = torch.cat([self.fixed[name][1] for name in sorted(self.fixed)]).float()
        if self.outputs is not None:
            found["outputs"] = self.outputs.float()
        return found

    @staticmethod
    def parse(header: Any, tensors: Mapping[str, Tensor]) -> Registered:
        """From what a file holds; ValueError and the like for whatever is wrong with it."""
        names = [str(name) for name, *_ in header["fixed"]]
        if len(set(names)) < len(names):
            raise ValueError("a tensor stands twice in the key")
        shapes = [tuple(_whole(n, 0, 1 << 40) for n in shape) for _, *shape in header["fixed"]]
        numbers = tensors.get("fixed", torch.empty(0))
        if numbers.shape != (len(names) * NUMBERS,) or not _finite(numbers):
            raise ValueError("the projections of fixed tensors are not as many, or not finite")
        split = numbers.double().split(NUMBERS) if names else ()
        fixed = {name: (shape, part) for name, shape, part in zip(names, shapes, split, strict=True)}
        inputs = tuple(_input(entry) for entry in header["inputs"])
        outputs = tensors.get("outputs")
        if outputs is not None and (outputs.ndim != 2 or not inputs or not _finite(outputs)):
            raise ValueError("the outputs are of another shape, or not finite")
        parts = tuple(_whole(n, 0, NUMBERS) for n in header["outputs"]) if "outputs" in header else None
        if parts is not None and (outputs is None or sum(parts) != outputs.shape[1]):
            raise ValueError("the outputs are not as many as the key says")
        seed, count = _whole(header["seed"], 0, (1 << 63) - 1), _whole(header["numbers"], 1, 1 << 50)
        return Registered(seed, count, fixed, inputs, outputs, parts)


def _calls(inputs: tuple[Input, ...], count: int) -> list[Inputs]:
    return random_probes(tuple(x.example() for x in inputs), count)


def _input(entry: Any) -> Input:
    dtype, shape, low, high = entry
    if dtype not in (*FLOATS, *WHOLE):
        raise ValueError(f"an input of an unknown type {dtype!r:.20}")
    sizes = tuple(_whole(n, 1, MOST_NUMBERS) for n in shape)
    if prod(sizes) > MOST_NUMBERS:
        raise ValueError("an input of more numbers than are allowed")
    return Input(dtype, sizes, _whole(low, -(1 << 62), 1 << 62), _whole(high, -(1 << 62), 1 << 62))


def _whole(value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"expected a whole number from {low} to {high}, got {value!r:.40}")
    return value


def _finite(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and bool(torch.isfinite(tensor).all())
