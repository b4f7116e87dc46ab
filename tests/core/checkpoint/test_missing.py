"""Without a checkpoint plugin a run works, and says what to install when something is saved or loaded."""

import re

import pytest
import torch

import stratagem
from stratagem.errors import ConfigError, UnknownNameError
from stratagem.installed.catalogue import Catalogue, load_catalogue
from stratagem.resolve.select import choose_checkpointer


def train_and_save(runtime: stratagem.Runtime, path: str) -> tuple[str, str]:
    net = torch.nn.Linear(1, 1)
    module, optimizer = runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    runtime.backward(module(torch.ones(2, 1)).sum())
    optimizer.step()
    errors = []
    for act in (runtime.save, runtime.load):
        with pytest.raises(UnknownNameError) as raised:
            act(path)
        errors.append(str(raised.value))
    return errors[0], errors[1]


def test_a_run_without_the_plugin_says_so_when_it_saves_and_when_it_loads(tmp_path, capsys) -> None:
    path = str(tmp_path / "saved")
    runtime = stratagem.Runtime("single", accelerator="cpu", without_plugins=("stratagem-checkpoint",))
    saving, loading = runtime.launch(train_and_save, path)
    why = r"checkpoint 'directory' comes with .*stratagem-checkpoint .*, which is installed but left out"
    assert re.match(rf"{path} can't be saved: {why}", saving)
    assert re.match(rf"{path} can't be loaded: {why}", loading)
    assert "directory     not here" in capsys.readouterr().err


def test_one_that_is_not_installed_is_named_with_what_to_install() -> None:
    chosen = choose_checkpointer(Catalogue(()), None, "directory")
    for act in (chosen.value(None).open, chosen.value(None).remove):
        with pytest.raises(
            UnknownNameError, match="'directory' isn't installed: pip install stratagem-checkpoint"
        ):
            act("here")


def test_one_that_was_asked_for_is_refused_before_anything_runs() -> None:
    with pytest.raises(UnknownNameError, match="no checkpoint is called 'folders'"):
        choose_checkpointer(load_catalogue(), None, "folders")
    with pytest.raises(ConfigError, match="neither a Checkpointer nor"):
        choose_checkpointer(load_catalogue(), 3, "directory")
