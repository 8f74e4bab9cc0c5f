"""CI's script gets a browser on Debian and on Ubuntu; what it calls only writes down its call.

Its workflow publishes the book from main, after all tests, once `_config.yml` has an address.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.book.test_site import PUBLISHED, write_config
from tests.support.browser import find_chromium
from tools.site import Site

RUN = Path(__file__).parents[2] / ".ci" / "run"
TOOLS = ["bash", "env", "dirname", "sed"]

APT = ["apt-get update -q", "apt-get install -q -y --no-install-recommends chromium"]
OWN = ["apt-get update -q", "make .venv/ready", "playwright install --with-deps chromium"]
THEN = ["make test", "make book"]


def command(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/bash", *lines]) + "\n")
    path.chmod(0o755)


def called(root: Path, answer: str, browser: str = "exit 127", ip: bool = True) -> list[str]:
    """What `.ci/run` calls in a clone at `root` where apt knows `answer` of Chromium."""
    note = f'echo "${{0##*/}} $*" >> {root}/log'
    for name in ("apt-get", "make"):
        command(root / "bin" / name, note)
    command(root / ".venv" / "bin" / "playwright", note)
    command(root / "bin" / "id", "echo 0")
    if ip:
        command(root / "bin" / "ip", "exit 0")
    command(root / "bin" / "apt-cache", f"printf '{answer}'")
    command(root / "bin" / "chromium-browser", browser)
    for tool in TOOLS:
        (root / "bin" / tool).symlink_to(str(shutil.which(tool)))
    (root / ".ci").mkdir()
    script = shutil.copy(RUN, root / ".ci")
    subprocess.run([script], env={"PATH": str(root / "bin")}, check=True, capture_output=True)
    return (root / "log").read_text().splitlines()


def test_a_browser_is_installed_where_none_runs(tmp_path: Path) -> None:
    known = "chromium:\\n  Installed: (none)\\n  Candidate: "
    answers = {
        "Debian": (f"{known}131.0.6778.139-1~deb12u1\\n", APT),
        "Ubuntu, a pointer to a snap": (f"{known}2:1snap1-0ubuntu2\\n", OWN),
        "unknown": ("", OWN),
    }
    for system, (answer, calls) in answers.items():
        assert called(tmp_path / system.split(",")[0], answer) == calls + THEN, system


def test_the_tool_that_joins_hosts_is_installed_where_there_is_none(tmp_path: Path) -> None:
    install = ["apt-get update -q", "apt-get install -q -y --no-install-recommends iproute2"]
    assert called(tmp_path, "", "echo Chromium 131", ip=False) == install + THEN


def test_a_browser_that_runs_is_taken(tmp_path: Path) -> None:
    assert called(tmp_path, "", browser="exit 0") == THEN


def test_the_tests_take_the_browser_that_was_named_or_installed_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, own, system = (tmp_path / name / "chromium" for name in ("named", "own", "system"))
    playwright: Any = SimpleNamespace(chromium=SimpleNamespace(executable_path=str(own)))
    monkeypatch.setenv("CHROMIUM", str(named))
    monkeypatch.setenv("PATH", str(system.parent))
    for path in (system, own, named):
        command(path)
        assert find_chromium(playwright) == str(path)


def test_the_container_has_a_python_that_is_new_enough_and_calls_what_make_has() -> None:
    root = RUN.parents[1]
    container = json.loads((root / ".devcontainer" / "devcontainer.json").read_text())
    name, major, minor = re.match(r"(\w+):(\d+)\.(\d+)\.\d+-", container["image"]).groups()  # type: ignore[union-attr]
    wanted = tomllib.loads((root / "pyproject.toml").read_text())["project"]["requires-python"]
    assert (name, wanted) == ("python", ">=3.11")
    assert (int(major), int(minor)) >= (3, 11)
    targets = re.findall(r"^(\w+):", (root / "Makefile").read_text(), re.MULTILINE)
    for when in ("postCreateCommand", "postAttachCommand"):
        assert container[when].removeprefix("make ") in targets


JOBS = yaml.safe_load((RUN.parents[1] / ".github" / "workflows" / "ci.yml").read_text())["jobs"]


def test_the_book_is_published_from_main_after_all_tests_and_only_with_an_address() -> None:
    course, publish = JOBS["course"], JOBS["publish"]
    script, site, upload = course["steps"][-3:]
    (*_, deploy), found = publish["steps"], f"steps.{site['id']}.outputs.book"
    assert script == {"run": "bash .ci/run"}
    assert site["if"] == "github.event_name == 'push' && github.ref == 'refs/heads/main'"
    assert (upload["if"], upload["with"]) == (found, {"path": "_build/html"})
    assert upload["uses"] == "actions/upload-pages-artifact@v3"
    assert deploy["uses"] == "actions/deploy-pages@v4"
    assert course["outputs"] == {"book": f"${{{{ {found} }}}}"}
    assert (publish["needs"], publish["if"]) == ("course", "needs.course.outputs.book")
    assert publish["environment"]["name"] == "github-pages"
    assert f"steps.{deploy['id']}.outputs.page_url" in publish["environment"]["url"]
    assert publish["permissions"] == {"pages": "write", "id-token": "write"}
    assert "permissions" not in course, "only the job that publishes may write"


def test_the_step_that_looks_for_an_address_tells_the_next_ones(tmp_path: Path) -> None:
    shutil.copytree(RUN.parents[1] / "tools", tmp_path / "tools")
    command(tmp_path / ".venv" / "bin" / "python", f'exec {sys.executable} "$@"')
    (step,) = (each["run"] for each in JOBS["course"]["steps"] if each.get("id") == "site")
    for site in (Site("", ""), PUBLISHED):
        write_config(tmp_path, *site)
        told = tmp_path / f"told{site.book and '-address'}"
        env = {**os.environ, "GITHUB_OUTPUT": str(told)}
        subprocess.run(["bash", "-e", "-c", step], cwd=tmp_path, env=env, check=True)
        assert told.read_text() == f"book={site.book}\n"
