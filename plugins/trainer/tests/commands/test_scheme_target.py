"""TARGET and `--data` by a plugin's scheme."""

import os
import pickle

import pytest
from stratagem_cli.main import main
from stratagem_trainer.commands.module_spec import DataSpec, ModuleSpec
from stratagem_trainer.commands.scheme_target import SchemeTarget, parse_target
from stratagem_trainer.commands.target import Target

from stratagem.errors import BrokenPluginError, ConfigError, TargetError, UnknownNameError

HERE = [
    "--accelerator",
    "cpu",
    "--devices",
    "1",
    "--max-epochs",
    "1",
    "--set",
    "trainer.enable_progress_bar=false",
]

TOYS = """
    import torch
    import stratagem
    from torch.utils.data import DataLoader

    class Line(stratagem.Module):
        def __init__(self, start, lr: float = 0.5):
            super().__init__()
            self.lr, self.weight = lr, torch.nn.Parameter(torch.tensor(float(start)))

        def training_step(self, batch, batch_idx):
            self.log("weight", self.weight.detach())
            return (self.weight * batch).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    class Numbers(stratagem.DataModule):
        def __init__(self, values, size: int = 1):
            self.values, self.size = [float(each) for each in values.split("+")], size

        def train_dataloader(self):
            return DataLoader(torch.tensor(self.values), self.size)
"""


@pytest.fixture
def toys(site):
    site.offer(
        "toys",
        '"model", "line", "toy_parts:Line", "a line"',
        '"data", "numbers", "toy_parts:Numbers", "numbers"',
        '"model", "far", "toy_parts:Line", "a line", requires=("not_here",), install_hint="pip install it"',
    )
    site.write("toy_parts", TOYS)
    return site


def test_fit(folder, toys, capsys):
    assert (
        main(["fit", "line:3", "--data", "numbers:1+2", *HERE, "--set", "model.lr=1", "--run-dir", "run"])
        == 0
    )
    assert "weight  2" in capsys.readouterr().out  # before the second step: 3 - 1
    # What the run left repeats it.
    assert main(["fit", "--config", "run/config.yaml", "--run-dir", "again"]) == 0
    assert "weight  2" in capsys.readouterr().out


def test_spec_is_sent_to_workers(toys):
    spec = pickle.loads(pickle.dumps(ModuleSpec(parse_target("line:3", "model"), {"lr": 2.0})))
    made = spec()
    assert (made.weight.item(), made.lr) == (3.0, 2.0)
    assert spec.resolved() == {"lr": 2.0}
    assert DataSpec(parse_target("numbers:1+2", "data"))().values == [1.0, 2.0]
    with pytest.raises(ConfigError, match=r"TARGET line:3 sets model\.start already"):
        ModuleSpec(parse_target("line:3", "model"), {"start": 1})()


def test_paths_are_absolute_and_files_stay_targets(folder, net, toys):
    (folder / "here").mkdir()
    assert parse_target("line:here", "model") == SchemeTarget("model", "line", os.path.abspath("here"))
    assert isinstance(parse_target("net.py:Net", "model"), Target)
    assert isinstance(parse_target("net:Net", "model"), Target)


@pytest.mark.parametrize(
    ("text", "kind", "error", "message"),
    [
        ("line:", "model", TargetError, "'line:' has nothing after the colon: write line:TEXT"),
        ("line:3", "data", TargetError, "names no class in a file or module"),
        ("far:3", "model", BrokenPluginError, "needs not_here, which isn't installed: pip install it"),
    ],
)
def test_refused(folder, toys, text, kind, error, message):
    with pytest.raises(error) as caught:
        parse_target(text, kind)
    assert message in str(caught.value)


def test_a_plugin_that_is_not_installed_is_named(folder, monkeypatch):
    monkeypatch.setenv("STRATAGEM_DISABLE_PLUGINS", "stratagem-huggingface")
    with pytest.raises(
        UnknownNameError, match=r"TARGET hf:… isn't available: pip install stratagem-huggingface"
    ):
        parse_target("hf:gpt2", "model")
