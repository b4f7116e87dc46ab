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

from stratagem.collectives.base import Collectives
from stratagem.collectives.local import LocalCollectives

DEADLINE_S = 120


class GlooCollectives(Collectives):
    """Enough of a gloo group for checkpoints; `process_group` stays None, as under other engines."""

    def __init__(self, rank, world_size):
        self.rank = self.local_rank = rank
        self.node_rank = 0
        self.world_size = world_size
        self.device = torch.device("cpu")

    def all_reduce(self, tensor, op="mean"):
        raise NotImplementedError

    def all_gather(self, tensor, sync_grads=False):
        raise NotImplementedError

    def broadcast(self, value, src=0):
        box = [value]
        dist.broadcast_object_list(box, src)
        return box[0]

    def gather_objects(self, value):
        gathered = [None] * self.world_size
        dist.all_gather_object(gathered, value)
        return gathered

    def barrier(self, name=None):
        dist.barrier()


def run_rank(function, rank, request):
    torch.set_num_threads(1)
    world_size = request["world_size"]
    collectives = LocalCollectives(torch.device("cpu"))
    if world_size > 1:
        store = dist.FileStore(os.path.join(request["folder"], "store"), world_size)
        timeout = timedelta(seconds=60)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
        collectives = GlooCollectives(rank, world_size)
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
