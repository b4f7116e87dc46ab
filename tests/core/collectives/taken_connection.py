"""Two ranks, and another user who connects in the place of one: `taken_connection.py FOLDER SECRET`.

gloo knows a peer by a number that it sends first, so a quick process takes its place. The attacker sends
back what it gets, and so knows what a rank may send. Prints what the rank under attack says, or nothing
where the attacker was given no chance.
"""

import contextlib
import os
import select
import socket
import struct
import sys
import time
from datetime import timedelta
from types import SimpleNamespace

import psutil
import torch
from stratagem_launch import loopback_variables

from stratagem.collectives.process_group import ProcessGroupCollectives

NOBODY = 65534
HEAD_START_S, GIVE_UP_S = 0.7, 6.0


def open_group(rank: int, store_file: str, secret: str) -> str:
    """Open the group, and then receive an object, which is unpickled; say how that went."""
    place = SimpleNamespace(
        global_rank=rank,
        local_rank=rank,
        node_rank=0,
        world_size=2,
        store_file=store_file,
        attempt=0,
        run_secret=secret or None,
    )
    try:
        group = ProcessGroupCollectives(place, torch.device("cpu"), "gloo", timedelta(seconds=GIVE_UP_S))
        group.all_reduce(torch.ones(8), "sum")
    except Exception as error:
        return str(error)
    return "all is well"


def late(rank: int, store_file: str, secret: str) -> None:
    """Come to the store in time, and to gloo late."""
    real = torch.distributed.init_process_group

    def slow(*arguments, **how):
        time.sleep(HEAD_START_S)
        return real(*arguments, **how)

    torch.distributed.init_process_group = slow
    open_group(rank, store_file, secret)


def echo(port: int) -> None:
    """Connect first, under each number that a peer could have, and send back whatever comes."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    taken = []
    for number in range(4):
        connection = socket.socket()
        connection.connect(("127.0.0.1", port))
        connection.sendall(struct.pack("<q", number))
        taken.append(connection)
    while True:
        for connection in select.select(taken, [], [])[0]:
            with contextlib.suppress(OSError):
                if content := connection.recv(1 << 16):
                    connection.sendall(content)
                    continue
            taken.remove(connection)


def listening_port(pid: int) -> int:
    deadline = time.monotonic() + GIVE_UP_S
    while time.monotonic() < deadline:
        for connection in psutil.Process(pid).net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                return int(connection.laddr.port)
    raise TimeoutError


def child(work, *arguments) -> int:
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            work(*arguments)
        os._exit(0)
    return pid


def attempt(folder: str, number: int, secret: str) -> str:
    """What the rank that came first says: which of the two gloo lets connect is a matter of their ports."""
    store_file, answer = f"{folder}/store{number}", f"{folder}/answer{number}"

    def early(rank: int) -> None:
        said = open_group(rank, store_file, secret)
        with open(answer, "w") as file:
            file.write(said)

    first = child(early, number % 2)
    children = [first, child(late, 1 - number % 2, store_file, secret)]
    children.append(child(echo, listening_port(first)))
    os.waitpid(first, 0)
    for pid in children[1:]:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    with open(answer) as file:
        return file.read()


def main(folder: str, secret: str) -> None:
    os.environ.update(loopback_variables())
    torch.set_num_threads(1)
    for number in range(12):
        said = attempt(folder, number, secret)
        if said != "all is well":
            print(said)
            return


main(sys.argv[1], sys.argv[2])
