"""`python -m minidist.planner`: what it prints, as text and as JSON, and how it refuses."""

import json
import re
import shlex
import subprocess
import sys

import pytest

from minidist.planner.__main__ import main, sizes_of
from minidist.planner.jobs import MEDIUM, SMALL, sized
from minidist.planner.planner import plan
from minidist.planner.search import search
from minidist.planner.sizes import Sizes

SMALL_AS_LLAMA = "llama:28,3072,8192,24,8,128256"


def test_it_prints_what_search_and_plan_say(capsys: pytest.CaptureFixture[str]) -> None:
    main(shlex.split("search medium H100 64 --samples 128"))
    assert capsys.readouterr().out == f"{search(MEDIUM, 'H100', 64, 128)}\n"
    main(shlex.split("plan small H200 8 --batch 2 --fused-loss"))
    found = plan(SMALL, "H200", 8, batch=2, fused_loss=True)
    assert capsys.readouterr().out == f"{found}\n"


def test_what_it_prints_as_json_is_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    main(shlex.split("search medium H100 64 --samples 64 --json --orders 1f1b --context 1"))
    told = json.loads(capsys.readouterr().out)
    found = search(MEDIUM, "H100", 64, 64, orders=("1f1b",), context=1)
    assert told == json.loads(json.dumps(found.as_dict()))
    main(shlex.split("plan small H100 8 --json"))
    told = json.loads(capsys.readouterr().out)
    planned = plan(SMALL, "H100", 8)
    assert (told["hardware"], told["ranks"], told["best"]) == ("H100 SXM", 8, planned.best)
    assert told["forecasts"]["ddp"]["overlapped"] == planned.forecasts["ddp"].overlapped


def test_a_model_is_a_job_or_a_shape() -> None:
    assert sizes_of("small", 4096) == sized("small", 4096)
    untied = Sizes.llama(28, 3072, 8192, 24, 8, 128_256, 4096)
    assert sizes_of(SMALL_AS_LLAMA, 4096) == untied
    mixture = Sizes.mixture(4, 64, 32, 4, 2, 100, 128, experts=8, active=2)
    assert sizes_of("mixture:4,64,32,4,2,100,8,2", 128) == mixture
    shared = Sizes.mixture(4, 64, 32, 4, 2, 100, 128, experts=8, active=2, beside=48)
    assert sizes_of("mixture:4,64,32,4,2,100,8,2,48", 128) == shared


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("plan tiny H100 8", "model: expected small, medium, large, llama: with six numbers, or "),
        ("plan llama:1,2 H100 8", "model: expected small, .*, got 'llama:1,2'"),
        ("plan llama:a,b H100 8", "model: expected small, .*, got 'llama:a,b'"),
        ("plan mixture:4,64,32,4,2,100,8,9 H100 8", "active: expected at most the 8 experts"),
        ("plan small H10 8", "hardware: expected an Accelerator or one of A100, H100, H800,"),
        ("plan small A100 8 --precision fp8", "precision: expected bf16 on A100 SXM, got 'fp8'"),
        ("search small H100 8 --samples 8 --optimizer lion", "optimizer: expected one of sgd"),
        ("plan small H100 0", "ranks must be at least 1, got 0"),
        ("plan small H100 many", "argument ranks: invalid int value: 'many'"),
        ("plan small H100 8 --sequence 0", "sequence must be at least 1, got 0"),
        ("search small H100 8", "the following arguments are required: --samples"),
        ("search small H100 8 --samples 0", "samples must be at least 1, got 0"),
        ("search small H100 8 --samples 8 --orders gpipe", "orders: expected some of 1f1b, zero"),
        ("find small H100 8", "argument command: invalid choice: 'find'"),
        ("", "the following arguments are required: command"),
    ],
)
def test_an_error_is_one_sentence_and_its_status_is_2(
    given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(shlex.split(given))
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert re.match(said, err), err


def test_nothing_that_fits_is_an_answer_too() -> None:
    words = shlex.split("-m minidist.planner search large H100 8 --samples 8")
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Nothing fits" in done.stdout
