"""What was measured, with all that one needs to know to measure it again."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from course.pages.machine import describe

RESULTS = Path(__file__).parent / "results"

Row = dict[str, Any]


def record(name: str, rows: list[Row], command: str | None = None) -> Path:
    """Write results/NAME.json, aside and renamed, and return its path."""
    found = {
        "command": command or f"python -m benchmarks {name}",
        "machine": describe(),
        "date": datetime.now(UTC).date().isoformat(),
        "rows": rows,
    }
    path = RESULTS / f"{name}.json"
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(found, indent=1) + "\n")
    aside.replace(path)
    return path
