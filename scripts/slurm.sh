#!/bin/bash
# Several nodes under Slurm:  sbatch scripts/slurm.sh
# To edit: the #SBATCH lines that say "edit", the interface, the environment, the last lines.
#SBATCH --job-name=train
#SBATCH --nodes=2                 # edit
#SBATCH --ntasks-per-node=1       # one torchrun on each node; it starts a rank for each GPU
#SBATCH --gpus-per-node=8         # edit
#SBATCH --cpus-per-task=64        # edit: all ranks of a node share them
#SBATCH --exclusive --mem=0       # all of a node and its memory: no other job beside this
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
export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET # first run only: should log NET/IB
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / SLURM_GPUS_ON_NODE))
export TORCH_FR_DUMP_TEMP_FILE="$PWD/logs/$SLURM_JOB_ID/calls_" # of each rank, if it hangs
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # no dead ranks' addresses in the store
export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGUSR1 # torchrun hands these on to its ranks ...
export PET_SHUTDOWN_TIMEOUT=240                     # ... and lets them save for so long

# A GPU whose memory has failed would fail again after every restart: name its node, and stop.
errors="nvidia-smi --query-gpu=ecc.errors.uncorrected.volatile.total --format=csv,noheader"
if srun bash -c "$errors | sed \"s/^/\$HOSTNAME: /\"" | grep ": [1-9]"; then
    echo "GPUs with errors on these nodes: sbatch --exclude=NODES scripts/slurm.sh"
    exit 1
fi

# The time is up: the ranks save and end, and the job goes back into the queue, to resume.
again() { [ "${SLURM_RESTART_COUNT:-0}" -ge 20 ] || scontrol requeue "$SLURM_JOB_ID"; }
trap 'kill -USR1 $!; wait $! || true; again; exit' USR1

srun --label --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun \
    --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "$SLURM_GPUS_ON_NODE" \
    --max-restarts 3 --log-dir "logs/$SLURM_JOB_ID" --redirects 3 --tee 3 \
    --rdzv-id "$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" \
    --rdzv-backend c10d --rdzv-endpoint "$head:$port" \
    scripts/fsdp2.py --steps 100000 --batch 1024 & # edit
wait $! || { again; exit 1; } # in the background, so that the shell hears the signal at once
