"""What two ranks read of a checkpoint that is in no cache: python tests/benchmarks/reads_per_node.py [FOLDER]

Under ddp each rank asks for all of it; `read_bytes` of /proc/self/io is what the disk gave. FOLDER is on a disk.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

import stratagem


def load(runtime: Any, path: str, is_there: bool) -> list[dict[str, int]] | None:
    """Save, or drop the files from the page cache and load; return what each rank read in bytes."""
    runtime.setup(nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]))
    if not is_there:
        runtime.save(path)
        return None
    if runtime.is_main:
        for file in Path(path).iterdir():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
    runtime.barrier("dropped")
    before = counters()
    runtime.load(path)
    after = counters()
    return runtime.collectives.gather_objects({name: after[name] - before[name] for name in after})


def counters() -> dict[str, int]:
    """Bytes that this process has asked for, and those that came from a disk."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return {name: int(lines[name]) for name in ("rchar", "read_bytes")}


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        path = os.path.join(folder, "checkpoint")
        for is_there in (False, True):
            runtime = stratagem.Runtime(strategy="ddp", accelerator="cpu", devices=2)
            ranks = runtime.launch(load, path, is_there, quiet=True)
        size = sum(file.stat().st_size for file in Path(path).iterdir())
    for rank, read in enumerate(ranks):
        print(
            f"rank {rank} read {read['rchar'] / size:.2f} of it, {read['read_bytes'] / size:.2f} from the disk"
        )
    print(
        f"together {sum(read['read_bytes'] for read in ranks) / size:.2f} from the disk, of {size / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    main()
