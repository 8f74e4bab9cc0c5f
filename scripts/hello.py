"""Data-parallel training, complete: torchrun --nproc-per-node 2 scripts/hello.py"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")  # torchrun's two processes meet here
torch.manual_seed(dist.get_rank())  # each draws data of its own
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    x = torch.randn(32, 8)
    loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
weight = model.module.weight[0, 0].item()
print(f"process {dist.get_rank()}: loss {loss.item():.6f}, first weight {weight:.6f}")
dist.destroy_process_group()
