"""The rules of the house, so that `make test` is the one judge. Which room imports from which is a
contract in `pyproject.toml`, for import-linter; here stands what its contracts cannot say.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pytest

from course.interactive.compiled import MODULES as MODULES_OF_SLIDERS
from course.puzzles import IN_THE_PAGE
from tests.mutants.faults import FAULTS

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
INSTALL = f"{BIN}/python -m pip install -r requirements.txt"
LIB = ROOT / "lib"


def modules(package: str) -> dict[str, Path]:
    paths = {path.relative_to(LIB): path for path in sorted((LIB / package).rglob("*.py"))}
    names = {".".join(place.with_suffix("").parts): path for place, path in paths.items()}
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


LIBRARY = modules("minidist")
LESSON = modules("from_scratch")
PATHS = LIBRARY | LESSON | modules("course")


@pytest.mark.parametrize(
    "command",
    ["ruff check .", "ruff format --check .", "mypy", "lint-imports --no-logo --no-cache"],
    ids=["lint", "format", "types", "imports"],
)
def test_tool_has_nothing_to_say(command: str) -> None:
    tool, *arguments = command.split()
    assert (BIN / tool).exists(), f"{tool} is missing; install it: {INSTALL}"
    done = subprocess.run([BIN / tool, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_labs_carry_no_outputs() -> None:
    offenders = [
        f"{lab.name}: {cell.source[:60]!r}"
        for lab in sorted((ROOT / "notebooks").glob("*.ipynb"))
        for cell in nbformat.read(lab, as_version=4).cells
        if cell.get("outputs") or cell.get("execution_count")
    ]
    assert not offenders, "\n".join([*offenders, "`make format` strips the outputs"])


# ---- a file is one idea, a function reads from top to bottom ----

FILE, FUNCTION = 400, 45  # lines; of a function without its docstring, or an exercise's table
HEAD = re.compile(r"=>|\bfunction\b|^(?!\s*(} )?(if|else|for|while|switch|catch)\b).*\) {$")


def python_functions(source: str) -> Iterator[tuple[int, int]]:
    """Where each function begins, and the lines of its body."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[ast.get_docstring(node) is not None :]
            if [ast.unparse(each) for each in node.decorator_list] == ["Exercise"]:
                body = body[:-1]  # it returns rows of data
            yield node.lineno, (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def script_functions(source: str) -> Iterator[tuple[int, int]]:
    """A body is what stands further in than its head; the one function round a file is none."""
    lines = source.splitlines()
    margins = [len(line) - len(line.lstrip()) for line in lines]
    for at, line in enumerate(lines):
        code = line.split("//")[0].rstrip()
        if HEAD.search(code) and not (margins[at] == 0 and code.endswith("(() => {")):
            below = range(at + 1, len(lines))
            end = (n for n in below if lines[n].strip() and margins[n] <= margins[at])
            yield at + 1, next(end, len(lines)) - at - 1


def test_a_file_is_one_idea_and_a_function_reads_top_to_bottom() -> None:
    offenders = []
    for path in [*PATHS.values(), *LIB.rglob("*.js")]:
        source, place = path.read_text(), path.relative_to(ROOT)
        if (length := len(source.splitlines())) > FILE:
            offenders.append(f"{place}: {length} lines")
        functions = script_functions if path.suffix == ".js" else python_functions
        long = [(line, length) for line, length in functions(source) if length > FUNCTION]
        offenders += [f"{place}:{line}: a function of {length} lines" for line, length in long]
    assert not offenders, "\n".join(sorted(offenders))


def test_each_argument_has_a_row_of_its_own() -> None:
    """Of two in one row the API pages make two, with the same words."""
    offenders = []
    for module, path in PATHS.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                rows = (ast.get_docstring(node) or "").partition("\nArgs:\n")[2].partition("\n\n")
                joint = re.findall(r"^    \w+(?:, \w+)+: ", rows[0], re.MULTILINE)
                offenders += [f"{module}.{node.name}: {each.strip()}" for each in joint]
    assert not offenders, "\n".join(offenders)


def test_a_function_of_a_script_is_seen_in_every_dress() -> None:
    heads = (
        "async function f(a) {",
        "const f = (a) => // why",
        "each((a) => ({",
        "get() {",
        "}) {",
    )
    blocks = ("if (a) {", "for (const a of b) {", "} else if (a) {", "globalThis.f ??= (() => {")
    for head in heads + blocks:
        found = [*script_functions(f"{head}\n  one();\n\n  two();\n}}\nafter();")]
        assert found == [(1, 3)] * (head in heads), head


# ---- the house: what contracts cannot say of it ----

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
(LAYERS,) = (each["layers"] for each in CONTRACTS["contracts"] if each["id"] == "library")
FLOORS = [layer.split(" | ") for layer in reversed(LAYERS)]
DISTRIBUTED = re.compile(r"torch\.distributed\b|torch\._C\._distributed")
PURE = (
    *("schedule", "formulas", "parallel.sharding", "memory.state", "memory.predict"),
    *("plots", "planner"),
)
# Files that a reader opens at most, the module itself included.
CLOSURES = {
    "minidist.launch.launch": 9,
    "minidist.memory.predict": 9,
    "minidist.parallel.ddp.reducer": 9,
    "minidist.parallel.zero.slices": 10,
    "minidist.parallel.fsdp.unit": 9,
}
NUCLEI = ("parallel.ddp.reducer", "parallel.zero.slices", "parallel.fsdp.unit")
CORE = (
    *("schedule", "collectives.runtime", "collectives.call", "collectives.tensor", "comm"),
    *("parallel.sharding", "parallel.autograd", *NUCLEI),
)


def parts(*rooms: str) -> list[str]:
    """The library's modules that stand in one of these rooms, or are one."""
    return [m for m in LIBRARY if f"{m}.".startswith(tuple(f"minidist.{room}." for room in rooms))]


@cache
def graph() -> Any:
    """Who imports whom, as the contracts see it."""
    try:
        import grimp
    except ImportError:
        pytest.fail(f"import-linter is missing; install it: {INSTALL}")
    return grimp.build_graph("minidist", "course", "from_scratch", cache_dir=None)


def imported(module: str) -> set[str]:
    return graph().find_modules_directly_imported_by(module)


@cache
def below(module: str) -> set[str]:
    """Every module that this one imports, directly or not, without itself."""
    return graph().find_upstream_modules(module)


def imports(source: str) -> Iterator[str]:
    """Whatever is imported, anywhere in the source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def dotted(source: str) -> set[str]:
    """Whatever is reached for with a dot."""
    return {ast.unparse(n) for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Attribute)}


def test_every_room_has_its_floor_and_every_part_is_there() -> None:
    rooms = [room for floor in FLOORS for room in floor]
    offenders = {*LIBRARY} - {*parts(*rooms)} - {"minidist", "minidist.parallel"}
    offenders |= {f"minidist.{part}" for part in (*CORE, *PURE, *rooms)} - {*LIBRARY}
    assert not offenders, "\n".join(sorted(offenders))


def test_no_file_imports_itself_in_a_circle() -> None:
    offenders = [m for m in PATHS if any(m in below(other) for other in imported(m))]
    assert not offenders, "\n".join(sorted(offenders))


def test_a_module_is_imported_by_its_name_and_not_reached_with_dots() -> None:
    """Contracts read imports alone; and the library's front door is for others."""
    offenders = [f"{m}: minidist" for m in LIBRARY if "minidist" in imported(m)]
    for module, path in PATHS.items():
        rooms = ("minidist.", "course.") if module in LIBRARY else ("course.",)
        offenders += [f"{module}: {n}" for n in dotted(path.read_text()) if n.startswith(rooms)]
    assert not offenders, "\n".join(sorted(offenders))


def test_a_reader_opens_few_files() -> None:
    files = {module: {module} | below(module) for module in CLOSURES}
    offenders = [f"{m}: {sorted(read)}" for m, read in files.items() if len(read) > CLOSURES[m]]
    assert not offenders, "\n".join(sorted(offenders))


def test_the_core_stands_without_the_wrappers_guards() -> None:
    """A schedule checks its own numbers; a wrapper's arguments are checked around the core."""
    offenders = []
    for module in parts(*CORE):
        guards = {name for name in below(module) if name.endswith(".checks")}
        guards -= {"minidist.schedule.checks"}
        if module in parts(*NUCLEI):
            guards |= {name for name in imported(module) if "checks" in name.split(".")}
        offenders += [f"{module}: {name}" for name in guards]
    assert not offenders, "\n".join(sorted(offenders))


def test_a_nucleus_raises_nothing_about_a_users_input() -> None:
    """Guards stand around it; a parameter while it is sharded is a guard itself."""
    offenders = []
    for nucleus in parts(*NUCLEI):
        room = parts(nucleus.removeprefix("minidist.").rpartition(".")[0])
        for name in ({nucleus} | below(nucleus)) & {*room} - {"minidist.parallel.fsdp.shard"}:
            nodes = ast.walk(ast.parse(PATHS[name].read_text()))
            offenders += [f"{name}:{n.lineno}" for n in nodes if isinstance(n, ast.Raise)]
    assert not offenders, "\n".join(sorted(offenders))


def speaks(source: str) -> bool:
    return any(map(DISTRIBUTED.match, (*imports(source), *dotted(source))))


def test_a_pure_room_never_imports_torch_distributed() -> None:
    speakers = {module for module, path in LIBRARY.items() if speaks(path.read_text())}
    assert "minidist.comm.native" in speakers
    offenders = [
        f"{module}, by {name}"
        for module in parts(*PURE)
        for name in sorted(speakers & ({module} | below(module)))
    ]
    assert not offenders, "\n".join(sorted(offenders))


def test_an_import_of_torch_distributed_is_seen_in_every_dress() -> None:
    for line in (
        "import torch.distributed as dist",
        "from torch import distributed",
        "def later():\n    import torch.distributed.distributed_c10d",
        "import torch\ntorch.distributed.barrier()",
        "from torch._C._distributed_c10d import FileStore",
    ):
        assert speaks(line), line
    assert not speaks("import torch\ntorch.distributions.Normal")


# ---- what also runs in a page of the book ----

CORES = ("schedule.replay", "schedule.buckets", "schedule.lanes", "schedule.steps", "formulas")
INPUTS = "minidist.formulas.inputs"  # the records that Python hands to the formulas


def test_what_runs_in_the_page_imports_nothing_but_math_and_its_like() -> None:
    """Types may come from anywhere: a page never looks under `TYPE_CHECKING`."""
    page = {*parts(*CORES), *IN_THE_PAGE, *MODULES_OF_SLIDERS} - {INPUTS}
    assert {"minidist.schedule.replay", "minidist.schedule.lanes"} <= page
    free = {"__future__", "math", INPUTS, *page}
    offenders = []
    for module in page:
        tree = ast.parse(PATHS[module].read_text())
        tree.body = [n for n in tree.body if not ast.unparse(n).startswith("if TYPE_CHECKING:")]
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names} - {"math"}
            elif isinstance(node, ast.ImportFrom) and node.module not in free:
                names = {f"{node.module}.{alias.name}" for alias in node.names} - page
            else:
                continue
            offenders += [f"{module}: {name}" for name in names]
    assert not offenders, "\n".join(sorted(offenders))


# ---- the lesson is short and stands on torch alone ----

FIRST = {"ring", "ddp", "zero", "zero3", "fsdp"}  # those that come after it are shorter
STANDARD = {"__future__", "collections", "functools", "itertools", "math", "typing"}


def test_the_lesson_is_short() -> None:
    sizes = {path.stem: len(path.read_text().splitlines()) for path in LESSON.values()}
    offenders = [f"{n}: {size}" for n, size in sizes.items() if size > (150 if n in FIRST else 120)]
    assert not offenders, "\n".join(sorted(offenders))
    assert sum(sizes[name] for name in FIRST) <= 620


def test_the_lesson_stands_on_torch_alone() -> None:
    offenders = [
        f"{module}: {name}"
        for module, path in LESSON.items()
        for name in imports(path.read_text())
        if name.split(".")[0] not in {*STANDARD, "torch", "from_scratch"}
    ]
    assert not offenders, "\n".join(sorted(offenders))


# ---- requirements, make, faults to plant ----


def test_requirements_are_pinned_once() -> None:
    text = "".join((ROOT / name).read_text() for name in ("constraints.txt", "requirements.txt"))
    pins: dict[str, set[str]] = {}
    for requirement in re.findall(r"^\s*([^-#\s][^#\n]*)", text, re.MULTILINE):
        name, _, version = requirement.strip().partition("==")
        pins.setdefault(re.sub(r"[-_.]+", "-", name).lower(), set()).add(version)
    found = [f"{name}=={' and '.join(sorted(versions))}" for name, versions in pins.items()]
    offenders = [each for each in found if not re.fullmatch(r"[a-z0-9-]+==[^\s;]+", each)]
    assert not offenders, "\n".join(sorted(offenders))


def test_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony
    told = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = re.findall(r"^make (\w+) +\S", told.stdout, re.MULTILINE)
    assert sorted(listed) == sorted(phony[1].split())
    assert sorted(listed) == sorted(re.findall(r"^(\w+):(?!=)", makefile, re.MULTILINE))


def test_every_fault_to_plant_has_its_line_and_its_tests() -> None:
    offenders = [f.old for f in FAULTS if f.planted((ROOT / f.file).read_text()) is None]
    for target in {target for fault in FAULTS for target in fault.tests}:
        path, _, name = target.partition("::")
        text = (ROOT / path).read_text() if (ROOT / path).is_file() else ""
        if f"def {name.split('[')[0]}" not in text:
            offenders.append(f"no test {target}")
    assert not offenders, "\n".join(sorted(offenders))
