"""Checks and measurements on a machine with a GPU, in nine minutes: make gpu

Needs torch there, and nothing else: `.gpu/site` (tests/gpu/bundle.py) has the rest. Checks run side by side, and then
each measurement alone. What each found goes into docs/gen/gpu.json; docs/gen/gpu.py makes docs/gpu.md of it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stratagem.sdk.catalogue import load_catalogue
from tests.gpu.unfit import failures_of, unfit_on

ROOT = Path(__file__).parents[2]
KIT = (
    "single",
    "ddp",
    "fsdp",
    "ddp_fully_sharded",
    "ddp_sharded",
    "model_parallel",
    "bagua",
    "deepspeed_stage_2",
)
OWN_LOOPS = ("ddp", "fsdp", "ddp_fully_sharded", "ddp_sharded", "model_parallel", "bagua")


REHEARSED = 5
"""So many times as long may it take without a GPU."""


@dataclass(frozen=True)
class Work:
    """A command, and where it leaves what it found."""

    name: str
    command: Sequence[str]
    """A module and its arguments; `{json}` stands for the file that it writes. Without one, its output is kept."""
    limit_s: int
    shares_cores: bool = False
    """Whether it runs beside others, with one thread for each process."""


def checks(accelerator: str, jobs: int) -> list[Work]:
    """Return what can run beside other work."""
    on, kit = ("--accelerator", accelerator), ("--json", "-j", str(jobs))
    commands = {
        "marked tests": ("pytest", "-m", "cuda", "-q", "plugins/cuda", "plugins/report"),
        "equal": ("tests.gpu.equal", *on, "--json", "{json}"),
        "engines": ("tests.gpu.engines", *on, "--json", "{json}"),
        "parity": ("tests.parity.run", "--columns", "single", "--json", "{json}"),
        **{
            f"own loops {name}": ("tests.support.hands_on", name, "--devices", "1", "--json", "{json}")
            for name in OWN_LOOPS
        },
        **{f"kit {name}": ("stratagem", "conformance", name, *on, *kit) for name in tried_on(accelerator)},
    }
    return [Work(name, command, 200, shares_cores=True) for name, command in commands.items()]


def tried_on(accelerator: str) -> list[str]:
    """Return the strategies of `KIT` that say they run on an accelerator."""
    catalogue = load_catalogue()
    allowed = {name: catalogue.find("strategy", name).capabilities.accelerators for name in KIT}
    return [name for name, accelerators in allowed.items() if {"*", accelerator} & set(accelerators)]


def measurements(accelerator: str) -> list[Work]:
    """Return what has to run alone."""
    limits_s = {
        "waits": 60,
        "memory": 60,
        "activations": 100,
        "speed": 200,
        "compiled": 100,
        "float8": 80,
        "saves": 150,
    }
    return [
        Work(name, (f"tests.gpu.{name}", "--accelerator", accelerator, "--json", "{json}"), limit_s)
        for name, limit_s in limits_s.items()
    ]


def do(work: Work, folder: Path, accelerator: str) -> dict[str, Any]:
    """Run one piece of work; return how it ended and what it found. Raises nothing."""
    file, began = folder / f"{work.name.replace(' ', '-')}.json", time.monotonic()
    command = [sys.executable, "-m", *(each.replace("{json}", str(file)) for each in work.command)]
    environment = {**os.environ, "PARITY_ACCELERATOR": accelerator}
    # Work on sim is done by threads of its own.
    if work.shares_cores or accelerator not in ("cuda", "cpu"):
        environment["OMP_NUM_THREADS"] = "1"
    with (
        open(f"{file}.out", "w+", encoding="utf-8") as output,
        open(f"{file}.err", "w+", encoding="utf-8") as errors,
    ):
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=errors,  # warnings would come within the JSON that is printed
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(
                work.limit_s if accelerator == "cuda" else REHEARSED * work.limit_s
            )
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, 9)
            process.wait()
        output.seek(0)
        errors.seek(0)
        printed, said = output.read(), errors.read()
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else _json_within(printed)
    seconds = round(time.monotonic() - began, 1)
    print(f"{work.name}: {'too long' if code is None else code} after {seconds} s", flush=True)
    if found is not None:
        found = kept_of(work.name, found)
    return {
        "exit": code,
        "seconds": seconds,
        "found": found,
        "said": (printed[-2000:] + said[-2000:]) if code != 0 or found is None else "",
    }


def kept_of(name: str, found: Any) -> Any:
    """Return what the page needs of a result."""
    if name.startswith("own loops"):
        return [{key: cell[key] for key in ("row", "verdict", "sentence")} for cell in found["cells"]]
    if name == "parity":
        keys = ("kind", "verdict", "difference", "sentence")
        return [{key: cell[key] for key in keys} for cell in found["cells"]]
    if name.startswith("kit"):
        (report,) = found
        failures = [check for check in report["checks"] if check["verdict"] == "failed"]
        return {
            **{key: report[key] for key in ("passed", "failed", "skipped")},
            "failures": [{key: check[key] for key in ("check", "reason")} for check in failures],
        }
    return found


def _json_within(said: str) -> Any:
    start = min((index for index in (said.find("\n["), said.find("\n{")) if index >= 0), default=-1)
    text = said if said[:1] in ("[", "{") else said[start + 1 :]
    try:
        return json.loads(text)
    except ValueError:
        return None


def machine(accelerator: str) -> dict[str, Any]:
    """Return what it ran on."""
    facts = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "accelerator": accelerator,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
    }
    if accelerator == "cuda":
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "device": properties.name,
            "devices": torch.cuda.device_count(),
            "memory_bytes": properties.total_memory,
            "cuda": torch.version.cuda,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        }
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accelerator", default="cuda")
    parser.add_argument("--json", type=Path, default=ROOT / "docs" / "gen" / "gpu.json")
    parser.add_argument("--side-by-side", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--jobs", type=int, default=3, help="of one strategy's kit at a time")
    parser.add_argument(
        "--only", nargs="*", help="words, one of which the name of a piece of work begins with"
    )
    chosen = parser.parse_args()
    chosen.json.parent.mkdir(exist_ok=True)
    found: dict[str, Any] = {}
    if chosen.json.exists() and chosen.only:
        found = json.loads(chosen.json.read_text(encoding="utf-8"))["work"]

    def wanted(each: Work) -> bool:
        return not chosen.only or each.name.startswith(tuple(chosen.only))

    def keep() -> None:
        text = json.dumps({"machine": machine(chosen.accelerator), "work": found}, indent=1) + "\n"
        chosen.json.write_text(text, encoding="utf-8")

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(chosen.side_by_side) as pool:
        path = Path(folder)
        for each in filter(wanted, measurements(chosen.accelerator)):
            found[each.name] = do(each, path, chosen.accelerator)
            keep()
        begun = {
            pool.submit(do, each, path, chosen.accelerator): each.name
            for each in filter(wanted, checks(chosen.accelerator, chosen.jobs))
        }
        for done in as_completed(begun):
            found[begun[done]] = done.result()
            keep()
    failed = {name: failures_of(result, chosen.accelerator) for name, result in found.items()}
    for name, failures in failed.items():
        if failures:
            print(f"{name}: {', '.join(failures)}")
    for name, why in unfit_on(chosen.accelerator).items():
        print(f"left out on {chosen.accelerator}: {name}: {why}")
    count = sum(map(bool, failed.values()))
    print(f"{chosen.json}: {len(found)} tasks, {count} failed")
    sys.exit(bool(count))


if __name__ == "__main__":
    main()
