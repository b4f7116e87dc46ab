"""What is unpickled where several nodes meet."""

from __future__ import annotations

import base64
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stratagem_launch.rendezvous.dynamic import CheckedBackend
from torch.distributed import HashStore  # type: ignore[attr-defined]  # exported, but not in __all__
from torch.distributed.elastic.rendezvous import RendezvousParameters, RendezvousStateError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def unchanged(backend: Any) -> Any:
    return backend


@pytest.mark.parametrize(
    ("wrap", "is_run"), [pytest.param(unchanged, True, id="torch's own"), pytest.param(CheckedBackend, False)]
)
def test_code_in_the_store_of_a_rendezvous_is_an_error(
    tmp_path: Path, wrap: Callable[[Any], Any], is_run: bool
) -> None:
    store, marker = HashStore(), tmp_path / "run"
    backend = wrap(C10dRendezvousBackend(store, "run"))
    parameters = RendezvousParameters("c10d", "", "run", 1, 1, join_timeout="5")
    handler = create_handler(store, backend, parameters)
    store.set("torch.rendezvous.run", base64.b64encode(pickle.dumps(Payload(marker))).decode())
    with pytest.raises((AttributeError, RendezvousStateError)) as raised:
        handler.next_rendezvous()
    assert marker.exists() == is_run
    assert isinstance(raised.value, RendezvousStateError) != is_run


def test_a_rendezvous_of_its_own_is_read() -> None:
    store = HashStore()
    backend = CheckedBackend(C10dRendezvousBackend(store, "run"))
    handler = create_handler(
        store, backend, RendezvousParameters("c10d", "", "run", 1, 1, last_call_timeout="1")
    )
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    assert handler.num_nodes_waiting() == 0
    assert handler.shutdown()
