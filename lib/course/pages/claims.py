"""The ledger of claims: what is often said, our verdict, and the test or cell that shows it."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from IPython.display import Markdown

ROOT = Path(__file__).parents[3]
CLAIMS = ROOT / "book" / "claims.yml"
BOX = re.compile(r":::\{admonition\} Often said\n(.*?)\n:::", re.DOTALL)
VERDICTS = {"true": "true", "refine": "needs refining", "wrong": "wrong"}


@dataclass(frozen=True)
class Claim:
    """One row. `evidence`: tests as file::function, cells of labs as notebook#tag."""

    id: str
    claim: str
    verdict: Literal["true", "refine", "wrong"]
    shown: str
    chapter: str
    evidence: list[str]


def load(path: Path = CLAIMS) -> list[Claim]:
    """Read the claims; each must have evidence, a known verdict and an id of its own."""
    claims = [Claim(**row) for row in yaml.safe_load(path.read_text())]
    names = [claim.id for claim in claims]
    for claim in claims:
        if claim.verdict not in VERDICTS or not claim.evidence or names.count(claim.id) > 1:
            raise ValueError(f"{path.name}: claim {claim.id}: see its verdict, evidence and id")
    return claims


def unproven(claims: Iterable[Claim], passed: Iterable[str]) -> dict[str, list[str]]:
    """Claim → its evidence that is not among what `passed`, given as pytest's node ids.

    A test with parameters counts when one of its cases passed (one that failed fails the run). A
    lab's cell counts when a test has seen that its lab ran to the end.
    """
    ran = {node.split("[")[0] for node in passed}
    ran |= {lab for node in passed for lab in re.findall(r"test_labs.*\[(.*\.ipynb)\]", node)}
    missing = {c.id: [e for e in c.evidence if e.split("#")[0] not in ran] for c in claims}
    return {name: evidence for name, evidence in missing.items() if evidence}


def met(chapter: str) -> list[str]:
    """The claims in a chapter's "Often said" boxes: those whose verdict surprises."""
    text = (ROOT / "book" / f"{chapter}.md").read_text()
    return re.findall(r"\{claim\}`[^`]*<(\w+)>`", "\n".join(BOX.findall(text)))


def as_list(claims: Iterable[Claim]) -> Markdown:
    """The ledger, for a page beside the chapters; each claim has an anchor.

    It leads to the chapter, at its box if it has one, to the labs' cells, and to the tests' pages.
    """
    lines = []
    for claim in claims:
        chapter = f"[chapter]({claim.chapter}.html{_place(claim)})"
        said = f'<span id="claim-{claim.id}">**{claim.id}**</span> *{claim.claim}*'
        verdict = f'<span class="verdict-{claim.verdict}">{VERDICTS[claim.verdict]}</span>'
        evidence = ", ".join([chapter, *_evidence(claim.evidence)])
        lines.append(f"- {said} {verdict}<br>{claim.shown} ({evidence})")
    return Markdown("\n".join(lines))  # type: ignore[no-untyped-call]


def _place(claim: Claim) -> str:
    return f"#said-{claim.id}" if claim.id in met(claim.chapter) else ""


def _evidence(evidence: Iterable[str]) -> Iterator[str]:
    """A short link to each; what a test is called shows under the pointer."""
    places = [each.replace("::", "#").partition("#") for each in evidence]
    words = ["lab" if file.endswith(".ipynb") else Path(file).stem for file, _, _ in places]
    for number, (word, (file, _, name)) in enumerate(zip(words, places, strict=True)):
        if words.count(word) > 1:
            word += f" {words[: number + 1].count(word)}"
        if word.startswith("lab"):
            yield f"[{word}]({Path('..', file).with_suffix('.html')}#{name})"
        elif (ROOT / file).exists():
            title = name.removeprefix("test_").replace("_", " ")
            yield f'[{word}]({Path("..", "_modules", file).with_suffix(".html")}#{name} "{title}")'
        else:  # a handout has no tests
            yield word
