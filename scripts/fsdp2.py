"""A small GPT under FSDP2, on GPUs or CPUs, in plain PyTorch from 2.11 on. Start it or resume it by
torchrun --nproc-per-node 8 scripts/fsdp2.py; to make it yours, edit GPT, batches, constants."""

import argparse
import shutil
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler

CONTEXT, SEED, LOG_EVERY, SAVE_EVERY = 64, 0, 10, 100
PRECISION = torch.bfloat16  # of the arithmetic; weights, gradients and moments are float32


class GPT(nn.Module):
    def __init__(self, width=64, heads=4, layers=2, dropout=0.0):
        super().__init__()
        self.token, self.position = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        how = {"dropout": dropout, "batch_first": True, "norm_first": True}
        blocks = [nn.TransformerEncoderLayer(width, heads, 4 * width, **how) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256))

    def forward(self, ids):
        x = self.token(ids[:, :-1]) + self.position.weight
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, device=x.device)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1).float(), ids[:, 1:].flatten())


def batches(step, batch):
    """This rank's part of each batch from `step` on: windows of CONTEXT bytes and the next one."""
    text = bytearray("".join(topics[name] for name in sorted(topics)), "utf-8")
    windows = torch.frombuffer(text, dtype=torch.uint8).long().unfold(0, CONTEXT + 1, CONTEXT)
    sampler = DistributedSampler(windows, seed=SEED, drop_last=True)
    per_rank, per_epoch = batch // dist.get_world_size(), len(windows) // batch
    while True:
        epoch, done = divmod(step, per_epoch)
        sampler.set_epoch(epoch)  # without it every epoch has the order of the first
        rest = list(sampler)[done * per_rank : per_epoch * per_rank]  # resumes in mid-epoch
        yield from DataLoader(windows, per_rank, sampler=rest, pin_memory=torch.cuda.is_available())
        step += per_epoch - done


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64, help="windows in a step, over all ranks")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches in a step")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    args = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{dist.get_node_local_rank()}" if gpu else "cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None)
    rank, world = dist.get_rank(), dist.get_world_size()
    if args.batch % (world * args.accumulate):
        raise ValueError(f"--batch {args.batch} is no multiple of {world} x {args.accumulate}")
    with torch.device("meta"):  # no memory yet
        model = GPT()
    policy = MixedPrecisionPolicy(param_dtype=PRECISION, reduce_dtype=torch.float32)
    mesh = init_device_mesh(device.type, (world,))  # HSDP: (nodes, GPUs of a node)
    for module in [*model.blocks, model]:  # the root last, with what no block holds
        fully_shard(module, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)  # memory for this rank's shards
    torch.manual_seed(SEED)
    full_state = GPT().state_dict() if rank == 0 else {}  # or trained weights from a file
    how = states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    states.set_model_state_dict(model, full_state, options=how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # after sharding

    newest = [max(args.checkpoints.glob("step-*"), default=None)]
    dist.broadcast_object_list(newest)  # rank 0 decides: on a shared disk others may see less
    state = {"step": 0}
    if newest[0]:
        weights, moments = states.get_state_dict(model, optimizer)  # this rank's parts: loaded
        state = {"model": weights, "optimizer": moments, "step": 0}  # in place, whoever saved them
        dcp.load(state, checkpoint_id=newest[0])
        states.set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    data = batches(state["step"], args.batch)
    for step in range(state["step"] + 1, args.steps + 1):
        total = torch.zeros((), device=device)
        windows = next(data).to(device, non_blocking=True)
        torch.manual_seed(step * world + rank)  # after the loader, which draws too: for dropout
        for part, ids in enumerate(windows.chunk(args.accumulate), 1):
            model.set_requires_gradient_sync(part == args.accumulate)  # full gradients until then
            loss = model(ids) / args.accumulate
            loss.backward()
            total += loss.detach() / world
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)  # every rank has added its part of the mean
        if rank == 0 and step % LOG_EVERY == 0:
            print(f"step {step}: loss {total:.4f}, gradient norm {norm:.4f}", flush=True)
        if step % SAVE_EVERY == 0 or step == args.steps:
            weights, moments = states.get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments, "step": step}
            aside = args.checkpoints / f"unfinished-{step:08}"
            dcp.save(state, checkpoint_id=aside)  # returns when every rank has written
            if rank == 0:
                aside.rename(args.checkpoints / f"step-{step:08}")
                for old in sorted(args.checkpoints.glob("step-*"))[:-2]:
                    shutil.rmtree(old)
            dist.barrier()
    dist.destroy_process_group()  # not after an exception: it would wait for the others


if __name__ == "__main__":
    main()
