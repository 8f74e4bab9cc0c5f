"""The milestones after FSDP: a lesson with a mistake in it gets a diagnosis."""

import re
from pathlib import Path

import pytest

from course.ask.verdict import Verdict
from course.project import report, submission
from course.project.milestones import MILESTONES
from tests.course.test_submission import LESSON, write
from tests.course.verdicts import says
from tools.work import stub

# Each on so many ranks: what is replaced in the lesson, by what, and what the verdict says.
WRONG = {
    "pipeline": r"""
1 | share[m] * loss_of(out, ys[m]) => loss_of(out, ys[m])
    | GPipe, 1 rank: the loss of batch 1 is off
1 | labels(each) / labels(y) => 1 / micro
    | GPipe, labels ignored, 1 rank: the loss of batch 1 is off
1 | loss_of(out, ys[m]) if share[m] else out[:0].sum() => loss_of(out, ys[m])
    | labels ignored, 1 rank: the loss of batch 1 is off by nan
1 | loss_of(out, ys[m]) => loss_of(out, ys[0]) | GPipe, 1 rank: the loss of batch 1 is off by
1 | torch.stack(losses).sum() => losses[-1] | the loss of batch 1 is off by
1 | y.chunk(micro), [] => y.chunk(micro), [p.grad.zero_() for p in self.parameters() if p.grad
    is not None][:0] | GPipe, 1 rank: the vector of gradients of a rank's stages after batch 2 is
2 | out.backward(gradient) => out.backward(torch.ones_like(out) if stage < last else None)
    | rank 0 of 2 GPipe, 2 ranks: the vector of gradients of a rank's stages after batch 1 is off
2 | else given.grad\n => else given.grad / micro\n | gradients of a rank's .* off
2 | (given, out), out.detach() => (given, out), out.detach().half().double() | off by .*e-
2 | self.leaving = [each => shape = torch.tensor(self.border.shape); _ = src != dst and
    (dist.send(shape, dst) if src == self.rank else dist.recv(shape, src)); self.leaving = [each
    | right, and this rank sends 16 messages and .* bytes; 8 and .* are enough
2 | buffer, dist.irecv(buffer, group=self.group, group_src=src) =>
    buffer, type("Later", (), {"wait": lambda _: dist.recv(buffer, src)})()
    | pipeline \(1F1B\) is right over Gloo and would hang on GPUs.*or in one order on all ranks
2 | range(self.rank, stages, self.ranks) =>
    range(self.rank * stages // self.ranks, (self.rank + 1) * stages // self.ranks)
    | On 2 real processes .* raised (KeyError|AttributeError): .* \(pipeline.py, line \d+, in
2 | self.leaving = [each => dist.all_reduce(self.border); self.leaving = [each
    | calls torch.distributed's all_reduce. Use `isend` and `irecv`
2 | self.leaving = [each => __import__("minidist").broadcast(self.border); self.leaving = [each
    | calls minidist's collectives
""",
    "tensor parallelism": r"""
1 | is_causal=True => is_causal=False | full sequences, 1 rank: the output of step 1 is off
1 | (-1, head) => (head, -1) | full sequences, 1 rank: the output of step 1 is off by
2 | (same, all_reduce) => (same, same) | full sequences, 2 ranks: the output of step 1 is
2 | return total => return total / comm.ranks | the output of step 1 is off by
2 | comm, back, there => comm, back, back | 2 ranks: the gradient of the input in step 1 is off by
2 | comm.rank * size, size => 0, size | the output of step 1 is off by
2 | comm.rank * size, size => (comm.rank + dim) % comm.ranks * size, size | output of step 1 is off
2 | requires_grad=not frozen => requires_grad=False | the output of step 2 is off by
2 | comm.all_reduce(total) => torch.distributed.all_reduce(total)
    | calls torch.distributed's all_reduce. Use the calls of `comm` and nothing else
2 | comm.all_reduce(total) => __import__("minidist").all_reduce(total)
    | 0 of the [\d,]+ bytes that it takes went through the calls of `comm`
2 | comm.all_reduce(total) => [comm.all_reduce(token) for token in total]
    | full sequences, 2 ranks: the results are right, and this rank sends .* messages .*; 16
3 | comm.all_reduce(total) => total = all_gather(x, comm).view(comm.ranks, *x.shape).sum(0)
    | the results are right, and this rank sends 16 messages and .* bytes; 32 and .* are enough
3 | comm.all_reduce(total) => comm.all_reduce(total.mul_(2 / comm.ranks)) | output of step 1 is off
2 | comm.reduce_scatter(part, x.contiguous()) =>
    part = all_reduce(x, comm).chunk(comm.ranks)[comm.rank]
    | split sequences, 2 ranks: the results are right, and this rank sends
""",
    "context parallelism": r"""
1 | .triu(1) => .triu(2) | pieces in order, 1 rank: the output is off by
1 | * q.shape[-1] ** -0.5 =>  | pieces in order, 1 rank: the output is off by
1 | (lse - both).exp() * out + (more_lse - both).exp() * more => (out + more) / 2 | output is off
1 | torch.logaddexp(lse, more_lse) => (lse.exp() + more_lse.exp()).log()
    | large scores, 1 rank: the output is off by nan
2 | if key <= query: => if True: | the output is off by
2 | dist.get_world_size(), zigzag) => dist.get_world_size(), False)
    | zigzag, 2 ranks: the part that split returns is off by
2 | return dq, (own + others) => return dq, (own) | in order, 2 ranks: the gradient of k is off
2 | + future - lse[i]).exp() => + future).softmax(-1) | in order, 2 ranks: the gradient of [qk] is
2 | send_right(kv) if step < ranks - 1 else (kv, []) => send_right(kv)
    | this rank sends 5 messages and [\d,]+ bytes; 3 and [\d,]+ are enough
2 | dist.batch_isend_irecv([send, receive]) => dist.batch_isend_irecv([dist.P2POp(each.op, half,
    each.peer) for each in (send, receive) for half in each.tensor.view(-1).chunk(2)])
    | this rank sends 6 messages and ([\d,]+) bytes; 3 and \1 are enough
2 | dist.batch_isend_irecv([send, receive]) =>
    [each.op(each.tensor, each.peer) for each in (send, receive)]
    | context parallelism \(pieces in order\) is right over Gloo and would hang on GPUs
2 | dist.batch_isend_irecv([send, receive]) => dist.all_gather([arriving, arriving], tensor)
    | calls torch.distributed's all_gather. Use `isend` and `irecv` and nothing else
2 | dist.batch_isend_irecv([send, receive]) => __import__("minidist").all_gather_into_tensor(
    arriving, tensor) | calls minidist's collectives
2 | dist.batch_isend_irecv([send, receive]) => arriving.copy_(__import__(
    "torch.distributed._functional_collectives", fromlist=["_"]).all_gather_tensor(
    tensor[None], 0, dist.group.WORLD)[rank - 1]) is None or []
    | 0 of the [\d,]+ bytes that it takes went through `isend` and `irecv`
""",
    "experts": r"""
1 | gate[order, None] * home => home | top-1, 1 rank: the output of step 1 is off by
1 | gate[order, None] * home => gate[order, None].detach() * home | gradient of the tokens in step 1
1 | top_k, capacity\n => 1, capacity\n | top-2, 1 rank: the output of step 1 is off by
1 | top_k, capacity\n => top_k, None\n | top-2 with capacity 3, 1 rank: the output of step 1 is off
1 | chosen.cumsum(0) => chosen.flip(0).cumsum(0).flip(0) | capacity 3, 1 rank: the output of step 1
1 | balance(probability, chosen)\n => balance(probability.detach(), chosen)\n | gradient of the tok
1 | probability.shape[1] * (share => (share | top-1, 1 rank: the balance in step 1 is off by
1 | self.balance = => balance_loss = | 'Experts' object has no attribute 'balance'
2 | torch.cat(outputs)[order.argsort()] => torch.cat(outputs)
    | 2 ranks: the output of step 1 is off by
2 | comm.broadcast(tensor.detach()) => pass | 2 ranks: the output of step 1 is off by
2 | rows[order].split => rows.split | 2 ranks: the output of step 1 is off by
2 | Travel.apply(gradient, => Travel.apply(gradient / 2, | gradient of the tokens in step 1 is off
2 | [comm.rank * each : (comm.rank + 1) * each] => [comm.rank :: comm.ranks] | output of step 1 is
2 | = router, exchange, comm.ranks => = router, dist.all_to_all_single, comm.ranks
    | calls torch.distributed's all_to_all_single. Use `exchange` and nothing else
2 | = router, exchange, comm.ranks =>
    = router, __import__("minidist").all_to_all_single, comm.ranks
    | [\d,]+ of the [\d,]+ bytes that it takes went through `exchange`
2 | self.exchange(coming, counts) => self.exchange(coming, counts), self.exchange(coming, counts)
    | the results are right, and this rank sends 1[24] messages .*; 1[02] and .* are enough
2 | way(arrived, rows.contiguous(), take, give) => way(both := rows.new_empty(sum(take), 2,
    *rows.shape[1:]), torch.stack([rows, rows], 1), take, give); arrived.copy_(both[:, 0])
    | the results are right, and this rank sends 1[02] messages .*; 1[02] and .* are enough
""",
    "local SGD": r"""
2 | flat / self.comm.ranks => flat | H = 1, 2 ranks: the vector of weights after step 1 is off by
2 | self.steps % self.every => (self.steps + 1) % self.every | H = 3, 2 ranks: .* after step 2 is
2 | self.steps % self.every == 0 => True | LocalSGD with H = 3, 2 ranks: .* after step 1 is off
2 | comm.broadcast(parameter.detach()) => pass | H = 1, 2 ranks: the vector of weights after step 1
1 | , nesterov=momentum > 0 =>  | DiLoCo, 1 rank: the vector of weights after step 2 is off by
1 | self.start - parameters_to_vector(self.parameters) =>
    parameters_to_vector(self.parameters) - self.start | DiLoCo, 1 rank: .* after step 2 is off by
1 | vector_to_parameters(self.start.clone(), self.parameters) => pass | DiLoCo, 1 rank: .* step 2 is
1 | self.start.clone() => self.start | DiLoCo, 1 rank: the vector of weights after step 4 is off by
1 | self.outer.load_state_dict(state["outer"]) => pass | newcomers, 1 rank: .* after step 6 is off
1 | self.start.copy_(state["start"]) => pass | DiLoCo with newcomers, 1 rank: .* after step 5 is off
2 | self.comm.all_reduce(flat) => torch.distributed.all_reduce(flat)
    | calls torch.distributed's all_reduce. Use the calls of `comm` and nothing else
2 | self.comm.all_reduce(flat) => __import__("minidist").all_reduce(flat)
    | H = 1, 2 ranks: the results are right, and [\d,]+ of the .* went through the calls of `comm`
2 | self.comm.all_reduce(flat) => [self.comm.all_reduce(part) for part in flat.chunk(3)]
    | H = 1, 2 ranks: the results are right, and this rank sends .* messages .* are enough
2 | for p in held if p.requires_grad] => for p in held] | this rank sends .* bytes; .* are enough
3 | self.comm.all_reduce(gradient) => every = gradient.new_empty(3, len(gradient));
    self.comm.all_gather(every, gradient); gradient = every.sum(0)
    | DiLoCo, 3 ranks: the results are right, and this rank sends .* bytes; .* are enough
""",
}
CASES = [
    (name, *re.split(r" \| | => ?", line.replace(r"\n", "\n"), maxsplit=3))
    for name, table in WRONG.items()
    for line in re.sub(r"\n +", " ", table).strip().split("\n")
]


def graded(name: str, ranks: int, text: str, place: Path, patch: pytest.MonkeyPatch) -> Verdict:
    """The verdict on a file of the reader's, on so many ranks."""
    write(place, **{MILESTONES[name].file: text.replace("from_scratch", "mine")})
    patch.syspath_prepend(place)
    patch.setattr(report, "RANKS", (ranks,))
    patch.setenv("COURSE_SEED", "5")
    return report.grade(name)


def lesson(name: str) -> str:
    return (LESSON / f"{MILESTONES[name].file}.py").read_text()


@pytest.mark.parametrize(
    ("name", "ranks", "old", "new", "diagnosis"),
    CASES,
    ids=[f"{name}-{place}" for place, (name, *_) in enumerate(CASES)],
)
def test_a_mistake_in_the_lesson_is_told(
    name: str,
    ranks: str,
    old: str,
    new: str,
    diagnosis: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert old in lesson(name)
    wrong = lesson(name).replace(old, new)
    says(diagnosis, graded(name, int(ranks), wrong, tmp_path, monkeypatch))


RIGHT = {
    "tensor parallelism": ("x.clone(memory_format=torch.contiguous_format)", "x.detach()"),
    "experts": ("empty_like(counts)", "empty_like(counts := counts.int())"),
    "local SGD": (
        "for parameter in held:\n            comm.broadcast(parameter.detach())",
        "comm.broadcast(v := parameters_to_vector(held).detach()); vector_to_parameters(v, held)",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_another_right_way_is_right(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = RIGHT[name]
    assert old in lesson(name)
    verdict = graded(name, 3, lesson(name).replace(old, new), tmp_path, monkeypatch)
    assert verdict, verdict


@pytest.mark.parametrize("name", WRONG)
def test_a_stub_is_no_mistake_yet(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = graded(name, 2, stub(lesson(name)), tmp_path, monkeypatch)
    assert verdict.status == "not yet"
    assert f"in mine/{MILESTONES[name].file}.py, line" in verdict.text


def test_ranks_that_hang_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = lesson("context parallelism").replace(
        "[send, receive])", "[send, receive][rank == 0 :])"
    )
    for timeout in (3, 10, 60):  # on a busy machine ranks may take a while to begin
        monkeypatch.setattr(submission, "TIMEOUT", timeout)
        (place := tmp_path / str(timeout)).mkdir()
        verdict = graded("context parallelism", 2, silent, place, monkeypatch)
        if "context.py" in verdict.text:
            break
    says(r"did not end within .*\(context.py, line .*\).*the same calls", verdict)


def test_a_name_is_that_of_its_file_too_and_has_a_scoreboard() -> None:
    for name in WRONG:
        assert report.names_of(MILESTONES[name].file) == [name]
    rows = report.scoreboard("tensor parallelism", "from_scratch").data.splitlines()
    assert rows[0] == "| code of | messages | bytes sent |"
    assert rows[2].startswith("| from_scratch | 96 | ")
