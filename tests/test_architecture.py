"""The rules of the house, so that `make test` is the one judge."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import nbformat
import pytest

from course.puzzles import IN_THE_PAGE
from course.widgets.compiled import MODULES as MODULES_OF_SLIDERS
from tests.mutants.__main__ import mutated
from tests.mutants.faults import MUTANTS

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
LABS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MODULES = sorted((ROOT / "lib" / "minidist").rglob("*.py"))
COURSE = sorted((ROOT / "lib" / "course").rglob("*.py"))
NCCL = sorted((ROOT / "tests" / "support" / "nccl").glob("*.py"))
PINNED = re.compile(r"([A-Za-z0-9_.-]+)==([^\s;]+)")
FILE, FUNCTION = 400, 45  # lines; of a function without its docstring, or an exercise's table


@pytest.mark.parametrize(
    "command",
    ["ruff check .", "ruff format --check .", "mypy"],
    ids=["lint", "format", "types"],
)
def test_tool_has_nothing_to_say(command: str) -> None:
    tool, *arguments = command.split()
    done = subprocess.run([BIN / tool, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_lab_carries_no_outputs(lab: Path) -> None:
    cells = nbformat.read(lab, as_version=4).cells
    run = [cell.source for cell in cells if cell.get("outputs") or cell.get("execution_count")]
    assert run == [], "`make format` strips the outputs"


@pytest.mark.parametrize("module", MODULES + COURSE + NCCL, ids=lambda module: module.name)
def test_a_file_is_one_idea_and_a_function_reads_top_to_bottom(module: Path) -> None:
    source = module.read_text()
    assert len(source.splitlines()) <= FILE
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            documented = ast.get_docstring(node) is not None
            body = node.body[1:] if documented else node.body
            if [ast.unparse(each) for each in node.decorator_list] == ["Exercise"]:
                body = body[:-1]  # it returns rows of data
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            assert lines <= FUNCTION, f"{node.name} is {lines} lines long"


# ---- the house: a room imports from lower floors and from itself ----

LIB = ROOT / "lib"
DISTRIBUTED = re.compile(r"torch\.distributed\b|torch\._C\._distributed")
FLOORS = [
    ["errors"],
    ["schedule", "profiler", "launch"],
    ["diagnose", "formulas"],
    ["collectives", "mapreduce"],
    ["comm"],
    ["parallel.sharding", "parallel.autograd", "parallel.checks", "parallel.holders"],
    ["parallel.ddp", "parallel.zero", "parallel.fsdp", "memory"],
    ["parallel.full_model", "plots", "planner"],
    ["train"],
]
PURE = [
    "schedule", "formulas", "parallel.sharding", "memory.state", "memory.predict", "plots",
    "planner",
]  # fmt: skip
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(LIB).with_suffix("").parts).removesuffix(".__init__")


PATHS = {name: path for path in MODULES if (name := module_name(path)) != "minidist"}


def room_of(module: str) -> str:
    """The room that a module of the package stands in."""
    _, first, *rest = module.split(".")
    return f"{first}.{rest[0]}" if first == "parallel" and rest else first


def dotted_names(source: str) -> Iterator[str]:
    """Whatever is imported, anywhere in the source, or reached for with a dot."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the package"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


@cache
def imported(module: str) -> frozenset[str]:
    """The package's modules that this one imports."""
    found = set()
    for name in dotted_names(PATHS[module].read_text()):
        if name.startswith("minidist."):
            other = name if name in PATHS else name.rpartition(".")[0]
            assert other in PATHS, f"{name}: from the package's front door, not from a module"
            found.add(other)
    return frozenset(found)


@cache
def below(module: str) -> frozenset[str]:
    """Every module that this one imports, directly or not; not itself, unless in a circle."""
    found: set[str] = set()
    waiting = set(imported(module))
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= imported(name) - found
    return frozenset(found)


ROOMS = [m for m in sorted(PATHS) if m != "minidist.parallel"]
# Files that a reader opens at most, the module itself included.
CLOSURES = {
    "minidist.launch.launch": 9,
    "minidist.memory.predict": 9,
    "minidist.parallel.ddp.reducer": 9,
    "minidist.parallel.zero.slices": 10,
    "minidist.parallel.fsdp.unit": 9,
}
NUCLEI = ["parallel.ddp.reducer", "parallel.zero.slices", "parallel.fsdp.unit"]
CORE = [
    "schedule",
    "collectives.runtime",
    "collectives.call",
    "collectives.tensor",
    "comm",
    "parallel.sharding",
    "parallel.autograd",
    *NUCLEI,
]


@pytest.mark.parametrize("module", CLOSURES)
def test_a_reader_opens_few_files(module: str) -> None:
    assert len({module} | below(module)) <= CLOSURES[module], sorted(below(module))


def in_core(module: str) -> bool:
    return any(f"{module}.".startswith(f"minidist.{part}.") for part in CORE)


def test_every_part_of_the_core_is_there() -> None:
    assert {f"minidist.{part}" for part in CORE} <= set(PATHS)


@pytest.mark.parametrize("module", [m for m in ROOMS if in_core(m)])
def test_the_core_stands_without_the_wrappers_guards(module: str) -> None:
    """A schedule checks its own numbers; a wrapper's arguments are checked around the core."""
    guards = {name for name in below(module) if name.endswith(".checks")}
    assert guards <= {"minidist.schedule.checks"}
    if module.removeprefix("minidist.") in NUCLEI:
        assert {name for name in imported(module) if "checks" in name.split(".")} == set()


@pytest.mark.parametrize("module", NUCLEI)
def test_a_nucleus_raises_nothing_about_a_users_input(module: str) -> None:
    """Guards stand around it; a parameter while it is sharded is a guard itself."""
    room = room_of(f"minidist.{module}")
    for name in {f"minidist.{module}"} | below(f"minidist.{module}"):
        if room_of(name) == room and name != "minidist.parallel.fsdp.shard":
            assert not any(
                isinstance(n, ast.Raise) for n in ast.walk(ast.parse(PATHS[name].read_text()))
            )


@pytest.mark.parametrize("module", ROOMS)
def test_a_room_imports_from_lower_floors_and_from_itself_and_not_in_a_circle(module: str) -> None:
    here = room_of(module)
    others = {room_of(other) for other in imported(module)} - {here}
    assert {room for room in others if FLOOR_OF[room] >= FLOOR_OF[here]} == set()
    assert module not in below(module)


WRAPPERS = [m for m in ROOMS if m.startswith("minidist.parallel.")]
SENDS_NOTHING = ("minidist.collectives.checks.tensors", "minidist.collectives.runtime.group")


@pytest.mark.parametrize("module", WRAPPERS)
def test_wrappers_send_through_a_comm_alone(module: str) -> None:
    """A counted or slowed `comm` sees all they do: of `collectives` they take what is silent."""
    others = {other for other in imported(module) if room_of(other) == "collectives"}
    assert others - set(SENDS_NOTHING) == set()


@pytest.mark.parametrize(
    "module", [m for m in ROOMS if any(m.startswith(f"minidist.{room}") for room in PURE)]
)
def test_a_pure_room_never_imports_torch_distributed(module: str) -> None:
    speakers = [
        name
        for name in sorted({module} | below(module))
        if any(map(DISTRIBUTED.match, dotted_names(PATHS[name].read_text())))
    ]
    assert speakers == []


# ---- what also runs in a page of the book ----

CORES = ("schedule.replay", "schedule.buckets", "schedule.lanes", "schedule.steps", "formulas")
INPUTS = "minidist.formulas.inputs"  # the records that Python hands to the formulas


def test_what_runs_in_the_page_imports_nothing_but_math_and_its_like() -> None:
    """Types may come from anywhere: a page never looks under `TYPE_CHECKING`."""
    paths = PATHS | {module_name(path): path for path in COURSE}
    names = [n for n in PATHS if f"{n}.".startswith(tuple(f"minidist.{core}." for core in CORES))]
    page = {*names, *IN_THE_PAGE, *MODULES_OF_SLIDERS} - {INPUTS}
    assert {"minidist.schedule.replay", "minidist.schedule.lanes"} <= page
    found = []
    for name in sorted(page):
        tree = ast.parse(paths[name].read_text())
        tree.body = [
            node for node in tree.body
            if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        ]  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found += [(name, alias.name) for alias in node.names if alias.name != "math"]
            elif isinstance(node, ast.ImportFrom) and node.module not in ("__future__", "math"):
                whole = {f"{node.module}.{alias.name}" for alias in node.names}
                if node.module not in page | {INPUTS} and not whole <= page:
                    found.append((name, node.module or ""))
    assert found == []


# ---- the course stands on the library, in rooms of its own ----

COURSE_FLOORS = [
    ["hosts", "pages", "puzzles", "timing", "training", "verdict"],
    ["figures"],
    ["capstone", "failures", "sandbox", "widgets"],
    ["graders", "project"],
    ["grade"],
]
COURSE_FLOOR_OF = {room: floor for floor, rooms in enumerate(COURSE_FLOORS) for room in rooms}


def course_room_of(name: str) -> str:
    return name.split(".")[1]


@pytest.mark.parametrize("path", [p for p in COURSE if p != COURSE[0]], ids=module_name)
def test_a_room_of_the_course_imports_from_lower_floors_and_from_itself(path: Path) -> None:
    here = course_room_of(module_name(path))
    names = {name for name in dotted_names(path.read_text()) if name.startswith("course.")}
    others = {course_room_of(name) for name in names} - {here}
    floors = COURSE_FLOOR_OF
    assert {room for room in others if floors[room] >= floors[here]} == set()


def test_the_library_does_not_know_its_course() -> None:
    for path in MODULES:
        assert "course" not in {name.split(".")[0] for name in dotted_names(path.read_text())}


# ---- the lesson stands on torch alone ----

LESSON = sorted((LIB / "from_scratch").glob("*.py"))
FIRST = {"ring", "ddp", "zero", "zero3", "fsdp"}  # those that come after it are shorter


def test_the_lesson_is_short_and_stands_on_torch() -> None:
    sizes = {path.stem: len(path.read_text().splitlines()) for path in LESSON}
    first = [sizes.pop(name) for name in FIRST]
    assert max(first) <= 150
    assert sum(first) <= 600
    assert max(sizes.values()) <= 100
    for path in LESSON:
        trees = ast.walk(ast.parse(path.read_text()))
        froms = {node.module or "" for node in trees if isinstance(node, ast.ImportFrom)}
        roots = {name.split(".")[0] for name in froms}
        standard = {"__future__", "collections", "functools", "itertools", "typing"}
        assert roots <= {*standard, "torch", "from_scratch"}


def test_an_import_of_torch_distributed_is_seen_in_every_dress() -> None:
    for line in (
        "import torch.distributed as dist",
        "from torch import distributed",
        "def later():\n    import torch.distributed.distributed_c10d",
        "import torch\ntorch.distributed.barrier()",
        "from torch._C._distributed_c10d import FileStore",
    ):
        assert any(map(DISTRIBUTED.match, dotted_names(line))), line
    assert not any(map(DISTRIBUTED.match, dotted_names("import torch\ntorch.distributions.Normal")))


def requirements(name: str) -> list[str]:
    lines = (ROOT / name).read_text().splitlines()
    return [bare for line in lines if (bare := line.split("#")[0].strip()) and bare[0] != "-"]


def test_requirements_are_pinned_once() -> None:
    pins = {}
    for requirement in requirements("constraints.txt") + requirements("requirements.txt"):
        match = PINNED.fullmatch(requirement)
        assert match, f"not pinned: {requirement}"
        name = re.sub(r"[-_.]+", "-", match[1]).lower()
        assert pins.setdefault(name, match[2]) == match[2], f"pinned twice: {name}"


def test_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony
    told = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = re.findall(r"^make (\w+) +\S", told.stdout, re.MULTILINE)
    assert sorted(listed) == sorted(phony[1].split())
    assert sorted(listed) == sorted(re.findall(r"^(\w+):(?!=)", makefile, re.MULTILINE))


def test_every_fault_to_plant_has_its_line() -> None:
    lost = [m.old for m in MUTANTS if mutated((ROOT / m.file).read_text(), m) is None]
    assert lost == []
