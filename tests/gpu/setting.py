"""On what a measurement runs, and how its result gets to who started it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stratagem import Accelerator
from stratagem.sdk.catalogue import load_catalogue


@dataclass(frozen=True)
class Setting:
    """The device, and how large its models are."""

    accelerator: str

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU, for which the models are large."""
        return self.accelerator == "cuda"

    @property
    def has_memory(self) -> bool:
        """Whether the device has streams, and memory of its own with statistics and a limit."""
        return self.accelerator != "cpu"

    @property
    def device(self) -> torch.device:
        """The first one."""
        accelerator: Accelerator = load_catalogue().find("accelerator", self.accelerator).load()()
        return accelerator.device(0)

    @property
    def sizes(self) -> tuple[str, str]:
        """Names of a small and of a large model, by what the device can do."""
        return ("gpt2-124m", "llama-1b") if self.is_cuda else ("gpt2-small", "llama-small")


def main(measure: Callable[[Setting], dict[str, Any] | Iterator[dict[str, Any]]]) -> None:
    """Take a measurement from the command line, and write what it found as JSON.

    One that yields is written each time, so that what it had found by then is kept when its time is over.
    """
    parser = argparse.ArgumentParser(description=measure.__doc__)
    parser.add_argument("--accelerator", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write the result there, in place of printing it")
    chosen = parser.parse_args()
    results = measure(Setting(chosen.accelerator))
    for found in results if isinstance(results, Iterator) else [results]:
        text = json.dumps(found, indent=1)
        if chosen.json:
            chosen.json.write_text(text, encoding="utf-8")
        else:
            print(text)
