"""Progress in a notebook's cell, by a real kernel."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

PROGRAM = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset
import stratagem

class Net(stratagem.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        time.sleep(0.05)
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = DataLoader(TensorDataset(torch.randn(80, 4)), 4)
how = {"max_epochs": 2, "logger": False, "enable_checkpointing": False, "accelerator": "cpu"}
stratagem.Trainer(**how, strategy=STRATEGY, devices=DEVICES).fit(Net(), data)
"""


def executed(strategy: str, devices: int) -> Any:
    """Run the program in a kernel, and return the notebook as it would be saved."""
    source = PROGRAM.replace("STRATEGY", repr(strategy)).replace("DEVICES", str(devices))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    return notebook


def printed(notebook: Any) -> str:
    return "".join(each["text"] for each in notebook.cells[0].outputs if each.get("name") == "stdout")


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("ddp_notebook", 2)])
def test_a_saved_cell_has_a_line_for_each_epoch_and_no_escape_codes(strategy: str, devices: int) -> None:
    notebook = executed(strategy, devices)
    lines = printed(notebook).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert "loss" in lines[0]
    assert "\\u001b" not in json.dumps(notebook)


@pytest.mark.skipif(find_spec("ipywidgets") is None, reason="ipywidgets is not installed")
def test_a_bar_is_drawn_in_the_cell_and_taken_away_at_the_end() -> None:
    notebook = executed("single", 1)
    shown = [each["data"] for each in notebook.cells[0].outputs if each.output_type == "display_data"]
    view = "application/vnd.jupyter.widget-view+json"
    views = [each[view] for each in shown if view in each]
    assert len(views) == 1
    assert printed(notebook).count("epoch ") == 2
    widgets = notebook.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    drawn = widgets[views[0]["model_id"]]["state"]["outputs"]
    assert "it/s" in json.dumps(drawn)
