"""Every page, lab, widget and script prices one cluster, three jobs and one rate of computing.

What they are stands in `minidist.planner.hardware` and `minidist.planner.jobs`. Published facts may
name other models and machines; where they do, it is listed here. What a step takes is asked of
`course.pages.price.ask`, which notes questions and answers while the book is built.
"""

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "book").glob("*.md")), *sorted((ROOT / "notebooks").glob("*.ipynb"))]
COURSE = ROOT / "lib" / "course"
CODE = [
    *COURSE.rglob("*.py"),
    *COURSE.glob("interactive/static/*.js"),
    *ROOT.glob("scripts/**/*.*"),
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
    ("book/cluster.md", "asynchronous checkpoint of a 7 B model"): "published",
    ("book/gpus.md", "Llama of 70 billion parameters"): "published",
    ("book/hardware.md", "ETHERNET_100"): "the table of links",
    ("notebooks/grid.ipynb", "Llama 3's 70B"): "between the medium and the large job",
    ("lib/course/interactive/sliders.py", "ETHERNET_100"): "the name of a rate on a slider",
    ("lib/course/interactive/sliders.py", "Llama 3.1 70B"): "for the reader's own model",
    ("lib/course/interactive/sliders.py", "7 billion, for instance"): "how numbers are written",
}


@cache
def cells(lab: Path) -> list[tuple[str, str]]:
    """The type and the source of each cell."""
    found = json.loads(lab.read_text())["cells"]
    return [(cell["cell_type"], "".join(cell["source"])) for cell in found]


@cache
def lines(path: Path) -> list[str]:
    """Of a page, a script, or a lab's cells."""
    if path.suffix == ".ipynb":
        return [line for _, source in cells(path) for line in source.splitlines()]
    return path.read_text().splitlines()


def broken(line: str) -> list[str]:
    """The rules that a line breaks."""
    return [what for what, pattern in RULES.items() if re.search(pattern, line)]


def test_nothing_is_priced_on_another_cluster() -> None:
    offenders = []
    for path in PAGES + CODE:
        name = path.relative_to(ROOT).as_posix()
        allowed = [words for file, words in ALLOWED if file == name]
        offenders += [
            f"{name}: line {number}: {what}: {line.strip()[:120]}"
            for number, line in enumerate(lines(path), 1)
            if not any(words in line for words in allowed)
            for what in broken(line)
        ]
    offenders += [
        f"{name}: allowed, and not there: {words}"
        for name, words in ALLOWED
        if not any(words in line for line in lines(ROOT / name))
    ]
    assert not offenders, "\n".join(offenders)


def test_the_rules_see_what_they_should() -> None:
    slips = [
        "a 7 B model on eight GPUs",
        "trains 13 billion parameters",
        "state(7e9, MIXED)",
        "compute = 6 * P / (0.4 * H100.flops)",
        "H100._replace(network=H100.network / 8)",
        "link = Link(1e-5, 1 / ETHERNET_100)",
    ]
    assert [line for line in slips if not broken(line)] == []


# ---- one question, one answer ----


@pytest.fixture(scope="module")
def asked() -> dict[str, dict[str, set[float]]]:
    """Question → page → its answers, as pages have asked while the book was built."""
    found: dict[str, dict[str, set[float]]] = defaultdict(lambda: defaultdict(set))
    for path in sorted((ROOT / "_build" / "prices").glob("*.jsonl")):
        for note in map(json.loads, path.read_text().splitlines()):
            page, answer = note.pop("page"), note.pop("answer")
            found[json.dumps(note, sort_keys=True)][page].add(answer)
    assert found, "`make book` notes what its pages ask"
    return found


def test_a_question_has_one_answer_wherever_it_is_asked(
    asked: dict[str, dict[str, set[float]]],
) -> None:
    offenders = [
        f"{question}: {[(page, *sorted(answers)) for page, answers in pages.items()]}"
        for question, pages in asked.items()
        if len(set().union(*pages.values())) > 1
    ]
    assert not offenders, "\n".join(offenders)
    assert len({page for pages in asked.values() for page in pages}) >= 15
    assert sum(len(pages) > 1 for pages in asked.values()) >= 10, "pages share questions"


# ---- no page multiplies a rate itself ----

RATES = {"flops", "nvlink", "network", "node_network", "bandwidth", "rate"}
MULTIPLIES = (ast.Mult, ast.Div, ast.FloorDiv)
DESCRIBES = ("_replace", "Link")
# Page and expression → why.
RATED = {
    ("book/disagree.md", "nbytes / H100.bandwidth"): "reading weights, in no step",
}


def arithmetic(source: str) -> Iterator[str]:
    """Where code multiplies or divides by a rate; a machine's rate that is changed does not count.

    `H100._replace(network=H100.network / 32)` describes a machine, `Link(1e-5, 1 / H100.network)`
    is a link of a schedule.
    """
    tree = ast.parse(source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    described = [call for call in calls if ast.unparse(call.func).split(".")[-1] in DESCRIBES]
    free = {inner for call in described for inner in ast.walk(call)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, MULTIPLIES) or node in free:
            continue
        if any(map(is_rate, (node.left, node.right))) and not in_units(node):
            yield ast.unparse(node)


def is_rate(node: ast.expr) -> bool:
    node = node.func if isinstance(node, ast.Call) else node
    return isinstance(node, ast.Attribute) and node.attr in RATES


def in_units(node: ast.BinOp) -> bool:
    """Whether a rate is written in other units, or as a multiple of another one."""
    units = ("1e+9", "1000000000.0", "1000000000000.0", "GB", "100", "link")
    return all(is_rate(each) or ast.unparse(each) in units for each in (node.left, node.right))


def code(path: Path) -> Iterator[str]:
    """The cells of a page or a lab, without magics."""
    if path.suffix == ".ipynb":
        found = [source for kind, source in cells(path) if kind == "code"]
    else:
        found = re.findall(r"```\{code-cell\}.*?\n((?:.*\n)*?)```", path.read_text())
    for cell in found:
        lines = cell.splitlines()
        while lines and (lines[0].startswith((":", "---")) or not lines[0]):
            header = lines.pop(0)
            if header == "---":
                lines = lines[lines.index("---") + 1 :]
        yield "\n".join(line for line in lines if not line.startswith(("%", "!")))


def test_no_page_multiplies_a_rate() -> None:
    pages = [path for path in PAGES if path.name != "hardware.md"]  # it is about rates
    found = [
        (path.relative_to(ROOT).as_posix(), each)
        for path in pages
        for cell in code(path)
        for each in arithmetic(cell)
    ]
    offenders = [f"{name}: {each}" for name, each in found if (name, each) not in RATED]
    offenders += [f"{name}: allowed, and not there: {each}" for name, each in {*RATED} - {*found}]
    assert not offenders, "\n".join(offenders)


def test_the_scan_sees_what_it_should() -> None:
    seen = [
        "6 * P * T / H100.rate(width)",
        "wire = 8 * P / H100.node_network",
        "x = gpu.flops * 2",
        "x = nbytes / gpu.nvlink",
    ]
    unseen = [
        "print(gpu.network / 1e9, gpu.bandwidth / gpu.network)",
        "H100._replace(network=H100.network / 32)",
        "switch(Link(1e-5, 1 / H100.network))",
        "ask('backward', 'small') * 1e3",
    ]
    assert [line for line in seen + unseen if len([*arithmetic(line)]) == 1] == seen
    assert [line for line in unseen if [*arithmetic(line)]] == []
