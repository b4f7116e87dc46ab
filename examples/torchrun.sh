#!/usr/bin/env bash
# Processes that torchrun has started. On this machine alone:
#
#   bash examples/torchrun.sh
#
# On two machines, run on each, with the name of the first:
#
#   NODES=2 MASTER=node0:29400 bash examples/torchrun.sh
#
# What is given behind it goes to `stratagem fit`.
set -euo pipefail
NODES=${NODES:-1} PROCESSES=${PROCESSES:-2}

torchrun --nnodes "$NODES" --nproc-per-node "$PROCESSES" --rdzv-backend c10d --rdzv-endpoint "${MASTER:-localhost:0}" \
    --module stratagem fit "$(dirname "$0")/digits.py:Digits" --max-epochs 10 \
    --strategy ddp --num-nodes "$NODES" --run-dir "runs/torchrun" "$@"
