"""Checks for every launcher."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from stratagem import Environment, LaunchPlan, ProcessGroupCollectives, Task
from stratagem.errors import ConfigError, UsageError, WorkerError
from stratagem.sdk.catalogue import load_catalogue
from stratagem.sdk.selection import choose_environment
from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.parts.subject import LauncherSubject

SOON_S = 200.0
"""How long a rank waits for another one; less than the timeout of a task."""
FOREVER_S = 3600.0
"""How long a rank runs if nothing ends it; more than the timeout of a task."""


def _launch(subject: LauncherSubject, function: Any, *args: Any) -> tuple[Any, BaseException | None]:
    """Launch in a separate process; return the value and the error."""
    plan = LaunchPlan(processes_per_node=2, start_method=subject.start_method)
    launcher = subject.load()(plan)
    try:
        value = launcher.launch(Task(function, (launcher.worker_environment, *args)))
    except (UsageError, WorkerError) as error:
        return None, error
    return value, None


def _in_process(subject: LauncherSubject) -> bool:
    return bool(
        subject.load()(LaunchPlan(processes_per_node=2, start_method=subject.start_method)).in_process
    )


def _refuse_in_process(subject: LauncherSubject) -> None:
    if _in_process(subject):
        raise NotApplicable("it runs in the calling process")


@check(world_sizes=(1,))
def check_runs_every_rank(subject: LauncherSubject) -> None:
    """The task runs once in every rank, which finds its rank and world size. Rank 0's value is returned."""
    if _in_process(subject):
        value, error = subject.alone(_launch, _value)
        expect(error is None and value == ("value", 0), f"the task's value is returned as {value!r}")
        return
    value, error = subject.alone(_launch, _note_rank, subject.folder)
    expect(error is None, f"launching fails: {error}")
    expect(value == "rank 0 of 2", f"rank 0's value is returned as {value!r}")
    ran = sorted(path.read_text() for path in Path(subject.folder).iterdir())
    expect(ran == ["rank 0 of 2", "rank 1 of 2"], f"the task ran as {ran}")


def _value(environment: str | None) -> tuple[str, int]:
    return "value", 0


def _note_rank(environment: str | None, folder: str) -> str:
    place = choose_environment(load_catalogue(), environment or "auto", os.environ).value
    text = f"rank {place.global_rank} of {place.world_size}"
    Path(folder, f"{os.getpid()}").write_text(text)
    return text


@check(world_sizes=(1,))
def check_tells_errors(subject: LauncherSubject) -> None:
    """A rank's exception ends all ranks, and is reported with rank and traceback. UsageErrors aren't wrapped."""
    _refuse_in_process(subject)
    _, error = subject.alone(_launch, _fail)
    expect(isinstance(error, WorkerError), f"a rank's exception is raised as {error!r}")
    assert isinstance(error, WorkerError)
    expect(error.rank == 1, f"rank 1 raised, but rank {error.rank} is named")
    expect("cursed" in str(error) + error.traceback, f"the error lacks the rank's exception: {error}")
    _, error = subject.alone(_launch, _refuse)
    expect(type(error) is ConfigError, f"a rank's ConfigError is raised as {error!r}")


def _rank(environment: str | None) -> int:
    place: Environment = choose_environment(load_catalogue(), environment or "auto", os.environ).value
    return place.global_rank


def _fail(environment: str | None) -> None:
    if _rank(environment) == 1:
        raise ArithmeticError("cursed")
    time.sleep(FOREVER_S)


def _refuse(environment: str | None) -> None:
    raise ConfigError("this is not available")


@check(world_sizes=(1,))
def check_notices_the_dead(subject: LauncherSubject) -> None:
    """A rank that was killed by a signal is named, and no other rank is left running."""
    _refuse_in_process(subject)
    _, error = subject.alone(_launch, _die, subject.folder)
    expect(isinstance(error, WorkerError), f"a killed rank is reported as {error!r}")
    assert isinstance(error, WorkerError)
    expect(error.rank == 1, f"rank 1 was killed, but rank {error.rank} is named")
    time.sleep(1)
    left = [path.name for path in Path(subject.folder).iterdir() if _runs(int(path.name))]
    expect(not left, f"{len(left)} workers are still running")


def _die(environment: str | None, folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    if _rank(environment) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(FOREVER_S)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


@check(world_sizes=(1,))
def check_keeps_data_apart(subject: LauncherSubject) -> None:
    """Tensors that share memory share it in each rank, too, but not with other ranks or the caller."""
    _refuse_in_process(subject)
    found, error = subject.alone(_launch_data, subject.folder)
    expect(error is None, f"launching with tensors fails: {error}")
    expect(found != "apart", "two views of the same memory no longer share it")
    expect(found == "kept", f"after another rank's write, a rank reads {found}")


def _launch_data(subject: LauncherSubject, folder: str) -> tuple[Any, BaseException | None]:
    whole = torch.zeros(100_000)
    return _launch(subject, _write_in_turn, [whole, whole[50_000:]], folder)


def _write_in_turn(environment: str | None, views: list[torch.Tensor], folder: str) -> str:
    """Return on rank 0, after rank 1 has written: "kept", "apart", or the value that rank 0 reads."""
    whole, half = views
    written = Path(folder, "written")
    if _rank(environment) == 1:
        whole.fill_(1)
        written.touch()
        return ""
    deadline = time.monotonic() + SOON_S
    while not written.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    if half.any():
        return str(float(half.max()))
    whole.fill_(2)
    return "kept" if bool((half == 2).all()) else "apart"


@check(world_sizes=(1,))
def check_listens_for_itself(subject: LauncherSubject) -> None:
    """On one node, neither the launching process nor a rank listens on an address that other machines can reach."""
    _refuse_in_process(subject)
    if not Path("/proc/net/tcp").exists():
        raise NotApplicable("this system doesn't list the addresses on which processes listen")
    found, error = subject.alone(_launch_known, _listening)
    expect(error is None, f"launching fails: {error}")
    expect(not found, f"sockets listen on {', '.join(found or [])}: bind what ranks need to the loopback")


def _launch_known(subject: LauncherSubject, function: Any) -> tuple[Any, BaseException | None]:
    return _launch(subject, function, os.getpid())


def _listening(environment: str | None, launcher: int) -> list[str]:
    """Open the ranks' group; return the addresses other than loopback on which the launcher and this rank listen."""
    place = choose_environment(load_catalogue(), environment or "auto", os.environ).value
    group = ProcessGroupCollectives(place, torch.device("cpu"), "gloo", timedelta(seconds=SOON_S))
    owned = set()
    for process in (launcher, os.getpid()):
        for handle in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):  # the descriptor was closed meanwhile
                owned.add(os.readlink(handle))
    found = [address for address, socket in _reached_from_elsewhere() if socket in owned]
    group.close()
    return found


def _reached_from_elsewhere() -> Iterator[tuple[str, str]]:
    """Yield address and descriptor of each socket that listens on other addresses than loopback."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:] if Path(table).exists() else ():
            _, local, _, state, *_, inode = line.split()[:10]
            is_loopback = local.split(":")[0].endswith(("7F", "0" * 23 + "1000000"))
            if state == "0A" and not is_loopback:
                yield local, f"socket:[{inode}]"
