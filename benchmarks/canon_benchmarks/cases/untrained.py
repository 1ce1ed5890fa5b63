"""Cases about networks that nobody trained: random weights, files of others, models whose numbers do not matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from canon.bench.cases import Case, one_of
from canon.errors import BenchError


@dataclass(frozen=True, kw_only=True)
class OfUntrained(Case):
    """A case about a network with random weights, whose numbers hide nothing (`subjects.subject`)."""

    model: str
    """One of `subjects.MODELS`."""

    @property
    def shared(self) -> object:
        """See `Case`."""
        return self.model

    def check(self) -> None:
        """See `Case`."""
        from canon_benchmarks.subjects import MODELS

        one_of("model of the grids", self.model, MODELS)


@dataclass(frozen=True, kw_only=True)
class Hidden(OfUntrained):
    """A case about such a network in disguise."""

    attack: str
    """A primitive, or a way to sample a sequence of them."""

    ratio: float
    """ρ: share of channels that are added."""

    seed: int = 0
    """Seed of the attack, and of the inputs that outputs are compared on."""

    def check(self) -> None:
        """See `Case`."""
        from canon.attacks.options import MIX
        from canon.attacks.registry import get

        super().check()
        if self.attack not in MIX:
            get(self.attack)


@dataclass(frozen=True, kw_only=True)
class Kept(Hidden):
    """Does the attack keep the function?"""

    kind: ClassVar[str] = "kept"

    dtype: str = "float32"
    """`float32` or `float64`."""

    def check(self) -> None:
        """See `Case`."""
        super().check()
        one_of("precision", self.dtype, ("float32", "float64"))


@dataclass(frozen=True, kw_only=True)
class Restored(Hidden):
    """Recover, and hold shapes and logits against the clean model's."""

    kind: ClassVar[str] = "restored"


@dataclass(frozen=True, kw_only=True)
class Aligned(Hidden):
    """Recover, and align by way of the reference and of the layout key."""

    kind: ClassVar[str] = "aligned"


@dataclass(frozen=True, kw_only=True)
class Folded(Hidden):
    """Fold all norms away, recover, certify on folded forms, and align both ways."""

    kind: ClassVar[str] = "folded"


@dataclass(frozen=True, kw_only=True)
class Noisy(Hidden):
    """Recover from weights that carry noise."""

    kind: ClassVar[str] = "noisy"

    noise: str
    """Relative noise, noise relative to the deviation of each tensor (`1e-5 of spread`), or a precision to round to."""

    def check(self) -> None:
        """See `Case`."""
        super().check()
        if self.noise not in ("float16", "bfloat16"):
            try:
                float(self.noise.removesuffix(" of spread"))
            except ValueError as error:
                raise BenchError(f"no noise is called '{self.noise}'") from error


@dataclass(frozen=True, kw_only=True)
class Keysize(OfUntrained):
    """What a layout key holds."""

    kind: ClassVar[str] = "keysize"

    robust: bool
    """Whether the key is made to stand noise."""


@dataclass(frozen=True, kw_only=True)
class Roundtrip(OfUntrained):
    """Disguise, write as ONNX, judge the file against the reference, and write what was recovered as ONNX again."""

    kind: ClassVar[str] = "roundtrip"

    norms: str
    """`kept` or `folded`."""

    names: str
    """`kept`, or `anonymous`: tensors have names that say nothing."""

    def check(self) -> None:
        """See `Case`."""
        super().check()
        one_of("treatment of norms", self.norms, ("kept", "folded"))
        one_of("treatment of names", self.names, ("kept", "anonymous"))


@dataclass(frozen=True, kw_only=True)
class Contained(Hidden):
    """Attack, change in several ways, and look for the owner's network with what the owner may bring."""

    kind: ClassVar[str] = "contained"


@dataclass(frozen=True, kw_only=True)
class Point(Hidden):
    """One kind of redundancy, injected by a primitive of its own, and recovered."""

    kind: ClassVar[str] = "point"


@dataclass(frozen=True, kw_only=True)
class Rewritten(OfUntrained):
    """Attack, rewrite five times as another program, and judge by the reference and by the layout key."""

    kind: ClassVar[str] = "rewritten"

    seed: int
    """Of the attack and of the rewritings; odd ones judge on inputs of another size."""


@dataclass(frozen=True, kw_only=True)
class Exported(OfUntrained):
    """Attack, send through the tools that make ONNX files, and judge the file by reference and by layout key."""

    kind: ClassVar[str] = "exported"

    exporter: str
    """One of `exports.EXPORTERS`."""

    norms: str
    """`kept` or `folded`."""

    then: str = ""
    """One of `exports.PASSES`, or nothing."""

    def check(self) -> None:
        """See `Case`."""
        from canon_benchmarks.exports import EXPORTERS, PASSES

        super().check()
        one_of("exporter", self.exporter, tuple(EXPORTERS))
        one_of("treatment of norms", self.norms, ("kept", "folded"))
        one_of("pass over ONNX files", self.then, ("", *PASSES))


@dataclass(frozen=True, kw_only=True)
class Foreign(Case):
    """An ONNX file from elsewhere: read, run, traced, recovered, then attacked and recovered again."""

    kind: ClassVar[str] = "foreign"

    package: str
    """Where it comes from, with its version."""

    file: str
    """Its name; it lies in the folder of datasets, in a folder named after the package."""

    size: str = ""
    """Shape of one input, such as `3x48x320`, where the file leaves it open."""


@dataclass(frozen=True, kw_only=True)
class Traced(Case):
    """A public architecture, without weights: what is free in it, and what pins."""

    kind: ClassVar[str] = "traced"

    source: str
    """The library that builds the model: `torchvision`, `timm`, or `patterns` for those written by hand."""

    model: str

    def check(self) -> None:
        """See `Case`."""
        one_of("library of models", self.source, ("torchvision", "timm", "patterns"))


@dataclass(frozen=True, kw_only=True)
class Family(Case):
    """A small member of a family of transformers: traced, attacked, recovered and certified."""

    kind: ClassVar[str] = "family"

    family: str
    """One of `families.FAMILIES`."""

    def check(self) -> None:
        """See `Case`."""
        from canon_benchmarks.families import FAMILIES

        one_of("family", self.family, tuple(FAMILIES))


@dataclass(frozen=True, kw_only=True)
class Large(Case):
    """A command on a checkpoint in the shape of a Llama, shard by shard: its time and its memory."""

    kind: ClassVar[str] = "large"

    size: str
    """One of `measures.large.SIZES`."""

    command: str
    """One of `measures.large.COMMANDS`."""

    @property
    def shared(self) -> object:
        """See `Case`."""
        return self.size
