"""A small GPT under DDP, on GPUs or CPUs, in plain PyTorch from 2.11 on. Start it or resume it by
torchrun --nproc-per-node 8 scripts/ddp.py; to make it yours, edit GPT, WINDOWS and constants."""

import argparse
import os
import shutil
import signal
import time
from datetime import timedelta
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

CONTEXT, SEED, LOG_EVERY, SAVE_EVERY, WORKERS, LR, WARM_UP = 64, 0, 10, 100, 2, 1e-3, 5
TIMEOUT, SAVING = timedelta(minutes=10), timedelta(hours=1)  # more than compiling, than a save
PRECISION = torch.bfloat16  # of the arithmetic; weights, gradients and moments are float32
WINDOWS = torch.tensor([*"".join(sorted(topics.values())).encode()]).unfold(0, CONTEXT + 1, CONTEXT)
COMPLETE = f"step-{'[0-9]' * 8}/.metadata"  # which is written when all the rest is


class GPT(nn.Module):
    def __init__(self, width=64, heads=4, layers=2, dropout=0.0, recompute=False):
        super().__init__()
        self.token, self.position = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        how = {"dropout": dropout, "batch_first": True, "norm_first": True}
        blocks = [nn.TransformerEncoderLayer(width, heads, 4 * width, **how) for _ in range(layers)]
        self.blocks, self.recompute = nn.ModuleList(blocks), recompute
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256))

    def forward(self, ids):
        x = self.token(ids[:, :-1]) + self.position.weight
        by = nn.Transformer.generate_square_subsequent_mask(CONTEXT, device=x.device), None, True
        for block in self.blocks:
            x = checkpoint(block, x, *by, use_reentrant=False) if self.recompute else block(x, *by)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1).float(), ids[:, 1:].flatten())


def flags():
    """The command line, checked before the ranks meet: a wrong one leaves none of them waiting."""
    parser, env = argparse.ArgumentParser(), os.environ.get
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64, help="windows per step, over all ranks")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--recompute", action="store_true", help="activations, to save memory")
    parser.add_argument("--compile", action="store_true", help="each block")
    args = parser.parse_args()
    if (least := min(args.steps, args.batch, args.accumulate)) < 1:
        parser.error(f"--steps, --batch, --accumulate: expected at least 1, got {least}")
    if args.batch % (int(env("WORLD_SIZE", 1)) * args.accumulate) or args.batch > len(WINDOWS):
        parser.error(f"--batch {args.batch}: no multiple of ranks x accumulate to {len(WINDOWS)}")
    if (gpus := torch.cuda.device_count()) and int(env("LOCAL_WORLD_SIZE", 1)) > gpus:
        parser.error(f"{env('LOCAL_WORLD_SIZE')} ranks on this node, but {gpus} visible GPUs")
    if env("TORCHELASTIC_USE_AGENT_STORE") == "True" and env("TORCHELASTIC_MAX_RESTARTS") != "0":
        parser.error("--max-restarts needs c10d and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
    return args


def own_group(worker):  # torchrun signals a rank's group, but loaders must outlive the warning
    os.setpgrp()


def batches(step, batch):  # this rank's part of each, from `step` on; the first is 1
    rank, world, per_epoch = dist.get_rank(), dist.get_world_size(), len(WINDOWS) // batch
    how = {"num_workers": WORKERS, "pin_memory": torch.cuda.is_available()}
    while True:
        epoch, done = divmod(step - 1, per_epoch)
        draw = torch.Generator().manual_seed(SEED + epoch)  # 4 bytes per window, and at once 4 per
        order = torch.randperm(len(WINDOWS), generator=draw, dtype=torch.int32)  # window of ours;
        order = order[: per_epoch * batch].view(-1, batch)[:, rank::world].clone()  # a list has 36
        rest = (order[row].tolist() for row in range(done, per_epoch))  # resumes in mid-epoch
        yield from DataLoader(WINDOWS, batch_sampler=rest, worker_init_fn=own_group, **how)
        step += per_epoch - done


def finish(saving, aside):  # waits for a save; what fails on one rank is raised on all
    parts = {part.relative_path for part in saving.result().storage_data.values()}
    if dist.get_rank() == 0:
        if unseen := parts - {file.name for file in aside.iterdir()}:
            raise FileNotFoundError(f"rank 0 sees no {unseen} in {aside}: do all hosts share it?")
        aside.rename(aside.with_name(aside.name.replace("unfinished", "step")))
        for old in sorted(aside.parent.glob(COMPLETE))[:-2]:
            shutil.rmtree(old.parent)


@record  # torchrun then shows which rank raised what
def main():
    args, signals = flags(), []
    for number in (signal.SIGTERM, signal.SIGUSR1):  # the scheduler's warnings
        signal.signal(number, lambda number, frame: signals.append(number))
    gpu, backend = (True, "nccl") if torch.cuda.is_available() else (False, "gloo")
    device = torch.device(f"cuda:{dist.get_node_local_rank()}" if gpu else "cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(backend, device_id=device if gpu else None, timeout=TIMEOUT)
    writers = dist.new_group(backend="gloo", timeout=SAVING)  # on which saves in the background
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.all_gather_object(everyones := [None] * world, vars(args) | {"checkpoints": None})
    if other := next((each for each in everyones if each != everyones[0]), None):
        raise ValueError(f"flags differ: {everyones[0]} on rank 0, {other} on another")
    torch.manual_seed(SEED)
    model = GPT(recompute=args.recompute).to(device)
    for block in model.blocks if args.compile else ():
        block.forward = torch.compile(block.forward)  # one graph for all blocks
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)  # sends rank 0's weights
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    newest, first = [None, *sorted(args.checkpoints.glob(COMPLETE))][-1:], 1
    dist.broadcast_object_list(newest)  # rank 0 decides: on a shared disk others may see less
    if newest[0]:
        weights, moments = states.get_state_dict(model, optimizer)  # this rank's parts: loaded
        state = {"model": weights, "optimizer": moments, "step": 0}  # in place, whoever saved them
        dcp.load(state, checkpoint_id=newest[0].parent)
        states.set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        first = state["step"] + 1
    logged, clock, stop, saving = first - 1, time.perf_counter(), False, None
    for step, ids in zip(range(first, args.steps + 1), batches(first, args.batch), strict=False):
        torch.manual_seed(step * world + rank)  # after the loader, which draws too: for dropout
        total = torch.zeros(2, device=device)
        for part, few in enumerate(ids.to(device, non_blocking=True).chunk(args.accumulate), 1):
            model.require_backward_grad_sync = part == args.accumulate  # as model.no_sync() does
            with torch.autocast(device.type, PRECISION, enabled=PRECISION.itemsize < 4):
                loss = model(few) / args.accumulate
            loss.backward()
            total[0] += loss.detach() / world
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        for group in optimizer.param_groups:
            group["lr"] = LR * min(step / WARM_UP, 1 - 0.9 * step / args.steps)  # up, then down
        optimizer.step()
        optimizer.zero_grad()
        if step % LOG_EVERY == 0:
            total[1] = len(signals)  # their sum, and so when to stop, is the same on all
            dist.all_reduce(total)
            mean, stop = total.tolist()
            speed = (step - logged) * args.batch * CONTEXT / (time.perf_counter() - clock)
            logged, clock = step, time.perf_counter()
            line = f"step {step}: loss {mean:.4f}, gradient norm {norm:.4f}, {speed:,.0f} tokens/s"
            if rank == 0:
                print(f"{line}, {torch.cuda.max_memory_allocated() / 1e9:.2f} GB", flush=True)
        due = stop or step % SAVE_EVERY == 0 or step == args.steps
        if saving and (due or saving[0].done()):
            saving = finish(*saving)
        if due:
            weights, moments = states.get_state_dict(model, optimizer)
            aside = args.checkpoints / f"unfinished-{step:08}"
            state = {"model": weights, "optimizer": moments, "step": step}
            saving = dcp.async_save(state, checkpoint_id=aside, process_group=writers), aside
        if stop:
            break
    if saving:
        finish(*saving)
    del model  # its reducer must not outlive the group, or Gloo can deadlock at exit
    dist.destroy_process_group()  # not after an exception: it would wait for the others
    return 143 if stop and step < args.steps else 0  # with 0 an operator would call the job done


if __name__ == "__main__":
    raise SystemExit(main())
