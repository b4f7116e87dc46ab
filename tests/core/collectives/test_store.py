"""How ranks open their store: threads as ranks of one real store."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from stratagem_clusters import TorchElastic
from torch.distributed import FileStore, HashStore, PrefixStore, TCPStore

from stratagem.collectives import store as store_module
from stratagem.collectives.store import open_store
from stratagem.collectives.stores import free_port, serve_store, store_variables
from stratagem.errors import CollectiveError

SECONDS = timedelta(seconds=20)


@pytest.fixture(autouse=True)
def _first_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_OPENED", Counter())


def environment(
    rank: int, world_size: int, run_id: str = "x", attempt: int = 0, **variables: str
) -> TorchElastic:
    return TorchElastic(
        {
            "TORCHELASTIC_RUN_ID": run_id,
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(world_size),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
            **variables,
        }
    )


def test_a_process_alone_needs_no_port() -> None:
    first, second = (open_store(environment(0, 1, MASTER_PORT="1"), SECONDS) for _ in range(2))
    assert isinstance(first, HashStore)
    first.set("key", "value")
    assert first.get("key") == b"value"
    assert not second.check(["key"])


@pytest.mark.parametrize("is_served", [False, True])
def test_all_that_come_see_what_the_others_write(is_served: bool) -> None:
    served = serve_store("127.0.0.1", 0) if is_served else None
    port = free_port() if served is None else served.port

    def come_as_rank_1() -> None:
        other.append(TCPStore("127.0.0.1", port, is_master=False, timeout=SECONDS, wait_for_workers=False))
        PrefixStore("attempt0/group0", other[0]).set("here/1", "")

    other: list[Any] = []
    thread = threading.Thread(target=come_as_rank_1)
    thread.start()
    variables = {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": str(is_served)}
    store = open_store(environment(0, 2, **variables), SECONDS)
    thread.join(120)
    PrefixStore("attempt0/group0", other[0]).set("key", "from 1")
    assert store.get("key") == b"from 1"
    assert store.get("here/0") == socket.gethostname().encode()
    assert store.timeout == SECONDS


def in_file(folder: Any, attempt: int = 0, timeout: timedelta = SECONDS) -> Any:
    """The store of rank 0 of 2, in a file."""
    return open_store(environment(0, 2, attempt=attempt, **store_variables(str(folder), "x", 0)), timeout)


def test_neither_the_next_group_nor_the_next_attempt_reads_what_was_there(tmp_path: Any) -> None:
    (path,) = store_variables(str(tmp_path), "x", 0).values()
    file = FileStore(path)
    for place in ("attempt0/group0", "attempt0/group1", "attempt1/group0"):
        PrefixStore(place, file).set("here/1", "")
    first, second, later = in_file(tmp_path), in_file(tmp_path), in_file(tmp_path, attempt=1)
    first.set("key", "first")
    assert (second.check(["key"]), later.check(["key"])) == (False, False)
    assert PrefixStore("attempt0/group0", file).get("key") == b"first"
    with pytest.raises(CollectiveError, match="rank 1 never came"):
        in_file(tmp_path, timeout=timedelta(seconds=0.5))


def test_ranks_that_never_come_are_named() -> None:
    with pytest.raises(CollectiveError) as caught:
        open_store(environment(0, 3), timedelta(seconds=0.6))
    assert str(caught.value) == "rank 0 of 3 waited 1 s, and rank 1, 2 never came"


def test_a_store_without_a_server_is_named() -> None:
    port = free_port()
    with pytest.raises(CollectiveError) as caught:
        open_store(environment(1, 2, MASTER_PORT=str(port)), timedelta(seconds=1))
    assert str(caught.value).startswith(f"rank 1 of 2 can't reach the store of rank 0 at 127.0.0.1:{port}: ")
