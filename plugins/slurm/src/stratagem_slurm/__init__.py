"""The place `slurm`: jobs of a Slurm cluster, by a script that is written here and submitted with sbatch."""
