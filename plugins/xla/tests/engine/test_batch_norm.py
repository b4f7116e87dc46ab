"""Running variances are those of torch; torch_xla's own aren't, which these tests would tell if it changed."""

import copy

import pytest
import torch
import torch_xla
from stratagem_xla.batch_norm import UnbiasedVariances
from torch import nn

LAYERS = [
    (nn.BatchNorm1d, (4, 3)),
    (nn.BatchNorm2d, (2, 3, 2, 2)),
    (nn.InstanceNorm1d, (2, 3, 5)),
    (nn.InstanceNorm1d, (3, 5)),
    (nn.InstanceNorm2d, (2, 3, 2, 2)),
]


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize(("layer", "shape"), LAYERS)
def test_running_variances_are_torchs(layer, shape, momentum):
    torch.manual_seed(0)
    reference = layer(3, momentum=momentum, track_running_stats=True)
    corrected, plain = (copy.deepcopy(reference).to(torch_xla.device()) for _ in range(2))
    variances = UnbiasedVariances(nn.Sequential(corrected))
    for _ in range(3):
        batch = torch.randn(shape)
        for each in (reference, corrected, plain):
            each(batch.to(each.running_var.device))
    torch.testing.assert_close(corrected.running_var.cpu(), reference.running_var)
    torch.testing.assert_close(corrected.running_mean.cpu(), reference.running_mean)
    if momentum is not None:
        assert (plain.running_var.cpu() - reference.running_var).abs().max() > 1e-3, (
            "torch_xla follows torch now"
        )
    variances.remove()
    assert not corrected._forward_hooks
    assert not corrected._forward_pre_hooks
