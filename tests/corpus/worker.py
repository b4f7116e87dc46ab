"""`python -m tests.corpus.worker MODULE FOLDER FORM…`: run a module's programs in this process, one after another.

Started by torchrun for two ranks. Programs share the process, so that it is started once.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from pathlib import Path
from typing import get_args

import torch
import torch.distributed as dist

from tests.corpus.bug import Case, Form


def main(module: str, folder: str, forms: list[str]) -> None:
    """Run all programs that have this number of ranks."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        dist.init_process_group("gloo")
    for bug in importlib.import_module(f"tests.corpus.{module}").BUGS:
        for form in (each for each in get_args(Form) if each in forms):
            alone = form in ("reference", "rounding")
            if world_size == (1 if alone else bug.world_size):
                bug.program(Case(Path(folder) / bug.name / form, form, rank, world_size))
    if world_size > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
    # A thread of gloo that still runs while Python ends aborts the process now and then; all is written.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
