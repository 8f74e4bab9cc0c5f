"""Former names of the course's modules, for one release: copies of labs in `work/` import them."""

from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from types import ModuleType

MOVED = {
    "capstone": "chapters.capstone",
    "failures": "chapters.disagree.failures",
    "failures.torch_record": "chapters.disagree.torch_record",
    "grade": "ask",
    "graders": "chapters",
    "hosts": "chapters.cluster",
    "sandbox": "ask",
    "training.curves": "chapters.keep_going.curves",
    "training.dimensions": "chapters.inside.dimensions",
    "training.elastic": "chapters.map_reduce.elastic",
    "training.metered": "chapters.fsdp.metered",
    "training.regroup": "chapters.cluster.regroup",
}


def new_name(name: str) -> str | None:
    """What a module is called now; None if that has not changed."""
    for old in sorted(MOVED, reverse=True):  # a room's modules before the room
        if f"{name}.".startswith(f"course.{old}."):
            grader = ".exercises" if old == "graders" and name != "course.graders" else ""
            return f"course.{MOVED[old]}{name.removeprefix(f'course.{old}')}{grader}"
    return None


class Moved(MetaPathFinder):
    """Loads a module under its former name, too."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where it is now."""
        new = new_name(name)
        spec = find_spec(new) if new else None
        if not spec or not spec.origin:
            return None
        folders = spec.submodule_search_locations
        return spec_from_file_location(name, spec.origin, submodule_search_locations=folders)
