"""The page is complete in itself, says what the document says, and takes no orders from names."""

from __future__ import annotations

import base64
import copy
import hashlib
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from canon._files import OutputError
from canon.errors import ReportError, VerificationError
from canon.report import check_report, render, write_report
from canon.report.page import LARGEST
from tests.report.documents import HOSTILE, NAMES, concluded, documents, hostile, sealed

ELEMENTS = set(
    "html head meta title style body a header p strong span nav ul li main section svg circle path h1 h2 h3 dl dt "
    "dd div figure figcaption rect line text ol small details summary table caption thead tbody tr th td pre "
    "footer".split()
)


class Page(HTMLParser):
    """What a browser would make of a page: elements, attributes, text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).replace("\xa0", " ").split())


@cache
def shown(name: str) -> str:
    return Page(render(documents()[name])).text


@pytest.mark.parametrize("name", NAMES)
def test_pages_load_nothing_and_run_nothing(name: str) -> None:
    page = Page(render(documents()[name]))
    assert {tag for tag, _ in page.elements} <= ELEMENTS
    for tag, attributes in page.elements:
        assert not {"src", "srcset", "style", "action"} & attributes.keys()
        assert not [key for key in attributes if key.startswith("on")]
        assert (attributes.get("href") or "#").startswith("#"), tag


def test_every_document_is_tested() -> None:
    assert tuple(documents()) == NAMES


def test_the_policy_allows_our_style_and_nothing_else() -> None:
    text = render(documents()["equal"])
    style = text.split("<style>")[1].split("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1] == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert "url(" not in style
    assert "@import" not in style


@pytest.mark.parametrize(
    ("name", "answers", "verdict"),
    [
        ("equal", "Equal / Agree / Read / Nothing shown", "Matches The suspect holds the owner's network"),
        ("claimed", "Equal / Agree / Read / First", "Proved The suspect holds the owner's network, and its claim"),
        ("contained", "Contained / Agree / No key / Nothing shown", "Matches The suspect holds the owner's network"),
        ("derived", "Derived / Disagree / Read / Nothing shown", "Matches The suspect holds the owner's network"),
        (
            "unrelated",
            "Unrelated / Disagree / No key / Nothing shown",
            "Refuted The suspect is another network, and it",
        ),
        (
            "undecided",
            "Not decided / Disagree / No key / Nothing shown",
            "Inconclusive Whether it is the owner's network",
        ),
        (
            "wrong_key",
            "Equal / Agree / Unread / Nothing shown",
            "Inconclusive The owner's network is in the suspect, but",
        ),
        ("void_key", "Equal / Agree / Void / Nothing shown", "Inconclusive The owner's network is in the suspect, but"),
        ("stranger", "Unrelated / Disagree / Unread / Nothing shown", "Refuted The suspect is another network, and it"),
        ("new_head", "Derived / Disagree / No key / Nothing shown", "Matches The suspect holds the owner's network"),
        ("layout", "Equal / Agree / Read / Nothing shown", "Matches The suspect holds the owner's network"),
        ("folded", "Equal / Agree / Read / Nothing shown", "Matches The suspect holds the owner's network"),
        ("loose", "Derived / Disagree / No key / Nothing shown", "Inconclusive "),
        ("wired", "Not decided / Disagree / Unread / Nothing shown", "Inconclusive Whether it is the owner's network"),
        (
            "refused",
            "Equal / Agree / Unread / Nothing shown",
            "Inconclusive The owner's network is in the suspect, but",
        ),
    ],
)
def test_the_questions_come_first_and_the_verdict_after_them(name: str, answers: str, verdict: str) -> None:
    text = shown(name)
    start = text.index("Is the owner's network in the suspect?")
    end = text.index("Verdict: ", start)
    top = text[start:end]
    asked = ["Same network?", "Same function?", "Carries the mark?", "Who was first?"]
    places = [top.index(question) for question in asked]
    assert places == sorted(places)
    found = [top[place + len(question) :].strip() for place, question in zip(places, asked, strict=True)]
    for given, word in zip(found, answers.split(" / "), strict=True):
        assert given.startswith(f"{word} "), given
    assert top.count("Not covered:") == 4
    assert text[end:].startswith(f"Verdict: {verdict}")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("recovered", "clean")])
def test_the_verdict_says_in_the_same_breath_what_it_does_not_mean(name: str) -> None:
    text = shown(name)
    verdict = documents()[name]["verdict"]["kind"]
    words = {
        "matches": "References and keys can be made afterwards, and no claim shows that these were there first.",
        "proved": "what a claim had fixed before the suspect existed is in the suspect",
        "refuted": "two differences, each shown by itself: in the weights and in the outputs",
        "inconclusive": "Inconclusive speaks for neither side",
    }
    assert words[verdict] in text
    assert all((phrase in text) is (kind == verdict) for kind, phrase in words.items())


@pytest.mark.parametrize("name", ["wrong_key", "void_key", "refused"])
def test_the_right_model_with_a_wrong_key_is_never_red(name: str) -> None:
    page = Page(render(documents()[name]))
    tones = [
        attributes.get("class") for tag, attributes in page.elements if tag == "li" or "verdict" in str(attributes)
    ]
    assert "against" not in tones
    assert not [tone for tone in tones if tone and "verdict against" in tone]
    assert "Refuted" not in page.text.split("Which answers lead to which verdict")[0]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("recovered", "clean")])
def test_words_that_were_misread_are_gone(name: str) -> None:
    text = shown(name)
    assert not re.search(r"-[\d.]+ of [\d.]+ is back|-[\d.]+ (of that )?came back", text)
    assert "no channel of the suspect is superfluous" not in text.lower()
    assert "every channel is needed" not in text.lower()


def test_surplus_channels_are_never_called_needed() -> None:
    document = documents()["contained"]
    surplus = sum(space["surplus"] for space in document["containment"]["spaces"])
    text = shown("contained")
    assert f"{surplus} channels of the suspect are nobody's: without them, what was taken out of the suspect" in text
    bare = copy.deepcopy(document)
    spaces = [{**space, "counts": {}} for space in bare["recovery"]["spaces"]]
    bare["recovery"] |= {"removed": 0, "merged": 0, "cropped": {}, "spaces": spaces}
    quiet = Page(render(concluded(bare))).text
    assert f"That does not make every channel a needed one: {surplus} are nobody's" in quiet


def test_a_replaced_head_is_not_called_found() -> None:
    text = shown("new_head")
    assert "with changes: 10 of its 58 channels were not found" in text
    assert "3 of 4 layers have most of theirs" in text
    assert "fc 10 0 0 10 0 10 yes" in text


def test_a_strangers_layers_are_not_called_found() -> None:
    text = shown("stranger")
    assert "0% of the owner's channels found" in text
    assert "fc 10 0 0 10 0 10 yes" in text


def test_a_match_says_what_it_rests_on() -> None:
    text, document = shown("equal"), documents()["equal"]
    for words in (
        "7,949 numbers compared, 100% of those in use",
        "64 of 64 bits right",
        "luck is ruled out",
        "56 probes: 16 random, 40 photographs.npz",
        "128 models that cannot bear the mark",
        "The suspect as it was given",
        "All 4 layers agree within the tolerance of 0.001.",
        "Nothing was left out: all 7,949 numbers that the forward pass uses were compared.",
        "SHA-256 of the file",
        document["digest"],
        document["record"]["command"],
        document["record"]["case"],
        document["record"]["examiner"],
        document["record"]["created"],
        str(document["options"]["tolerance"]),
        document["environment"]["torch"],
        "The first line whose answers are all met decides; here it is line 3.",
    ):
        assert words in text


def test_controls_are_shown() -> None:
    text, controls = shown("void_key"), documents()["void_key"]["watermark"]["controls"]
    assert f"The key is void: {controls['reason']}." in text
    assert "This key shows nothing, whatever it reads" in text
    assert "The key is void, so this shows nothing." in text
    assert "43 redrawn, 43 permuted, 42 flipped" in text


def test_containment_is_shown_by_space_and_layer() -> None:
    text, found = shown("contained"), documents()["contained"]["containment"]
    for space in found["spaces"]:
        counts = (
            space["owner"],
            space["found"],
            space["distinct"],
            space["suspect"],
            space["copies"],
            space["surplus"],
        )
        assert f"{space['name']} {' '.join(map(str, counts))}" in text
    for layer in found["layers"]:
        assert f"{layer['name']} {layer['channels']} {layer['distinct']}" in text
    assert "no ancestor was given" in text


def test_unusual_options_are_told() -> None:
    text = shown("loose")
    assert (
        "Asked for: a tolerance of 0.5, where 0.01 is the largest; an α of 0.001, where 1e-06 is the largest." in text
    )


def test_options_alone_take_the_strong_word_away() -> None:
    document = copy.deepcopy(documents()["derived"])
    document["options"]["alpha"] = document["watermark"]["alpha"] = 1e-3
    text = Page(render(concluded(document))).text
    assert "Verdict: Inconclusive Options beyond the standard ones give no strong word" in text
    assert "With these answers and standard options the verdict would be: matches." in text


def test_folded_norms_are_told() -> None:
    text = shown("folded")
    assert "with normalisation folded into the layers on both sides" in text
    assert "Because norms had been folded away, this was taken from the owner's side: where norms stood" in text
    assert "norm1 conv1 folded away in the suspect" in text
    assert "folded away" not in shown("equal").split("The whole document")[0]


def test_other_wiring_is_said_not_drawn() -> None:
    text = shown("wired")
    assert "Nothing of the weights was compared: “the models are of different architectures" in text
    assert "Number by number" not in text


def test_a_recovery_claims_nothing_about_owners() -> None:
    assert "Recovered Structural obfuscation was found and removed" in shown("recovered")
    clean = shown("clean")
    assert "Nothing found No sign of structural obfuscation" in clean
    assert "What it leaves may still be superfluous." in clean


def test_names_from_files_stay_text() -> None:
    page = Page(render(hostile()))
    assert {tag for tag, _ in page.elements} <= ELEMENTS
    assert not [key for _, attributes in page.elements for key in attributes if key.startswith("on")]
    for name in HOSTILE[:5]:
        assert name.split("</style>")[0] in page.text
    assert "\u202e" not in page.text
    assert r"\u202egnp.exe\u001b[31m\u0000" in page.text


def test_edited_evidence_is_refused() -> None:
    document = {**documents()["unrelated"], "verdict": {"kind": "proved", "reason": "mine"}}
    with pytest.raises(VerificationError, match="changed after it was written"):
        render(document)
    with pytest.raises(VerificationError, match="contradicts itself"):
        render(sealed(document))


@pytest.mark.parametrize("document", [{}, {"format": "canon-layout"}])
def test_other_documents_are_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ReportError, match="cannot be made of"):
        render(document)


def test_a_huge_network_fits() -> None:
    document = copy.deepcopy(documents()["recovered"])
    layer = document["network"][0]
    document["network"] = [{**layer, "name": f"blocks.{i // 9}.a_rather_long_name.{i}"} for i in range(3000)]
    document["padding"] = "x" * LARGEST
    text = render(document)
    assert len(text.encode()) <= LARGEST
    assert "blocks.333.a_rather_long_name.2999" in text


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    check_report(path)
    write_report(documents()["equal"], path)
    assert path.read_text(encoding="utf-8") == render(documents()["equal"])
    with pytest.raises(OutputError, match="exists already"):
        check_report(path)
    write_report(documents()["unrelated"], path, force=True)
    assert "Refuted" in path.read_text(encoding="utf-8")
