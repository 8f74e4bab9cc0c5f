"""The table of claims: what is often said, our verdict, and the test or cell that shows it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from IPython.display import Markdown

from course.pages.table import table

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


def as_table(claims: Iterable[Claim]) -> Markdown:
    """The appendix's table, for a page beside the chapters; each row has an anchor.

    It leads to the chapter, at its box if it has one, to the labs' cells, and to the tests' pages.
    """
    rows = [
        (
            f'<span id="claim-{claim.id}">**{claim.id}**</span> {claim.claim}',
            f'<span class="verdict-{claim.verdict}">{VERDICTS[claim.verdict]}</span>',
            f"{claim.shown} ([chapter]({claim.chapter}.html{_place(claim)}))",
            "<br>".join(_evidence(each) for each in claim.evidence),
        )
        for claim in claims
    ]
    return table(["often said", "verdict", "what the run shows", "evidence"], rows)


def _place(claim: Claim) -> str:
    return f"#said-{claim.id}" if claim.id in met(claim.chapter) else ""


def _evidence(evidence: str) -> str:
    file, _, name = evidence.replace("::", "#").partition("#")
    if file.endswith(".ipynb"):
        lab = Path(file).stem
        return f"[a cell of the lab]({Path('..', 'notebooks', lab)}.html#{name})"
    words = f"{Path(file).stem}: {name.removeprefix('test_').replace('_', ' ')}"
    if not (ROOT / file).exists():  # a handout has no tests
        return words
    return f"[{words}]({Path('..', '_modules', file).with_suffix('.html')}#{name})"
