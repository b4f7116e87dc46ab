"""Every optimizer of torch: stepped as a plain loop steps it, saved, and continued bit for bit."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import Matrix, Regression, Words, hold_against_plain_torch
from torch import optim
from torch.optim.lr_scheduler import ExponentialLR

FORMS: dict[str, list[dict[str, Any]]] = {
    "ASGD": [{"lr": 0.01}, {"foreach": True, "maximize": True}],
    "Adadelta": [{"rho": 0.8}, {"foreach": True, "weight_decay": 0.1}],
    "Adafactor": [{"lr": 0.02}, {"lr": 0.02, "foreach": True}],
    "Adagrad": [{"lr": 0.02}, {"lr_decay": 0.1, "foreach": True}, {"fused": True}],
    "Adam": [
        {"lr": 0.02},
        {"amsgrad": True, "foreach": True},
        {"fused": True, "weight_decay": 0.1},
        {"maximize": True, "foreach": False},
        {"amsgrad": True, "fused": True},
        {"lr": torch.tensor(0.02), "foreach": False},
        {"decoupled_weight_decay": True},
    ],
    "AdamW": [{"lr": 0.02}, {"amsgrad": True}, {"fused": True}, {"foreach": True}],
    "Adamax": [{"lr": 0.02}, {"foreach": True}],
    "LBFGS": [
        {"lr": 0.1, "max_iter": 4},
        {"max_iter": 5, "history_size": 3, "line_search_fn": "strong_wolfe"},
    ],
    "Muon": [{"lr": 0.02}, {"lr": 0.02, "nesterov": False, "adjust_lr_fn": "match_rms_adamw"}],
    "NAdam": [{"lr": 0.02}, {"decoupled_weight_decay": True, "weight_decay": 0.1, "foreach": True}],
    "RAdam": [{"lr": 0.02}, {"decoupled_weight_decay": True, "weight_decay": 0.1, "foreach": True}],
    "RMSprop": [{"centered": True, "momentum": 0.9}, {"foreach": True}],
    "Rprop": [{}, {"foreach": True, "etas": (0.4, 1.3)}],
    "SGD": [
        {"lr": 0.05},
        {"lr": 0.05, "momentum": 0.9, "nesterov": True, "foreach": True},
        {"lr": 0.05, "momentum": 0.9, "dampening": 0.1, "fused": True},
    ],
    "SparseAdam": [{"lr": 0.02}],
}
MODULES = {"Muon": Matrix, "SparseAdam": Words}


@pytest.mark.filterwarnings("ignore:`torch.utils._sparse:UserWarning")
@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(name, form, id=f"{name}-{' '.join(form)}")
        for name, forms in FORMS.items()
        if hasattr(optim, name)
        for form in forms
    ],
)
def test_continues_as_plain_torch_goes_on(name: str, form: dict[str, Any], tmp_path: Path) -> None:
    def setup(module: Any) -> Any:
        # Each run has numbers of its own: a learning rate that is a tensor is changed in place.
        own = {
            key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in form.items()
        }
        optimizer = getattr(optim, name)(module.parameters(), **own)
        return optimizer, ExponentialLR(optimizer, 0.95)

    hold_against_plain_torch(lambda: MODULES.get(name, Regression)(setup), tmp_path)


def test_none_of_torch_is_left_out() -> None:
    known = {
        name
        for name, value in vars(optim).items()
        if inspect.isclass(value) and issubclass(value, optim.Optimizer) and value is not optim.Optimizer
    }
    assert known <= set(FORMS)
