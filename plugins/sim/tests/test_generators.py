"""The device's generator is saved, restored and forked with those of the process."""

from __future__ import annotations

import pytest
from sim_processes import run
from stratagem_sim.build import is_built

pytestmark = [
    pytest.mark.sim,
    pytest.mark.skipif(not is_built(), reason="needs the device, which make test-sim builds"),
]

DRAWS = """
from stratagem.data.rng import capture_rng, forked_rng, restore_rng

device = torch.device("sim", 0)

def drawn(on=device):
    return torch.rand(3, device=on).tolist()
"""


def test_what_is_restored_draws_what_was_to_come() -> None:
    code = """
    torch.manual_seed(3)
    drawn()
    states = capture_rng(device)
    expected = drawn(), drawn("cpu")
    restore_rng(states, device)
    print((drawn(), drawn("cpu")) == expected)
    """
    assert run(code, DRAWS) == "True"


def test_states_of_a_run_on_the_cpu_leave_the_device_as_it_is() -> None:
    code = """
    torch.manual_seed(3)
    states = capture_rng(torch.device("cpu"))
    expected = drawn()
    torch.manual_seed(3)
    restore_rng(states, device)
    print("device" not in states, drawn() == expected)
    """
    assert run(code, DRAWS) == "True True"


def test_what_is_drawn_meanwhile_leaves_no_trace() -> None:
    code = """
    torch.manual_seed(3)
    expected = drawn(), drawn("cpu")
    torch.manual_seed(3)
    with forked_rng(device):
        torch.manual_seed(8)
        drawn(), drawn("cpu")
    print((drawn(), drawn("cpu")) == expected)
    """
    assert run(code, DRAWS) == "True"


def test_a_trial_of_an_optimizer_keeps_the_generator_of_its_device() -> None:
    """With those of all devices, PyTorch warns that it takes long."""
    code = """
    import warnings
    from stratagem_sharding.optimizer_trial import why_not
    warnings.simplefilter("error")
    torch.manual_seed(3)
    expected = drawn(), drawn("cpu")
    torch.manual_seed(3)
    print(why_not(torch.optim.SGD([torch.zeros(4, 4)], lr=0.1), ["rows"]), (drawn(), drawn("cpu")) == expected)
    """
    assert run(code, DRAWS) == "None True"
