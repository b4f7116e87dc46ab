#!/usr/bin/env bash
# A job of Slurm: two nodes, two tasks on each. Submit it at the top of the repository:
#
#   sbatch examples/slurm.sh
#
# On nodes with GPUs, let each task have one: #SBATCH --gpus-per-task=1, and --accelerator cuda below. What is given
# behind the file's name goes to `stratagem fit`.
#SBATCH --job-name=digits
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --time=00:30:00
#SBATCH --output=%x-%j.out
set -euo pipefail

# srun starts the tasks, and each finds its rank in Slurm's variables. The run's folder is on a disk that all nodes share.
srun stratagem fit examples/digits.py:Digits --max-epochs 10 --strategy ddp --accelerator cpu \
    --num-nodes "$SLURM_NNODES" --devices "$SLURM_NTASKS_PER_NODE" --run-dir "runs/slurm-$SLURM_JOB_ID" "$@"
