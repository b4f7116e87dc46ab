"""Runs that fail while they open, each followed by one that works, all in one process; for test_session.

Started alone, or by torchrun; each process prints what it saw as one line of JSON.
"""

import json
import os
from typing import Any

import torch.distributed as dist
from small import Line
from stratagem_cpu.accelerator import CpuAccelerator
from stratagem_ddp import DDPStrategy

import stratagem


class Broken(Exception):
    """What the planned failure raises."""


class Counted(DDPStrategy):
    """Counts how often its environment was set up and undone; fails where it has to."""

    fails_in = ""
    depth = 0

    def setup_environment(self) -> None:
        super().setup_environment()
        self.depth += 1

    def teardown(self) -> None:
        super().teardown()
        self.depth -= 1

    def open_collectives(self, request: Any) -> Any:
        opened = super().open_collectives(request)
        if self.fails_in == "open_collectives":
            raise Broken
        return opened


class FailingAccelerator(CpuAccelerator):
    def set_up(self, device: Any) -> None:
        raise Broken


class Fails:
    """Wraps every hook of a session and raises after one of them."""

    def __init__(self, hook: str, only_rank: int | None = None) -> None:
        self.hook, self.only_rank = hook, only_rank

    def _pass(self, hook: str, answer: Any) -> Any:
        if hook == self.hook and self.only_rank in (None, int(os.environ.get("RANK", "0"))):
            raise Broken
        return answer

    @stratagem.hookimpl(wrapper=True)
    def reduce(self, request: Any) -> Any:
        return self._pass("reduce", (yield))

    @stratagem.hookimpl(wrapper=True)
    def precision(self, request: Any) -> Any:
        return self._pass("precision", (yield))

    @stratagem.hookimpl(wrapper=True)
    def checkpoint(self, request: Any) -> Any:
        return self._pass("checkpoint", (yield))

    @stratagem.hookimpl(wrapper=True)
    def setup(self, request: Any) -> Any:
        return self._pass("setup", (yield))


class OtherDigest(stratagem.CollectivesWrapper):
    def gather_objects(self, value: Any) -> Any:
        first, *others = super().gather_objects(value)
        return [first, *others, ("other", {"strategy": "else"})]


class Disagrees:
    @stratagem.hookimpl(wrapper=True)
    def reduce(self, request: Any) -> Any:
        return OtherDigest((yield))


def use(runtime: Any, raises: bool = False) -> Any:
    runtime.setup(Line())
    if raises:
        raise Broken
    return runtime.broadcast(runtime.rank + 7)


def attempt(
    strategy: Any, devices: int, plugins: Any = (), raises: bool = False, accelerator: Any = None
) -> str:
    strategy.accelerator = accelerator
    runtime = stratagem.Runtime(strategy, accelerator="cpu", devices=devices, plugins=plugins)
    try:
        return str(runtime.launch(use, raises, quiet=True))
    except Exception as error:
        return type(error).__name__


def is_live(strategy: Any) -> bool:
    try:
        return bool(strategy.collectives)
    except stratagem.StratagemError:
        return False


def main() -> None:
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    seen = {}
    strategy = Counted(timeout_s=20)
    cases: dict[str, Any] = {
        "accelerator": {"accelerator": FailingAccelerator()},
        "open_collectives": {},
        "digest": {"plugins": [Disagrees()]},
        **{hook: {"plugins": [Fails(hook)]} for hook in ("reduce", "precision", "checkpoint", "setup")},
        "function": {"raises": True},
    }
    if world_size > 1:
        cases["one rank"] = {"plugins": [Fails("precision", only_rank=1)]}
    for name, how in cases.items():
        strategy.fails_in = name
        failed = attempt(strategy, devices=world_size, **how)
        left = [dist.is_initialized(), strategy.depth, is_live(strategy)]
        strategy.fails_in = ""
        seen[name] = [failed, left, attempt(strategy, devices=world_size)]
    seen["at the end"] = [dist.is_initialized(), strategy.depth]
    print(json.dumps(seen) + "\n", end="", flush=True)


if __name__ == "__main__":
    main()
