"""`canon demo`: the whole story on embedded data, told as it happens."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.text import Text

from canon.cli.console import Talker
from canon.cli.options import AsJson, Seed

Epochs = Annotated[int | None, typer.Option("--epochs", min=1, help="Most epochs to train; fewer is quicker.")]
Ratio = Annotated[float, typer.Option("--ratio", help="Share of channels that each step of the attack adds.")]

OPS = ("nso_zero", "nso_clique", "nso_split")


@dataclass
class DemoRecord:
    """What the demo measured."""

    accuracy: float
    """Test accuracy of the watermarked model."""
    clean_similarity: float
    attacked_similarity: float
    recovered_similarity: float
    """Read from the aligned model."""
    key_similarity: float
    """Read after aligning with the layout key alone."""
    parameters: tuple[int, int, int]
    """Clean, attacked, recovered."""
    attacked_difference: float
    """Largest output difference between the clean and the attacked model, relative to the largest output."""
    max_rel_err: float
    match_frac: float
    passed: bool
    seconds: float


def demo(ratio: Ratio = 0.2, epochs: Epochs = None, seed: Seed = 0, as_json: AsJson = False) -> None:
    """Watermark a network, hide the watermark, bring it back, and prove it.

    A resnet18 learns scikit-learn's digits together with a 128-bit message in its weights. An attacker then injects
    channels, shuffles and rescales them, without changing a single output. Canon undoes that from the attacked model
    alone, certifies the result against the owner's model, and reads the message again.

    [bold]Examples[/bold]

      canon demo

      canon demo --ratio 0.5 --seed 3
    """
    talker = Talker(as_json)
    record = run_demo(talker, ratio, epochs, seed)
    closing = Text("\nThe watermark is back, and the certificate passed.", style="bold green")
    if not record.passed or record.recovered_similarity < record.clean_similarity:
        closing = Text("\nThe watermark did not come back in full; see the figures above.", style="bold red")
    talker.result(record, closing)


def run_demo(talker: Talker, ratio: float, epochs: int | None, seed: int) -> DemoRecord:
    """Tell the story and measure it."""
    import torch

    import canon
    from canon import watermarks, zoo

    started = time.perf_counter()
    data = zoo.dataset("digits")
    scheme = watermarks.get("uchida17")
    options = watermarks.TrainOptions()
    if epochs is not None:
        options = watermarks.TrainOptions(epochs=epochs, cooldown=min(options.cooldown, epochs))
    say = talker.note
    say("1. The owner trains resnet18 on 8x8 digits and hides a 128-bit message in its weights (uchida17).")
    embedded = scheme.embed(
        zoo.model("resnet18", classes=data.classes, seed=seed),
        data,
        seed=seed,
        options=options,
        progress=lambda e: say(f"   epoch {e.epoch}: accuracy {e.accuracy:.3f}, message {e.similarity:.3f}"),
    )
    owner, key = embedded.model, embedded.key
    example = zoo.example_input("resnet18")
    layout = canon.register(owner, example)
    accuracy = watermarks.accuracy(owner, data)
    clean = scheme.similarity(owner, key)
    say(f"   test accuracy {accuracy:.3f}; the owner's key reads {clean:.1%} of the message")

    say(f"2. An attacker obfuscates the model: {', '.join(OPS)} at ratio {ratio:g}, permuted and rescaled.")
    attacked = canon.attack(owner, example, ops=OPS, ratio=ratio, seed=seed).model
    with torch.no_grad():
        expected, got = owner(data.test_images), attacked(data.test_images)
    difference = float((expected - got).abs().max() / expected.abs().max())
    hidden = scheme.similarity(attacked, key)
    say(f"   {_count(owner):,} parameters became {_count(attacked):,}; outputs differ by {difference:.1e}")
    say(f"   the owner's key now reads {hidden:.1%}: a coin would do as well")

    say("3. Canon recovers the model from the attacked one alone.")
    result = canon.recover(attacked, example)
    report = result.report
    say(f"   {report.removed} channels removed, {report.merged} merged: {report.parameters[1]:,} parameters")
    unaligned = scheme.similarity(result.model, key)
    say(f"   channels are still in the attacker's order: the key reads {unaligned:.1%}")

    say("4. Canon aligns the result with the owner's model and certifies that they are the same.")
    certificate = canon.certify(result.model, owner, example, tolerance=1e-3)
    aligned = certificate.aligned
    recovered = hidden if aligned is None else scheme.similarity(aligned, key)
    say(
        f"   {certificate.match_frac:.0%} of all channels match, largest residual {certificate.max_rel_err:.1e}: "
        f"{'passed' if certificate.passed else 'failed'}"
    )
    say(f"   the owner's key reads {recovered:.1%}")

    say("5. The same without the owner's model, from its layout key.")
    from_key = scheme.similarity(canon.align(result.model, layout, example).model, key)
    say(f"   the owner's key reads {from_key:.1%}")
    return DemoRecord(
        accuracy=accuracy,
        clean_similarity=clean,
        attacked_similarity=hidden,
        recovered_similarity=recovered,
        key_similarity=from_key,
        parameters=(_count(owner), _count(attacked), _count(result.model)),
        attacked_difference=difference,
        max_rel_err=certificate.max_rel_err,
        match_frac=certificate.match_frac,
        passed=certificate.passed,
        seconds=time.perf_counter() - started,
    )


def _count(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())
