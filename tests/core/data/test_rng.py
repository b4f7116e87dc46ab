"""What borrows the generators gives them back as they were."""

import torch

from stratagem.data.rng import forked_rng


def test_what_is_drawn_meanwhile_leaves_no_trace():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with forked_rng(torch.device("cpu")):
        torch.manual_seed(8)
        torch.rand(2)
    assert torch.equal(torch.rand(4), expected)
