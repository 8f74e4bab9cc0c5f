#!/bin/bash
# Several nodes under Slurm:  sbatch scripts/slurm.sh
# To edit: the #SBATCH lines that say "edit", the interface, the environment, the last lines.
#SBATCH --job-name=train
#SBATCH --nodes=2                 # edit
#SBATCH --ntasks-per-node=1       # one torchrun on each node; it starts a rank for each GPU
#SBATCH --gpus-per-node=8         # edit
#SBATCH --cpus-per-task=64        # edit: all ranks of a node share them
#SBATCH --time=04:00:00           # edit
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append        # after a requeue the log goes on
#SBATCH --requeue
#SBATCH --signal=B:USR1@300       # 300 s before the end, to this shell alone
set -euo pipefail

cd "$SLURM_SUBMIT_DIR" # edit: on a disk that all nodes share, with scripts/ and checkpoints/
# shellcheck source=/dev/null
source .venv/bin/activate # edit

# torchrun on the first node knows itself by this name
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
port=$((20000 + SLURM_JOB_ID % 10000)) # two jobs on one node meet on different ports
export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0 # edit: see `ip address`
export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET # once: NET/IB (RDMA), not NET/Socket (TCP)
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / SLURM_GPUS_ON_NODE))
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # no dead ranks' addresses in the store
export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGUSR1 # torchrun hands these on to its ranks ...
export PET_SHUTDOWN_TIMEOUT=240                     # ... and lets them save for so long

# The time is up: the ranks save and end, and the job goes back into the queue, to resume.
trap 'kill -USR1 $!; wait $! || true; scontrol requeue "$SLURM_JOB_ID"' USR1

srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun \
    --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "$SLURM_GPUS_ON_NODE" \
    --max-restarts 3 \
    --rdzv-id "$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" \
    --rdzv-backend c10d --rdzv-endpoint "$head:$port" \
    scripts/fsdp2.py --steps 100000 --batch 1024 & # edit
wait $! # in the background, so that the shell hears the signal at once
