"""`canon demo`: the whole story on embedded data, told as it happens."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from canon._files import check_outputs
from canon.cli.console import Talker
from canon.cli.demo_stories import STORIES, Network, Story
from canon.cli.groups import verb
from canon.cli.options import AsJson, Force, Seed

if TYPE_CHECKING:
    from torch import nn

    from canon.api import Judgement
    from canon.claims import Presented
    from canon.verify import LayoutKey
    from canon.watermarks import Key


Which = Annotated[Network, typer.Option("--model", help="A network that reads digits, or a small language model.")]
Epochs = Annotated[int | None, typer.Option("--epochs", min=1, help="Most epochs to train; fewer is quicker.")]
Ratio = Annotated[float, typer.Option("--ratio", help="Share of channels that each step of the attack adds.")]
Page = Annotated[Path, typer.Option("--report", dir_okay=False, help="Where to write the report, as HTML.")]

OPS = ("nso_zero", "nso_clique", "nso_split")
TRIED = 256
"""Test inputs on which outputs are compared."""


@dataclass
class DemoRecord:
    """What the demo measured."""

    accuracy: float
    """Test accuracy of the watermarked model; of a language model, the share of bytes it foresees."""
    clean_similarity: float
    attacked_similarity: float
    recovered_similarity: float
    """Read from the model that was aligned with the owner's."""
    key_similarity: float
    """Read after aligning with the layout key alone."""
    parameters: tuple[int, int, int]
    """Clean, attacked, recovered."""
    attacked_difference: float
    """Largest output difference between the clean and the attacked model, relative to the largest output."""
    max_rel_err: float
    match_frac: float
    verdicts: tuple[str, str]
    """By way of the owner's model, and of its layout key."""
    p_value: float
    report: Path
    seconds: float

    @property
    def complete(self) -> bool:
        """Whether everything came back."""
        return set(self.verdicts) <= {"proved", "matches"} and self.recovered_similarity >= self.clean_similarity


@verb("canon demo", "canon demo --model text", "canon demo --ratio 0.5 --seed 3 --report half.html")
def demo(
    model: Which = Network.image,
    ratio: Ratio = 0.2,
    epochs: Epochs = None,
    report: Page = Path("canon-demo.html"),
    seed: Seed = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Watermark a network, hide the watermark, bring it back, and show that it is the same.

    A resnet18 learns scikit-learn's digits together with a 128-bit message in its weights; or, with `--model text`, a
    small language model learns the text of Python's own library, as it is installed. An attacker then injects
    channels, shuffles and rescales them, without changing a single output. Canon undoes that from the attacked model
    alone, certifies the result against the owner's model, reads the message again, and writes a report to look at.
    """
    from canon.attacks import AttackOptions
    from canon.report import check_report

    AttackOptions(ops=OPS, ratio=ratio, seed=seed)  # refuses what cannot be, before any work
    check_outputs([report], force=force)
    check_report(report, force=force)
    talker = Talker(as_json)
    record = run_demo(talker, STORIES[model], ratio, epochs, seed, report, force=force)
    closing = Text(
        "\nThe owner's network is in the disguised one, and the watermark is back. Open the report: ",
        style="bold green",
    )
    if not record.complete:
        closing = Text("\nNot everything came back; see the figures above and the report: ", style="bold red")
    talker.result(record, closing.append(str(report)))


def run_demo(
    talker: Talker, story: Story, ratio: float, epochs: int | None, seed: int, report: Path, *, force: bool = False
) -> DemoRecord:
    """Tell the story and measure it."""
    import torch

    import canon
    from canon import watermarks, zoo
    from canon.report import write_report

    started = time.perf_counter()
    say = talker.note
    data, example = zoo.dataset(story.dataset), zoo.example_input(story.model)
    scheme = watermarks.get("uchida17")
    say(f"1. {story.learns}")
    say(f"   The network is {story.what}; the secret is 128 random bits, which only the owner's key can read.")
    owner, key = _train(talker, story, data, seed, epochs)
    layout = canon.register(owner, example)
    accuracy, clean = watermarks.accuracy(owner, data), scheme.similarity(owner, key)
    say(f"   It {story.reads.format(accuracy)}, and the key reads {clean:.1%} of the secret.")
    claimed = _commit(talker, owner, layout, key)

    say("2. A thief takes the network and disguises it, so that the key no longer fits.")
    say(f"   Channels are added, copied, shuffled and rescaled ({', '.join(OPS)}; ratio {ratio:g}).")
    attacked = canon.attack(owner, example, ops=OPS, ratio=ratio, seed=seed).model
    with torch.no_grad():
        expected, got = owner(data.test_images[:TRIED]), attacked(data.test_images[:TRIED])
    difference = float((expected - got).abs().max() / expected.abs().max())
    hidden = scheme.similarity(attacked, key)
    say(f"   {_count(owner):,} parameters became {_count(attacked):,}, yet outputs differ by {difference:.1e} only.")
    say(f"   The key now reads {hidden:.1%} of the secret: a coin would do as well.")

    say("3. Canon recovers the network, from the disguised one alone.")
    say("   What was added without changing the function is redundant, and redundancy can be found.")
    result = canon.recover(attacked, example)
    found = result.report
    say(f"   {found.removed:,} channels did nothing and {found.merged:,} were copies; without them,")
    say(f"   {found.parameters[1]:,} parameters are left.")
    unaligned = scheme.similarity(result.model, key)
    say(f"   They are still in the thief's order, so the key reads {unaligned:.1%}.")

    say("4. Canon holds the result against the owner's network.")
    brought = None if claimed is None else claimed()
    by_reference = canon.judge(attacked, example, reference=owner, watermark_key=key, claim=brought)
    write_report(by_reference.evidence, report, force=force)
    _tell(talker, by_reference)

    say(f"5. The same without the owner's network, from its layout key: {story.fingerprint}.")
    by_key = canon.judge(attacked, example, layout_key=layout, watermark_key=key, claim=brought)
    _tell(talker, by_key)
    certificate, mark = by_reference.compared.certificate, by_reference.mark
    assert certificate is not None, "there was a reference"
    assert mark is not None, "there was a watermark key"
    return DemoRecord(
        accuracy=accuracy,
        clean_similarity=clean,
        attacked_similarity=hidden,
        recovered_similarity=mark.similarity,
        key_similarity=by_key.evidence["watermark"]["similarity"],
        parameters=(_count(owner), _count(attacked), _count(result.model)),
        attacked_difference=difference,
        max_rel_err=certificate.max_rel_err,
        match_frac=certificate.match_frac,
        verdicts=(by_reference.evidence["verdict"]["kind"], by_key.evidence["verdict"]["kind"]),
        p_value=mark.p_value,
        report=report,
        seconds=time.perf_counter() - started,
    )


def _train(talker: Talker, story: Story, data: Any, seed: int, epochs: int | None) -> tuple[nn.Module, Key]:
    from canon import watermarks, zoo

    embedded = watermarks.get("uchida17").embed(
        zoo.model(story.model, classes=data.classes, seed=seed),
        data,
        seed=seed,
        options=story.options_for(epochs),
        progress=lambda e: talker.note(f"   epoch {e.epoch}: accuracy {e.accuracy:.3f}, secret {e.similarity:.3f}"),
    )
    return embedded.model, embedded.key


def _commit(talker: Talker, owner: nn.Module, layout: LayoutKey, key: Key) -> Callable[[], Presented] | None:
    """Commit to the model before anybody else has it; what the owner brings to the verification later."""
    from canon.cli.demo_authority import DemoAuthority, obstacle

    missing = obstacle()
    if missing is not None:
        talker.note(f"   No claim is made: {missing}. The verdict can then say 'matches' at most.")
        return None
    from canon import claims

    with tempfile.TemporaryDirectory(prefix="canon-demo-") as folder:
        authority = DemoAuthority(Path(folder))
        signer = claims.new_key(Path(folder) / "owner.pem")
        made = claims.commit(owner, key=signer, layout_key=layout, watermark_keys=[key])
        claim, trust = authority.stamp(made.claim), authority.trust
    talker.note("   Before anybody else has it, the owner commits to network and keys, signed and time-stamped.")
    talker.note("   (The time-stamp is from an authority that this demo plays itself; a real one is run by others.)")
    stamped = datetime.now(UTC)

    def presented() -> Presented:
        while datetime.now(UTC) < stamped + timedelta(seconds=2):
            time.sleep(0.1)
        return claims.Presented(
            claim, made.opening, trust, suspect_date=datetime.now(UTC), suspect_date_source="the demo made it just now"
        )

    return presented


def _tell(talker: Talker, found: Judgement) -> None:
    mark = found.mark
    talker.note(f"   {_sentence(found.answers.network.reason)}.")
    talker.note(f"   {_sentence(found.answers.function.reason)}.")
    if mark is not None:
        talker.note(f"   The key reads {mark.matched} of {mark.total} bits. By luck: p = {mark.p_value:.1e}.")
    if found.answers.priority.claims:
        talker.note(f"   {_sentence(found.evidence['priority']['reason'])}.")
    talker.note(f"   Verdict: {found.evidence['verdict']['kind']}.")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
