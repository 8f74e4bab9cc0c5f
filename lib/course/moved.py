"""Former names of modules, for one release: labs that learners have changed still import them."""

import re
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from typing import Any

MOVED = {  # the first that fits; what comes after it stays
    r"chapters\.inside": "chapters.tensor",
    r"graders\.(\w+)": r"chapters.\1.exercises",
    r"graders": "chapters",
    r"grade": "ask",
    r"capstone": "chapters.capstone",
    r"failures\.torch_record": "chapters.disagree.torch_record",
    r"failures": "chapters.disagree.failures",
    r"hosts": "chapters.cluster",
    r"sandbox\.calls": "chapters.collectives.calls",
    r"sandbox": "ask",
    r"training\.curves": "chapters.keep_going.curves",
    r"training\.dimensions": "chapters.tensor.dimensions",
    r"training\.metered": "chapters.fsdp.metered",
    r"training\.regroup": "chapters.cluster.regroup",
}


class Moved(MetaPathFinder):
    """Loads a module by its former name, too, from the file that it has now."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        for old, new in MOVED.items():
            now, found = re.subn(rf"^course\.{old}(?!\w)", f"course.{new}", name)
            if found and (spec := find_spec(now)) and spec.origin:
                inside = spec.submodule_search_locations
                return spec_from_file_location(name, spec.origin, submodule_search_locations=inside)
        return None
