"""What `stratagem conformance float8` and the tests try: each precision on a network whose layers it computes."""

from __future__ import annotations

import torch
from stratagem_testing import PrecisionSubject
from stratagem_testing.recipe import Recipe
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from stratagem_float8.names import MEANINGS


class WideRecipe(Recipe):
    """The kit's classifier with sizes that 16 divides."""

    def net(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16), nn.Identity())

    def dataset(self) -> Dataset[tuple[torch.Tensor, ...]]:
        generator = torch.Generator().manual_seed(11)
        x = torch.randn(self.samples, 16, generator=generator)
        return TensorDataset(x, (x @ torch.randn(16, 16, generator=generator)).argmax(1))


SUBJECTS = {
    name: PrecisionSubject(name, device="cpu" if emulate else "cuda", recipe=WideRecipe)
    for name, (_, emulate) in MEANINGS.items()
}
