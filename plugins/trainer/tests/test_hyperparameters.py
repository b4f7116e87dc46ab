"""What `save_hyperparameters` keeps comes back by `load_from_checkpoint`, and nothing else does."""

from __future__ import annotations

import enum
import json
import pickle
import warnings
from argparse import Namespace
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from small import Line, samples
from stratagem_trainer.loggers import CSVLogger
from stratagem_trainer.module.hyperparameters import Hyperparameters
from torch import nn
from torch.utils.data import DataLoader

import stratagem
from stratagem.errors import CheckpointError, ConfigError

QUIET: dict[str, Any] = {"accelerator": "cpu", "enable_progress_bar": False, "enable_checkpointing": False}


class Color(enum.Enum):
    RED = 1


@dataclass
class Inner:
    width: int = 3
    color: Color = Color.RED


@dataclass
class Settings:
    lr: float = 0.1
    inner: Inner = field(default_factory=Inner)


class Base(Line):
    def __init__(
        self, lr: float, sizes: tuple[int, ...] = (1, 2), *, name: str = "base", **rest: Any
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.rest = rest


class Child(Base):
    def __init__(self, depth: int = 2, **rest: Any) -> None:
        super().__init__(lr=0.5, **rest)
        self.depth = depth


class Rich(Line):
    def __init__(
        self,
        settings: Settings,
        act: Any = nn.ReLU,
        path: Path = Path("a"),
        color: Color = Color.RED,
        weights: Any = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()


class Whole(Line):
    def __init__(self, args: Any, lr: float = 0.3) -> None:
        super().__init__()
        self.save_hyperparameters(args)
        self.args, self.lr = args, lr


class Typed(Line):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.save_hyperparameters(settings)
        self.settings = settings


def checkpoint_of(module: Any, folder: Path, **how: Any) -> str:
    """Train a little and save."""
    path = str(folder / "ckpt")
    saving = stratagem.Callback()
    saving.on_fit_end = lambda trainer, module: trainer.save_checkpoint(path)
    settings = {"devices": 1, "logger": False, **QUIET, "max_steps": 2, "run_dir": folder / "run", **how}
    stratagem.Trainer(**settings, callbacks=saving).fit(module, DataLoader(samples(), 4))
    return path


def test_arguments_of_constructors_and_of_those_that_call_them() -> None:
    module = Child(depth=4, name="child", extra=[1])
    assert dict(module.hparams) == {"lr": 0.5, "sizes": (1, 2), "name": "child", "extra": [1], "depth": 4}
    assert (module.hparams.depth, module.hparams["name"]) == (4, "child")
    module.hparams.depth = 5
    assert (module.hparams.depth, module.hparams_initial.depth) == (5, 4)
    with pytest.raises(AttributeError, match="there is no hyperparameter 'width'; available: \\['depth'"):
        module.hparams.width  # noqa: B018
    assert pickle.loads(pickle.dumps(module)).hparams == module.hparams


def test_a_module_comes_back_as_it_was_made(tmp_path: Path) -> None:
    module = Child(depth=4, name="child", extra=[1])
    path = checkpoint_of(module, tmp_path)
    loaded = Child.load_from_checkpoint(path)
    assert loaded.hparams == module.hparams
    assert (loaded.depth, loaded.rest) == (4, {"extra": [1]})
    for name, expected in module.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], expected), name
    assert Child.load_from_checkpoint(path, depth=7).hparams.depth == 7
    assert Child.load_from_checkpoint(path, map_location="meta").layer.weight.device.type == "meta"


def test_changed_hyperparameters_are_saved_as_they_are_by_then(tmp_path: Path) -> None:
    module = Base(0.1)
    module.hparams.lr = 0.7
    assert Base.load_from_checkpoint(checkpoint_of(module, tmp_path)).hparams.lr == 0.7


def test_values_of_named_types(tmp_path: Path) -> None:
    module = Rich(Settings(0.2, Inner(5)), weights=torch.tensor([1.0, 2.0]))
    loaded = Rich.load_from_checkpoint(checkpoint_of(module, tmp_path))
    assert loaded.hparams.settings == Settings(0.2, Inner(5))
    assert (loaded.hparams.act, loaded.hparams.path, loaded.hparams.color) == (nn.ReLU, Path("a"), Color.RED)
    assert loaded.hparams.weights.tolist() == [1.0, 2.0]


def test_names_that_the_class_doesnt_name_are_refused(tmp_path: Path) -> None:
    path = checkpoint_of(Rich(Settings(), act=nn.GELU, weights=partial(torch.optim.SGD, lr=0.1)), tmp_path)
    with pytest.raises(CheckpointError, match=r"'act' of .* names torch.*activation:GELU.*allowed=\[GELU\]"):
        Rich.load_from_checkpoint(path)
    loaded = Rich.load_from_checkpoint(path, allowed=[nn.GELU, torch.optim.SGD])
    assert loaded.hparams.act is nn.GELU
    assert (loaded.hparams.weights.func, loaded.hparams.weights.keywords) == (torch.optim.SGD, {"lr": 0.1})
    assert Rich.load_from_checkpoint(path, act=None, weights=None).hparams.act is None


@pytest.mark.parametrize(
    ("whole", "kind"),
    [
        (Namespace(width=3, names=["a"]), Namespace),
        ({"width": 3, "names": ["a"]}, Hyperparameters),
        (Settings(0.2), Settings),
    ],
)
def test_one_object_that_has_all(whole: Any, kind: type, tmp_path: Path) -> None:
    module = Whole(whole) if kind is not Settings else Typed(whole)
    path = checkpoint_of(module, tmp_path)
    loaded: Any = type(module).load_from_checkpoint(path)
    given = loaded.args if kind is not Settings else loaded.settings
    assert (type(given), given) == (kind, whole)
    if kind is not Settings:
        changed = Whole.load_from_checkpoint(path, width=9, lr=0.7)
        assert (changed.hparams.width, changed.lr) == (9, 0.7)
        assert changed.hparams.names == ["a"]


def test_what_cant_be_kept_is_named(tmp_path: Path) -> None:
    class Backbone(Line):
        def __init__(self, backbone: Any, key: Any = None, lr: float = 0.1) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.backbone = backbone

    with pytest.warns(UserWarning, match="save_hyperparameters") as warned:
        module = Backbone(nn.Linear(2, 2), key=lambda x: x)
    assert "can't save 'backbone' in checkpoints: it has a module (Linear)" in str(warned[0].message)
    assert "can't save 'key' in checkpoints: it has a function without its own name" in str(warned[1].message)
    assert module.hparams.backbone is module.backbone
    path = checkpoint_of(module, tmp_path)
    with pytest.raises(ConfigError, match=r"needs 'backbone' of .*it has a module .*; pass backbone=…"):
        Backbone.load_from_checkpoint(path)
    with pytest.warns(UserWarning, match="save_hyperparameters"):
        loaded = Backbone.load_from_checkpoint(path, backbone=nn.Linear(2, 2))
    assert torch.equal(loaded.backbone.weight, module.backbone.weight)
    with pytest.raises(ConfigError, match=r"Backbone takes no 'depth': .*backbone, key, lr"):
        Backbone.load_from_checkpoint(path, backbone=None, depth=1)

    class Ignores(Line):
        def __init__(self, backbone: Any, lr: float = 0.1) -> None:
            super().__init__()
            self.save_hyperparameters(ignore="backbone")

    assert dict(Ignores(nn.Linear(2, 2)).hparams) == {"lr": 0.1}


def test_names_alone() -> None:
    class Named(Line):
        def __init__(self, lr: float, depth: int = 2, names: tuple[str, ...] = ("lr",)) -> None:
            super().__init__()
            self.save_hyperparameters(*names)

    assert dict(Named(0.1).hparams) == {"lr": 0.1}
    with pytest.raises(ConfigError, match=r"got 'rate', and .*Named has the arguments lr, depth, names"):
        Named(0.1, names=("rate",))
    module = Line()
    with pytest.raises(ConfigError, match=r"saves the arguments of Line.__init__: call it there"):
        module.save_hyperparameters()
    with pytest.raises(ConfigError, match=r"hparams can't be assigned: call self.save_hyperparameters"):
        module.hparams = {}


def test_other_modules_and_missing_tensors(tmp_path: Path) -> None:
    path = checkpoint_of(Base(0.1), tmp_path)

    class Wider(Base):
        def __init__(self, **rest: Any) -> None:
            super().__init__(**rest)
            self.head = nn.Linear(1, 1)

    with pytest.raises(CheckpointError, match=r"missing keys: head.bias, head.weight"):
        Wider.load_from_checkpoint(path)
    loaded = Wider.load_from_checkpoint(path, strict=False)
    assert torch.equal(loaded.layer.weight, Base.load_from_checkpoint(path).layer.weight)
    with pytest.raises(CheckpointError):
        Base.load_from_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="map_location is a dict: pass a device"):
        Base.load_from_checkpoint(path, map_location={})


def test_a_module_without_saved_arguments(tmp_path: Path) -> None:
    path = checkpoint_of(Line(), tmp_path)
    assert isinstance(Line.load_from_checkpoint(path, batch_size=8), Line)
    with pytest.raises(ConfigError, match=r"needs 'lr' of .*doesn't have; pass lr=… .*or call self.save_hyp"):
        Base.load_from_checkpoint(path)


class Keeps(Base):
    """Has layers that `configure_model` makes, and more in its checkpoints."""

    def configure_model(self) -> None:
        self.head = nn.Linear(1, 1)

    def on_save_checkpoint(self, state: dict[str, Any]) -> None:
        state["mine"] = {"kept": (1, 2)}

    def on_load_checkpoint(self, state: dict[str, Any]) -> None:
        self.kept = state["mine"]["kept"]

    def forward(self, x: Any) -> Any:
        return self.head(super().forward(x))


@pytest.mark.parametrize("strategy", ["single", "fsdp"])
def test_checkpoints_of_other_strategies_and_what_the_module_adds(strategy: str, tmp_path: Path) -> None:
    devices = 2 if strategy == "fsdp" else 1
    module = Keeps(0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # layers of the workers alone don't come back
        path = checkpoint_of(module, tmp_path, strategy=strategy, devices=devices)
    loaded = Keeps.load_from_checkpoint(path)
    assert loaded.kept == (1, 2)
    trainer = stratagem.Trainer(
        **QUIET, devices=devices, strategy=strategy, logger=False, run_dir=tmp_path / "run"
    )
    (expected,) = trainer.test(Keeps(0.1), DataLoader(samples(), 4), ckpt_path=path)
    single = stratagem.Trainer(**QUIET, devices=1, logger=False, run_dir=tmp_path / "run")
    (found,) = single.test(loaded, DataLoader(samples(), 4))
    assert found["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-6)


@pytest.mark.parametrize("key", ["state_dict", "epoch"])
def test_parts_of_a_checkpoint_that_hooks_do_not_get_are_reported(key: str, tmp_path: Path) -> None:
    class Saves(Line):
        def on_save_checkpoint(self, state: dict[str, Any]) -> None:
            state[key].clear()

    class Loads(Line):
        def on_load_checkpoint(self, state: dict[str, Any]) -> None:
            state[key].clear()

    (tmp_path / "other").mkdir()
    with pytest.raises(
        ConfigError, match=f"on_save_checkpoint reads '{key}', but it gets only what hooks have added"
    ):
        checkpoint_of(Saves(), tmp_path / "other")
    path = checkpoint_of(Line(), tmp_path)
    with pytest.raises(ConfigError, match=f"on_load_checkpoint reads '{key}', but it gets only"):
        Loads.load_from_checkpoint(path)
    with pytest.raises(ConfigError, match=f"on_load_checkpoint reads '{key}', but it gets only"):
        stratagem.Trainer(**QUIET, devices=1, logger=False, max_steps=3, run_dir=tmp_path / "run").fit(
            Loads(), DataLoader(samples(), 4), ckpt_path=path
        )


def test_a_key_that_the_module_did_not_add_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="doesn't fit this run \\(KeyError: 'mine'\\)"):
        Keeps.load_from_checkpoint(checkpoint_of(Line(), tmp_path), lr=0.1)


def test_loggers_get_what_people_can_read(tmp_path: Path) -> None:
    class Notes(CSVLogger):
        def log_hyperparams(self, params: Any) -> None:
            found.append(json.loads(json.dumps(params)))

    found: list[Any] = []
    checkpoint_of(Rich(Settings()), tmp_path, logger=Notes())
    assert found[0]["act"] == "torch.nn.modules.activation:ReLU"
    assert found[0]["settings"] == {"lr": 0.1, "inner": {"width": 3, "color": "RED"}}

    class Silent(Line):
        def __init__(self, lr: float = 0.1) -> None:
            super().__init__()
            self.save_hyperparameters(logger=False)

    checkpoint_of(Silent(), tmp_path, logger=Notes())
    assert len(found) == 1
