"""Batches on their way to the device."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field

import pytest
import torch

from stratagem.data.batches import _copy_stream, has_events, map_tensors, moved, to_device

META = torch.device("meta")
Pair = namedtuple("Pair", "x y")


@dataclass
class Sample:
    x: torch.Tensor
    name: str = "a"
    size: int = field(default=0, init=False)


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(2),
        (torch.ones(2), "text"),
        [torch.ones(2), [torch.ones(1)]],
        Pair(torch.ones(2), 3),
        {"x": torch.ones(2), "y": None},
        OrderedDict(x=(torch.ones(2),)),
        Sample(torch.ones(2), "b"),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_tensors_are_moved_and_containers_are_what_they_were(batch):
    devices = []

    def note(tensor):
        devices.append(tensor.device.type)
        return tensor

    moved_batch = to_device(batch, META)
    assert type(moved_batch) is type(batch)
    map_tensors(note, batch)
    before, devices[:] = list(devices), []
    map_tensors(note, moved_batch)
    assert (set(before), set(devices), len(before)) == ({"cpu"}, {"meta"}, len(devices))


def test_what_is_no_tensor_stays():
    sample = to_device(Sample(torch.ones(1), "b"), META)
    assert (sample.name, sample.size) == ("b", 0)
    for batch in ("text", None, 3, Sample):
        assert to_device(batch, META) is batch


def test_what_has_a_method_to_moves_itself():
    class Batch:
        def to(self, device):
            return device

    assert to_device(Batch(), META) == META


def test_a_loader_is_wrapped_only_where_batches_move():
    loader = [torch.ones(1), torch.ones(2)]
    assert moved(loader, torch.device("cpu")) is loader
    wrapped = moved(loader, META)
    assert len(wrapped) == 2
    assert [(batch.device.type, len(batch)) for batch in wrapped] == [("meta", 1), ("meta", 2)]
    assert len(list(wrapped)) == 2


def test_what_has_a_method_to_is_moved_wherever_it_is() -> None:
    class Graph:
        """As a batch of another library."""

        def to(self, device: torch.device) -> str:
            return f"on {device}"

    assert to_device((Graph(), True), META) == ("on meta", True)
    assert to_device({"graph": [Graph()]}, META) == {"graph": ["on meta"]}


class Transferred(torch.Tensor):
    """Notes how it was moved to a device."""

    def to(self, *args, **kwargs):
        self.moved_by = (args, kwargs)
        return self


def test_copies_of_tensors_do_not_wait_for_the_device():
    tensor = torch.ones(2).as_subclass(Transferred)
    to_device({"x": tensor}, META)
    assert tensor.moved_by == ((META,), {"non_blocking": True})


def test_without_an_accelerator_no_device_has_events(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)
    assert not any(has_events(torch.device(name)) for name in ("cpu", "cuda", "mps"))


@pytest.fixture
def forgotten_streams():
    """No stream is kept from another test, nor for the next one."""
    _copy_stream.cache_clear()
    yield
    _copy_stream.cache_clear()


@pytest.mark.parametrize(("current", "has"), [(0, False), (1, True)], ids=["one stream", "two streams"])
@pytest.mark.usefixtures("forgotten_streams")
def test_a_device_with_a_second_stream_has_events(current, has, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: META)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: current)
    monkeypatch.setattr(torch, "Stream", lambda device: 0)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    assert has_events(META) is has
    assert not has_events(torch.device("cpu"))


@pytest.mark.usefixtures("forgotten_streams")
def test_a_device_that_makes_no_second_stream_has_no_events(monkeypatch):
    def fails(device):
        raise RuntimeError("the backend doesn't support streams")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: META)
    monkeypatch.setattr(torch, "Stream", fails)
    assert not has_events(META)
