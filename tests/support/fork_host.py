"""A process that has imported torch once and forks ranks on request; run by the fixture `ranks`.

Forking from the test process would inherit whatever threads earlier tests have started.
"""

import importlib.util
import json
import os
import pickle
import signal
import sys
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.tensor
import torch.distributed.tensor.parallel

from stratagem.collectives.group import GroupCollectives
from stratagem.collectives.local import LocalCollectives

DEADLINE_S = 120


class GlooCollectives(GroupCollectives):
    """A gloo group; `process_group` is None, as under other engines."""

    @property
    def process_group(self):
        return None


def run_rank(function, rank, request):
    torch.set_num_threads(1)
    world_size = request["world_size"]
    collectives = LocalCollectives(torch.device("cpu"))
    if world_size > 1:
        store = dist.FileStore(os.path.join(request["folder"], "store"), world_size)
        timeout = timedelta(seconds=60)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
        collectives = GlooCollectives(dist.group.WORLD, torch.device("cpu"), local_rank=rank)
    result = function(collectives, **request["arguments"])
    if world_size > 1:
        dist.barrier()
        dist.destroy_process_group()
    return result


def fork_rank(function, rank, request):
    pid = os.fork()
    if pid:
        return pid
    os.dup2(2, 1)
    code = 0
    try:
        outcome = run_rank(function, rank, request)
    except BaseException:
        code, outcome = 1, traceback.format_exc()
    with open(os.path.join(request["folder"], f"result-{rank}"), "wb") as stream:
        pickle.dump(outcome, stream)
    os._exit(code)


def wait(pids):
    codes = [None] * len(pids)
    deadline = time.monotonic() + DEADLINE_S
    while None in codes:
        for rank, pid in enumerate(pids):
            if codes[rank] is None:
                done, status = os.waitpid(pid, os.WNOHANG)
                codes[rank] = os.waitstatus_to_exitcode(status) if done else None
                if not done and time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    return codes


def main():
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    modules = {}
    for line in sys.stdin:
        request = json.loads(line)
        file = request["file"]
        if file not in modules:
            spec = importlib.util.spec_from_file_location(f"ranks_{len(modules)}", file)
            modules[file] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(modules[file])
        function = getattr(modules[file], request["function"])
        codes = wait([fork_rank(function, rank, request) for rank in range(request["world_size"])])
        print(json.dumps(codes), file=replies, flush=True)


if __name__ == "__main__":
    main()
