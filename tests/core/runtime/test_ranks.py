"""What a live `Runtime` says of its process, and how it reaches the others."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

import stratagem


def look(runtime: Any, folder: str) -> dict[str, Any]:
    with runtime.rank_zero_first(), (Path(folder) / "order").open("a") as file:
        file.write(f"{runtime.rank}\n")
    out = io.StringIO()
    with redirect_stdout(out):
        runtime.print("said once")
    said = runtime.collectives.gather_objects(out.getvalue())
    if runtime.rank == 1:
        runtime.barrier("at the end")
        return {}
    found = {
        "first": (runtime.rank, runtime.global_rank, runtime.local_rank, runtime.data_rank),
        "of": (runtime.world_size, runtime.data_ranks),
        "is_main": (runtime.is_main, runtime.is_global_zero),
        "said": said,
    }
    runtime.barrier("at the end")
    return found


def talk(runtime: Any) -> Any:
    own = {"a": float(runtime.rank), "b": [runtime.rank + 10.0], "c": torch.ones(2) * runtime.rank}
    summed, gathered = runtime.all_reduce(own, "sum"), runtime.all_gather(own)
    return (
        float(summed["a"]),
        float(summed["b"][0]),
        gathered["a"].tolist(),
        gathered["c"].tolist(),
        runtime.broadcast(runtime.rank, src=1),
    )


def look_and_talk(runtime: Any, folder: str) -> Any:
    return look(runtime, folder), talk(runtime)


def test_each_process_knows_which_it_is_and_reaches_the_others(tmp_path: Path) -> None:
    runtime = stratagem.Runtime("ddp_fork", accelerator="cpu", devices=2)
    found, reported = runtime.launch(look_and_talk, str(tmp_path), quiet=True)
    assert found.pop("said") == ["said once\n", ""]
    assert found == {"first": (0, 0, 0, 0), "of": (2, 2), "is_main": (True, True)}
    assert (tmp_path / "order").read_text() == "0\n1\n"
    assert reported == (1.0, 21.0, [0.0, 1.0], [[0.0, 0.0], [1.0, 1.0]], 1)
