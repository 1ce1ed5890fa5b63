"""The page is complete in itself, says what the document says, and takes no orders from names."""

from __future__ import annotations

import base64
import copy
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from canon._files import OutputError
from canon.errors import ReportError, VerificationError
from canon.report import check_report, render, write_report
from canon.report.page import LARGEST
from canon.verify.mark import p_value
from tests.report.documents import HOSTILE, NAMES, documents, hostile, sealed

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
    text = render(documents()["proved"])
    style = text.split("<style>")[1].split("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1] == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert "url(" not in style
    assert "@import" not in style


@pytest.mark.parametrize(
    ("name", "headline"),
    [
        ("proved", "Proved The suspect is the owner's model, in disguise"),
        ("equal", "Proved The suspect is the owner's model, in disguise"),
        ("layout", "Proved The suspect is the registered model, in disguise"),
        ("refuted", "Refuted The suspect is not the owner's model"),
        ("folded", "Proved The suspect is the owner's model, in disguise"),
        ("changed", "Not decided Neither proved nor refuted"),
        ("wider", "Not decided Neither proved nor refuted"),
        ("recovered", "Recovered Structural obfuscation was found and removed"),
        ("clean", "Nothing found No sign of structural obfuscation"),
    ],
)
def test_the_verdict_comes_first_and_in_words(name: str, headline: str) -> None:
    text = shown(name)
    start = text.index("Canon report", text.index("Skip to the verdict"))
    assert headline in text[start : start + 250]


def test_a_proof_says_what_it_rests_on() -> None:
    text = shown("proved")
    for words in (
        "The owner's key reads 128 of 128 bits of the message. Luck does as well once in 3.4 × 10³⁸ tries.",
        "(p = 2.9e-39): luck is ruled out.",
        "chance level",
        "The suspect as it was given 45%",
        "All 4 layers that bear the message agree within the tolerance of 0.001.",
        "Share of inputs on which the model decides as the suspect does.",
        "SHA-256 of the file",
        documents()["proved"]["digest"],
    ):
        assert words in text


def test_folded_norms_are_told() -> None:
    text = shown("folded")
    assert "3 normalisation layers had been folded into the layers before them." in text
    assert "Because norms had been folded away, this was taken from the owner's side: where norms stood" in text
    assert "norm1 conv1 folded away in the suspect" in text
    assert "folded" not in shown("proved").split("The whole document")[0].replace("SHA", "")


def test_what_is_undecided_says_why() -> None:
    assert "What remains has another number of channels than the registered model in 3 of 4 layers" in shown("wider")
    assert "it may be a changed copy, which only a watermark can show" in shown("changed")
    assert "It speaks" not in shown("proved")


def test_a_mark_that_was_not_read() -> None:
    document = copy.deepcopy(documents()["refuted"])
    mark = copy.deepcopy(documents()["proved"]["watermark"])
    tier2 = {**mark["tier2"], "recovered": 0.45, "passed": False}
    document["watermark"] = {
        **mark,
        "matched": 60,
        "p_value": p_value(60, 128),
        "read_from": "recovered",
        "tier2": tier2,
    }
    text = Page(render(sealed(document))).text
    assert "so this shows nothing" in text
    assert "luck is not ruled out" in text


def test_names_from_files_stay_text() -> None:
    page = Page(render(hostile()))
    assert {tag for tag, _ in page.elements} <= ELEMENTS
    assert not [key for _, attributes in page.elements for key in attributes if key.startswith("on")]
    for name in HOSTILE[:5]:
        assert name.split("</style>")[0] in page.text
    assert "\u202e" not in page.text
    assert r"\u202egnp.exe\u001b[31m\u0000" in page.text


def test_edited_evidence_is_refused() -> None:
    document = {**documents()["refuted"], "verdict": {"kind": "proved", "tier": 1, "reason": "mine"}}
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
    write_report(documents()["proved"], path)
    assert path.read_text(encoding="utf-8") == render(documents()["proved"])
    with pytest.raises(OutputError, match="exists already"):
        check_report(path)
    write_report(documents()["refuted"], path, force=True)
    assert "Refuted" in path.read_text(encoding="utf-8")
