"""What an accelerator answers that says only what it must."""

import pytest
import torch

from stratagem.accelerators.base import Accelerator
from stratagem.plugin.component import Availability

CPU = torch.device("cpu")


class Three(Accelerator):
    name = "three"

    def availability(self):
        return Availability(True, "3 devices")

    def device_count(self):
        return 3

    def device(self, index):
        return CPU


def test_auto_means_all_devices():
    assert Three().default_devices() == 3


@pytest.mark.parametrize(
    ("index", "why"),
    [(0, None), (2, None), (3, "this machine has 3"), (4, "this machine has 3"), (-1, "this machine has 3")],
)
def test_only_devices_that_there_are_can_be_used(index, why):
    assert Three().check_index(index) == why


def test_what_it_does_not_declare_is_unknown_and_not_refused():
    accelerator = Three()
    assert accelerator.refuse_precision("16-mixed") is None
    assert accelerator.memory(CPU) == {}
    assert accelerator.set_up(CPU) is None
    assert accelerator.synchronize(CPU) is None
    assert (accelerator.autocast_type, accelerator.backend, accelerator.has_distinct_devices) == (
        "cpu",
        "gloo",
        True,
    )


@pytest.mark.parametrize("method", ["availability", "device_count", "device"])
def test_what_it_must_say(method):
    lacking = type("Lacking", (Three,), {method: getattr(Accelerator, method)})
    with pytest.raises(TypeError, match=f"abstract.*{method}"):
        lacking()
