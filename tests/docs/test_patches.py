"""docs/patches.md lists what the code changes in torch, Python and engines; a run leaves these as they were."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data._utils import fetch, signal_handling

import stratagem

ROOT = Path(__file__).parents[2]
PATCH = re.compile(
    r"\.__class__ = |object\.__setattr__\(|sys\.meta_path\.(insert|append)|sys\._getframe|setattr\(nn\.init|"
    r"\.next_id = |fetcher\.fetch = |_set_worker_signal_handlers = |comm\.cdb = |Init\.param_id = |"
    r"setattr\((owner|wrapper), name, method\)|__torch_function__ = |"
    r"(?<!self)(?<!copy)\.__dict__\[\"\w+\"\] = |vars\((callback|module)\)\[[^\]]+\] = |"
    r"(?<!self)\.(forward|post_backward) = |del self\._per_optimizer_states|_per_optimizer_states\.clear|"
    r"^\s+(torch|nn|dist|deepspeed|optim|F)\.(?!backends)[\w.]+ = "
)
MARK = re.compile(r"# patch: (.+)$")


def test_every_patch_is_marked_and_on_the_page() -> None:
    marks, unmarked = set(), []
    for path in [*ROOT.glob("core/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]:
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            found = MARK.search(line)
            if found:
                marks.add(found[1])
            elif PATCH.search(line) and not any(map(MARK.search, lines[max(number - 2, 0) : number])):
                unmarked.append(f"{path.relative_to(ROOT)}:{number + 1}")
    assert not unmarked, "write `# patch: NAME` above, and the reason into docs/patches.md"
    page = (ROOT / "docs/patches.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip() for line in page.splitlines() if line.startswith("|")}
    assert rows - {"name", "---"} == marks


class Net(stratagem.Module):
    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def state(module: nn.Module, loader: Any) -> dict[str, Any]:
    return {
        "initializers": {name: value for name, value in vars(nn.init).items() if callable(value)},
        "worker fetch": fetch._MapDatasetFetcher.fetch,
        "loader workers": signal_handling._set_worker_signal_handlers,
        "loader samplers": {name: vars(loader)[name] for name in ("sampler", "batch_sampler")},
        "module classes": [type(each) for each in module.modules()],
        "profiled methods": sorted(name for name, value in vars(module).items() if callable(value)),
        "lightning imports": list(sys.meta_path),
        "signals": {
            number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
        },
    }


def test_a_run_leaves_what_it_patches_as_it_was(tmp_path: Path) -> None:
    pytest.importorskip("stratagem_lightning")  # installs its finder, which stays
    module = Net()
    loader = DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=4, shuffle=True, num_workers=1)
    trainer = stratagem.Trainer(
        strategy="single", accelerator="cpu", max_epochs=1, profiler="simple", run_dir=tmp_path / "run"
    )
    before = state(module, loader)
    trainer.fit(module, loader)
    after = state(module, loader)
    for name, value in before.items():
        assert after[name] == value, name
