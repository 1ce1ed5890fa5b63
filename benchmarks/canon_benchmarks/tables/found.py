"""“What we found”: every place where our numbers differ from the paper's, with the reason; all numbers from records."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from canon.bench.cases import TWIN
from canon.bench.records import Record
from canon.bench.tables.common import all_of, attack_name, by, canonical_only, distinct, measured, values_of
from canon.bench.tables.document import Block, Heading, Page, Paragraph
from canon_benchmarks.cases import Runtime
from canon_benchmarks.measures.methods import restored
from canon_benchmarks.tables.learned import extractor_blocks, span
from canon_benchmarks.tables.methods import NAMES
from canon_benchmarks.tables.published import published, published_rows

NAME: Final = "what_we_found"
STRANGERS: Final = "riga_strangers"
"""A suite."""

Records = Sequence[Record]

OTHER_MODELS: Final = ("efficientnet_b0", "inception_v3", "densenet121")
"""The paper's beside resnet18."""


def found_page(found: Mapping[str, Records]) -> Page | None:
    """The page, of all that there are records for; None where there is nothing to say."""
    blocks: list[Block] = []
    for title, suite, say in FINDINGS:
        done = measured(found.get(suite, ()))
        text = say(done) if done else None
        if text is not None:
            blocks += [Heading(title), Paragraph(text)]
    if blocks and STRANGERS in found:
        blocks += [Heading("To whom the extractor of riga21 says its message")]
        blocks += extractor_blocks(STRANGERS, found[STRANGERS])
    if not blocks:
        return None
    first = Paragraph(
        "Every place where our numbers differ from the paper's, and why. All numbers are drawn from the records beside "
        "this page by `canon bench report`; the paper's stand in `benchmarks/canon_benchmarks/paper_tables.toml`. "
        "Where a reason "
        "is not measured, it says “likely” or “not known”."
    )
    return Page(NAME, "What we found", (first, *blocks))


def _paper(metric: str, **wanted: object) -> list[float]:
    """All published values of a metric of the recovery tables."""
    return [value for row in published_rows("recovery", **wanted) for value in row[metric]]


def _single_pass(records: Records) -> str | None:
    part = by(records, style="paper")
    if not part:
        return None
    told = []
    for method, name in NAMES.items():
        lost = distinct(attack_name(r.case.attack) for r in part if not restored(r.metrics, method))
        right = sum(restored(record.metrics, method) for record in part)
        told.append(f"{name} restores {right} of {len(part)}" + (f" (it stops at {', '.join(lost)})" if lost else ""))
    schemes = distinct(record.case.scheme for record in part)
    return (
        f"The paper reports that its Algorithm 2 passes everywhere; on its own attack, with no widths told, we measure "
        f"on {len(schemes)} of nine schemes: {'; '.join(told)}. Likely reason: in our reading of it, one pass judges "
        "layers that are added up together, when one of them still reads layers that it has not come to, and split "
        "channels beside other dummies are told there by a second look only; without such sums it undoes every "
        "sequence that we tried (`tests/benchmarks/test_methods.py`)."
    )


def _beside_others(records: Records) -> str | None:
    part = by(records, method="single-pass")
    passed = [r for r in part if r.metrics.get("tier1_passed") is True]
    only = ", ".join(distinct(attack_name(r.case.attack) for r in passed))
    full = by(records, method="yan-full")
    if not part or not full:
        return None
    return (
        f"Against our stronger attack the single pass is certified in {len(passed)} of {len(part)} cases ({only} "
        "only), where the paper's table has a tick in every row; the defence of Yan et al. with full knowledge, which "
        "the paper marks as partial, is "
        f"certified in {sum(r.metrics.get('tier1_passed') is True for r in full)} of {len(full)}. Likely "
        "reason: our attack lets dummies read dummies and scales every layer, and that defence is given the "
        "original model."
    )


def _riga_tier2(records: Records) -> str | None:
    ours = values_of(by(records, scheme="riga21"), "recovered_similarity")
    if not ours:
        return None
    theirs = _paper("tier2", dataset="mnist", scheme="riga21", camouflage=True)
    return (
        f"After recovery alone, with channels in no particular order, the paper's riga21 still reads {span(theirs)}; "
        f"ours reads {span(ours)}, as every other scheme does in both. Likely reason: an extractor that has never seen "
        "unmarked weights says the message to strangers as well, which is measured at the end of this page."
    )


def _riga_clean(records: Records) -> str | None:
    ours = values_of(by(records, scheme="riga21"), "clean_similarity")
    if not ours:
        return None
    theirs = [row["clean"] for row in published_rows("recovery", scheme="riga21", dataset="mnist", camouflage=True)]
    return (
        f"On the clean model the paper's riga21 reads {min(theirs):.4f} to {max(theirs):.4f}, ours {min(ours):.4f}. "
        "Likely reason: we scale the weights to the extractor's units and train until every bit has a margin."
    )


def _constant(records: Records) -> str | None:
    theirs = {
        scheme: distinct(_paper("attacked", dataset="mnist", model="resnet18", scheme=scheme, camouflage=True))
        for scheme in ("riga21", "deepipr")
    }
    ours = {s: values_of(by(records, model="resnet18", scheme=s), "attacked_similarity") for s in theirs}
    if not all(ours.values()):
        return None
    told = "; ".join(
        f"{scheme} {', '.join(f'{value:.4f}' for value in values)} there, {span(ours[scheme])} here"
        for scheme, values in theirs.items()
    )
    return (
        f"Under attack the paper prints the same number for all five attacks and both ratios on resnet18: {told}. The "
        "reason is not known; ours crop the wider tensors to the key's shape and read what then stands there, so that "
        "every attack gives another number near one half."
    )


def _no_camouflage(records: Records) -> str | None:
    same = sum(r.metrics["attacked_similarity"] == r.metrics["clean_similarity"] for r in records)
    ours = values_of(records, "attacked_similarity")
    theirs = _paper("attacked", camouflage=False)
    return (
        f"Without permutation and scaling {same} of {len(records)} marks still read as on the clean model, and they "
        f"read {span(ours)}, where the paper reads {span(theirs)}. Injected channels stand between the original ones, "
        "so that what is read by index is read from other channels, as in the paper."
    )


def _layers(records: Records) -> str | None:
    told = []
    for scheme in ("greedy", "deepipr", "lottery", "uchida17", "deepsigns"):
        pairs = []
        for model in OTHER_MODELS:
            ours = values_of(by(records, scheme=scheme, model=model), "tier1_layers")
            row = published("clean", model=model, scheme=scheme)
            if ours and row is not None:
                pairs.append(f"{ours[0]} for {row['tier1'].partition('/')[0]}")
        if len(pairs) == len(OTHER_MODELS):
            told.append(f"{scheme} {', '.join(pairs)}")
    if not told:
        return None
    return (
        "On resnet18 our schemes mark as many layers as the paper's; beyond it they do not (ours for the paper's on "
        f"efficientnet_b0, inception_v3, densenet121): {'; '.join(told)}. Reason: the paper does not say how it "
        "chooses layers there, and we take one rule for every architecture; `canon watermark embed` takes others."
    )


def _canonical(records: Records) -> str | None:
    apart = [record for record in records if canonical_only(record)]
    where = ", ".join(distinct(f"{r.case.scheme} on {r.case.model}" for r in apart))
    return (
        f"The paper certifies every cell; of our {len(records)} cells {len(apart)} are certified on canonical forms "
        f"only ({where or 'none'}), and are counted apart. Likely reason: pruning to a lottery ticket silences whole "
        "channels of the clean model, recovery removes them with the injected ones, and what is left is equal only "
        "once both sides are reduced."
    )


def _clean(records: Records) -> str | None:
    bad = [record for record in records if not record.good]
    where = ", ".join(distinct(f"{r.case.scheme} on {r.case.model}" for r in bad))
    largest = max((float(r.metrics["parameter_false_positives"]) for r in bad), default=0.0)
    gap = max(values_of(records, "delta_similarity"))
    theirs = max(row["delta_similarity"] for row in published_rows("clean"))
    return (
        f"On models that nobody attacked the paper finds no false positive, with a Δsim of up to {theirs:.4f}; ours is "
        f"untouched, bit for bit, in {all_of(records, 'untouched', True)} cases, removes up to {largest:.2g} of the "
        f"parameters in {len(bad)} ({where}), and has a Δsim of {gap:.4f}. Reason: "
        "a channel that pruning silenced is zero whatever the input and cannot be told from an injected one without "
        "the owner's widths, and a model that needs no change is handed back as it is, so that nothing is rounded."
    )


def _seconds(records: Records) -> str | None:
    exact, probe = (
        [r for r in records if isinstance(r.case, Runtime) and r.case.method == method] for method in ("exact", "probe")
    )
    if not exact or not probe:
        return None
    times = [[r.seconds["recover"] for r in part] for part in (exact, probe)]
    plain = by(by(exact, model="resnet18", ratio=0.5), dataset="mnist")
    by_attack = {attack_name(r.case.attack): r.seconds["recover"] for r in plain}
    order = ", ".join(f"{attack} {took:.2f}" for attack, took in sorted(by_attack.items(), key=lambda pair: pair[1]))
    return (
        f"The paper recovers in about ten seconds on a V100, with mix-opseq always the slowest; on an H200 our exact "
        f"method takes {statistics.median(times[0]):.2f} s (median; largest {max(times[0]):.2f}), the probe method "
        f"{statistics.median(times[1]):.2f} s (largest {max(times[1]):.2f}), and the exact one does not follow that "
        f"order (resnet18, ρ = 0.5: {order}). Likely reason: the exact method compares weights by sketches of fixed "
        "size, so that its time follows the width more than the attack; these records were told the widths, and were "
        "taken with several cases beside each other, likely why some curves are not monotone."
    )


def _residuals(records: Records) -> str | None:
    ours, others = values_of(records, "tier1_max_rel_err"), values_of(records, "stranger_max_rel_err")
    if not ours or not others:
        return None
    return (
        f"The paper prints residuals of 0.0000 at every tolerance; ours are at most {max(ours):.1e}, and those against "
        f"a stranger's model at least {min(others):.2f}. Reason: the same fact with more digits; scaling and unscaling "
        "in float32 rounds."
    )


def _accuracy(records: Records) -> str | None:
    marked = [record for record in records if record.case.scheme != TWIN]
    twins = {r.case.model: r.metrics["accuracy"] for r in records if r.case.scheme == TWIN}
    told = ", ".join(f"{model} {accuracy:.4f}" for model, accuracy in twins.items())
    epochs = sorted({int(count) for count in values_of(records, "epochs")})
    under = ", ".join(f"{r.case.scheme} on {r.case.model}" for r in marked if r.metrics.get("good") is not True)
    said = (
        f"The paper gives no accuracies; ours are {told} for the unmarked twins after {epochs[0]} to {epochs[-1]} "
        f"epochs, and {all_of(marked, 'good', True)} marked models reach the bar."
    )
    return f"{said} Those that do not: {under}." if under else said


def _cifar_gap(records: Records) -> str | None:
    attacked, recovered = (max(values_of(records, f"{step}_delta_accuracy")) for step in ("attacked", "recovered"))
    said = (
        f"On CIFAR-100 accuracy under attack differs from the clean one by at most {attacked:.4f}, where the paper "
        f"prints 0.0000, and by {recovered:.4f} after recovery."
    )
    if not attacked:
        return said
    return (
        f"{said} Likely reason: an attacked layer sums more terms, which rounds otherwise, and some test images lie on "
        "the border between two classes."
    )


def _riga_cifar(records: Records) -> str | None:
    """By architecture: what the key reads with channels in no particular order, and what the verdict makes of it."""
    told = []
    for model in dict.fromkeys(r.case.model for r in records):
        mine = by(records, model=model, scheme="riga21")
        if not mine:
            return None
        unsure = sum(r.metrics.get("verdict") == "inconclusive" for r in mine)
        alone = span(values_of(mine, "recovered_similarity"))
        told.append(f"on {model} {alone}, and {unsure} of {len(mine)} verdicts are inconclusive")
    paper = span(_paper("tier2", dataset="cifar100", scheme="riga21"))
    return (
        f"On CIFAR-100 the paper's riga21 reads {paper} after recovery alone; ours reads {'; '.join(told)}. Likely "
        "reason: a key that reads its message with the channels in any order reads it from the controls as well, and "
        "is then void, however well the network itself agrees; in so few epochs the extractor does not learn to be "
        "silent."
    )


FINDINGS: Final[tuple[tuple[str, str, Callable[[Records], str | None]], ...]] = (
    ("The paper's method on the paper's attack", "paper-method", _single_pass),
    ("The paper's method on a stronger attack, and other defences", "baselines", _beside_others),
    ("Tier 2 of riga21", "paper", _riga_tier2),
    ("riga21 on the clean model", "paper", _riga_clean),
    ("One number for all attacks", "paper", _constant),
    ("Cells certified on canonical forms only", "paper", _canonical),
    ("Layers that bear the mark", "paper", _layers),
    ("Without permutation and scaling", "no-camouflage", _no_camouflage),
    ("False positives", "clean", _clean),
    ("Residuals", "tolerance", _residuals),
    ("Time", "runtime", _seconds),
    ("Accuracy on MNIST", "training-mnist", _accuracy),
    ("Accuracy on CIFAR-100", "training-cifar100", _accuracy),
    ("Accuracy under attack on CIFAR-100", "cifar100", _cifar_gap),
    ("riga21 on CIFAR-100", "cifar100", _riga_cifar),
)
"""Title, suite, and what is said of its measured records; None where what it takes is not among them."""
