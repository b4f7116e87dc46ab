"""What borrows the generators gives them back as they were, and what is restored draws what was to come."""

import random

import numpy as np
import torch

from stratagem.data.rng import capture_rng, forked_rng, restore_rng

CPU = torch.device("cpu")


def test_what_is_drawn_meanwhile_leaves_no_trace():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with forked_rng(CPU):
        torch.manual_seed(8)
        torch.rand(2)
    assert torch.equal(torch.rand(4), expected)


def test_what_is_restored_draws_what_was_to_come():
    """Normal numbers come in pairs, of which Python's and NumPy's generators keep the second for the next call."""

    def drawn():
        return [random.gauss(0, 1), float(np.random.randn()), float(torch.randn(())), random.random()]

    for generator in (random.seed, np.random.seed, torch.manual_seed):
        generator(5)
    drawn()
    assert np.random.get_state()[3] == 1, "NumPy holds no second number, and this test shows nothing"
    states = capture_rng(CPU)
    expected = [drawn(), drawn()]
    for generator in (random.seed, np.random.seed, torch.manual_seed):
        generator(6)
    drawn()
    restore_rng(states, CPU)
    assert [drawn(), drawn()] == expected
