"""Every page, lab, widget and script prices one cluster, three jobs and one rate of computing.

What they are stands in `minidist.planner.hardware` and `minidist.planner.jobs`. Published facts may
name other models and machines; where they do, it is listed here.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "book").glob("*.md")), *sorted((ROOT / "notebooks").glob("*.ipynb"))]
CODE = [
    *sorted((ROOT / "lib" / "course").rglob("*.py")),
    *sorted((ROOT / "lib" / "course" / "widgets" / "static").glob("*.js")),
    *sorted((ROOT / "scripts").rglob("*.*")),
]
SIZE = r"(1\.3|2\.7|6\.7|7|13|30|34|70|175)"
RULES = {
    "a model that is none of the three jobs": rf"\b{SIZE}(?:\s|-)?(?:B\b|billion\b)|\b{SIZE}e9\b",
    "a rate that contains waiting": r"\bUTILIZATION\b|\b0\.4 \* H100|\b40 ?% of (?:its|the) peak",
    "one network card for a whole node": r"\bnetwork / 8\b|\bcard (?:for|per) (?:each )?node",
    "another network": r"\bETHERNET_100\b",
}
# File and what stands in the line → why.
ALLOWED = {
    ("book/choosing.md", "70 billion parameters"): "published runs of MPT",
    ("book/choosing.md", "70 B parameters are 140 GB"): "the exercise with a bug",
    ("book/choosing.md", "16 * 70e9"): "its solution",
    ("book/cluster.md", "asynchronous checkpoint of a 7 B model"): "published",
    ("book/gpus.md", "Llama of 70 billion parameters"): "published",
    ("book/hardware.md", "ETHERNET_100"): "the table of links",
    ("book/zero.md", "ETHERNET_100"): "a slower network, compared by name",
    ("lib/course/widgets/cost.py", "ETHERNET_100"): "the name of a rate on a slider",
    ("lib/course/widgets/plan.py", "Llama 3.1 70B"): "a calculator for the reader's own model",
    ("lib/course/widgets/memory.py", "7 billion, for instance"): "how numbers are written",
}


def lines(path: Path) -> Iterator[str]:
    """Of a page, a script, or a lab's cells."""
    if path.suffix == ".ipynb":
        for cell in nbformat.read(path, as_version=4).cells:
            yield from cell.source.splitlines()
    else:
        yield from path.read_text().splitlines()


@pytest.mark.parametrize("path", PAGES + CODE, ids=lambda path: path.name)
def test_nothing_is_priced_on_another_cluster(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    allowed = [words for file, words in ALLOWED if file == name]
    found = [
        f"{what}: {line.strip()[:120]}"
        for line in lines(path)
        for what, pattern in RULES.items()
        if re.search(pattern, line) and not any(words in line for words in allowed)
    ]
    assert found == []


def test_what_is_allowed_is_still_there() -> None:
    for name, words in ALLOWED:
        assert any(words in line for line in lines(ROOT / name)), (name, words)


@pytest.mark.parametrize(
    "line",
    [
        "a 7 B model on eight GPUs",
        "trains 13 billion parameters",
        "state(7e9, MIXED)",
        "compute = 6 * P / (0.4 * H100.flops)",
        "H100._replace(network=H100.network / 8)",
        "link = Link(1e-5, 1 / ETHERNET_100)",
    ],
)
def test_the_rules_see_what_they_should(line: str) -> None:
    assert any(re.search(pattern, line) for pattern in RULES.values())
