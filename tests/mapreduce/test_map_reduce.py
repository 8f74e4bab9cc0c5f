"""MapReduce on processes: right whatever the numbers are, whoever dies, and what it counts."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pytest

from minidist.errors import TaskError
from minidist.mapreduce.map_reduce import MapReduced, hash_partition, map_reduce
from tests.support.processes import living, note, noted
from tests.support.refusals import all_refused

TEXTS = ["a rose is a rose", "", "is a rose", "the end", "a"]


def words(text: str) -> Iterator[tuple[str, int]]:
    for word in text.split():
        yield word, 1


def total(_: str, values: list[int]) -> int:
    return sum(values)


def counted(texts: list[str] = TEXTS, **options: Any) -> MapReduced:
    return map_reduce(texts, words, total, **options)


ORACLE = Counter(" ".join(TEXTS).split())


def test_word_count_for_any_number_of_reducers_and_workers() -> None:
    for reducers, combiner in product((1, 3, 7), (None, total)):
        first = counted(reducers=reducers, combiner=combiner, workers=1)
        assert first.whole == ORACLE
        assert len(first.parts) == reducers
        for r, part in enumerate(first.parts):
            assert {hash_partition(word, reducers) for word in part} <= {r}
        other = counted(reducers=reducers, combiner=combiner, workers=reducers + 2)
        assert [[*part.items()] for part in other.parts] == [[*p.items()] for p in first.parts]
        assert (other.records == first.records).all()
        assert (other.nbytes == first.nbytes).all()


def test_values_come_in_the_order_of_inputs_and_keys_too() -> None:
    def mapper(number: int) -> list[tuple[str, float]]:
        time.sleep(0.02 * (number % 3 == 0))  # so that tasks end in another order
        return [(f"new in {number}", number), ("all", number), ("all", -number)]

    def lists(_: str, values: list[Any]) -> list[Any]:
        return values

    job = map_reduce(range(6), mapper, lists, workers=3)
    assert job.parts[0]["all"] == [n for i in range(6) for n in (i, -i)]
    assert list(job.parts[0]) == ["new in 0", "all", *[f"new in {i}" for i in range(1, 6)]]
    own = map_reduce(TEXTS, words, lists, combiner=lists)
    assert own.whole["a"] == [[1, 1], [1], [1]], "a combiner sees a map task's own values"


def test_nothing_to_do() -> None:
    for inputs in ([], ["", ""]):
        job = counted(inputs, reducers=2)
        assert job.parts == [{}, {}]
        assert job.records.shape == job.nbytes.shape == (len(inputs), 2)
        assert job.emitted == job.records.sum() == 0


def test_records_and_bytes_are_those_of_the_boxes() -> None:
    plain, combined = counted(reducers=2), counted(reducers=2, combiner=total)
    assert plain.emitted == combined.emitted == plain.records.sum() == ORACLE.total()
    for m, text in enumerate(TEXTS):
        for r in range(2):
            mine = [word for word in text.split() if hash_partition(word, 2) == r]
            assert plain.records[m, r] == len(mine)
            assert combined.records[m, r] == len(set(mine))
            box = list(Counter(mine).items())
            assert abs(combined.nbytes[m, r] - len(cloudpickle.dumps(box))) < 9
    assert combined.nbytes.sum() < plain.nbytes.sum()
    assert combined.shipped > plain.shipped > sum(map(len, TEXTS))
    assert plain.returned > len(cloudpickle.dumps(plain.whole))


def test_a_partition_that_tears_a_key_apart_is_seen() -> None:
    calls = iter(range(100))
    torn = counted(["a a"], reducers=2, partition=lambda word, reducers: next(calls) % reducers)
    with pytest.raises(ValueError, match="several reducers were given the same key"):
        _ = torn.whole


def test_the_hash_is_alike_in_every_interpreter_and_for_equal_keys() -> None:
    keys = ["a", "ä", "\udc80", "", 5, -1, 2.5, ("a", 1), (), (("a",), "b")]
    mine = [hash_partition(key, 97) for key in keys]
    code = "from minidist.mapreduce.map_reduce import hash_partition as p; "
    command = [sys.executable, "-c", f"{code}print([p(key, 97) for key in {keys!r}])"]
    env = {**os.environ, "PYTHONHASHSEED": "1"}  # or Python salts its own hashes
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == str(mine)
    for same in [(1, 1.0, True, np.int64(1)), ((1, "a"), (1.0, "a"))]:
        assert len({hash_partition(key, 10**9) for key in same}) == 1
    assert len({hash_partition(f"word {i}", 8) for i in range(100)}) == 8


def test_what_is_no_key_no_partition_and_no_option_is_refused_by_name() -> None:
    key = r"map_reduce: key .*expected a str, a number or a tuple"
    keys = (frozenset([1]), float("nan"), ("a", object), b"a", None)
    all_refused([(partial(hash_partition, each, 2), key) for each in keys], TypeError)
    outside = r"partition\('a', 2\) gave .*, which is no reducer"
    job = partial(counted, ["a"], reducers=2, attempts=1)
    gives = [partial(job, partition=lambda key, reducers, r=bad: r) for bad in (2, -1, "0")]
    all_refused([(each, outside) for each in gives], TaskError)
    all_refused(
        [
            (partial(counted, reducers=0), "reducers must be a whole number of at least 1, got 0"),
            (
                partial(counted, attempts=1.5),
                "attempts must be a whole number of at least 1, .* 1.5",
            ),
            (partial(counted, timeout=0), "timeout must be between 0 and 1e.06 s, got 0"),
        ],
        ValueError,
        TypeError,
    )


def test_what_cannot_travel_is_named() -> None:
    with pytest.raises(TypeError, match="the input of map task 1 cannot be sent"):
        map_reduce(["a", threading.Lock()], words, total)
    with pytest.raises(TaskError, match=r"reduce task 0 failed once; .*raised TypeError.*pickle"):
        map_reduce(["a"], words, lambda key, values: threading.Lock(), attempts=1)


# Failures


def once(folder: Path, name: object) -> bool:
    """True the first time; for functions that shall fail once."""
    try:
        (folder / str(name)).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@pytest.mark.claim("A5")
@pytest.mark.parametrize(("how", "workers"), [("SIGKILL", 1), ("exit", 3), ("raise", 3)])
def test_a_worker_that_fails_in_a_map_or_a_reduce_changes_nothing(
    how: str, workers: int, tmp_path: Path
) -> None:
    def fail() -> None:
        if how == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            os._exit(0)
        raise OSError("the disk is full")

    def mapper(text: str) -> Iterator[tuple[str, int]]:
        for number, pair in enumerate(words(text)):
            if number == 1 and once(tmp_path, hash_partition(text, 1000)):  # in its midst
                fail()
            yield pair

    def reducer(word: str, values: list[int]) -> int:
        if word == "rose" and once(tmp_path, "rose"):
            fail()
        return sum(values)

    job = map_reduce(TEXTS, mapper, reducer, reducers=3, workers=workers)
    undisturbed = counted(reducers=3)
    assert job.parts == undisturbed.parts
    assert (job.nbytes == undisturbed.nbytes).all()
    redone = [f"map task {m}" for m in (0, 2, 3)]
    redone.append(f"reduce task {hash_partition('rose', 3)}")
    assert sorted(job.recomputed) == sorted(redone)


def test_a_task_that_always_raises_is_named_with_its_worker_s_traceback(tmp_path: Path) -> None:
    def mapper(text: str) -> Iterator[tuple[str, int]]:
        if text == "the end":
            (tmp_path / f"{time.monotonic_ns()}").touch()
            raise ValueError("no such text")
        return words(text)

    with pytest.raises(TaskError) as caught:
        map_reduce(TEXTS, mapper, total, attempts=4)
    message, raised = str(caught.value), "the last time its worker raised ValueError"
    assert message.startswith(f"map task 3 failed 4 times; {raised}")
    assert 'raise ValueError("no such text")' in message, "the worker's own lines"
    assert f"{Path(__file__).name}" in message
    assert caught.value.task == "map task 3"
    assert isinstance(caught.value.__cause__, ValueError)
    assert str(cloudpickle.loads(cloudpickle.dumps(caught.value))) == message, "it can travel on"
    assert len(list(tmp_path.iterdir())) == 4


def test_a_task_that_always_kills_its_worker_is_named() -> None:
    def reducer(word: str, values: list[int]) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    with pytest.raises(TaskError, match=r"^reduce task 0 failed 3 times; .*was killed by SIGKILL$"):
        map_reduce(TEXTS, words, reducer)


def test_tasks_that_do_not_end_are_named_and_nothing_is_left_of_them(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reducer(word: str, values: list[int]) -> int:
        note(tmp_path, os.getpid())
        note(tmp_path, subprocess.Popen(["sleep", "1000"]).pid)
        time.sleep(1000)
        return 0

    counted()  # what it leaves is the fork server, for the jobs to come
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    two = [(0, 1), (1, 1)]
    for timeout in (1, 10, 60):  # on a busy machine a worker may take a while to begin
        with pytest.raises(TaskError) as caught:
            map_reduce([0], lambda _: two, reducer, reducers=2, timeout=timeout)
        if len(noted(tmp_path)) >= 4:
            break
    said = f"reduce task 0 and reduce task 1 did not end within {timeout} s"
    assert str(caught.value) == said
    assert living(noted(tmp_path)) == set()
    assert {child.pid for child in psutil.Process().children(recursive=True)} == before
    assert list(temporary.iterdir()) == []


def test_inputs_and_results_larger_than_a_pipe() -> None:
    def mapper(block: np.ndarray) -> list[tuple[int, Any]]:
        return [(0, block), (1, -block)]

    blocks = [np.full(10**6, i) for i in range(4)]
    sums = lambda _, values: np.sum(values, axis=0)  # noqa: E731
    job = map_reduce(blocks, mapper, sums, reducers=2, partition=lambda key, _: key)
    assert (job.parts[0][0] == 6).all()
    assert (job.parts[1][1] == -6).all()
    assert abs(job.nbytes.sum() - 8 * 8 * 10**6) < 10**4
