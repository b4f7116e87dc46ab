"""Parts of a program of Lightning that have an effect there have it here, or are refused by name."""

from __future__ import annotations

import csv
import inspect
from pathlib import Path
from typing import Any

import pytest
import stratagem_lightning as L
import torch
from stratagem_lightning.private_methods import PRIVATE
from stratagem_lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from stratagem_lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from stratagem.errors import ConfigError

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


class Net(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return self.net(batch[0]).pow(2).mean()

    def validation_step(self, batch, batch_idx):
        self.log("val", self.net(batch[0]).pow(2).mean())

    def test_step(self, batch, batch_idx):
        self.log("test", self.net(batch[0]).pow(2).mean())

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])

    def configure_optimizers(self):
        CALLS.append("optimizers")
        return torch.optim.SGD(self.parameters(), lr=0.1)


CALLS: list[str] = []
"""What was called, in its order; runs on one device are in this process."""


class Words(Net):
    """Makes layers for the words that its checkpoints have."""

    def __init__(self, words: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.learn(words)

    def learn(self, words: tuple[str, ...]) -> None:
        self.words = words
        self.embedding = torch.nn.Embedding(len(words), 2)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["words"] = self.words

    def on_load_checkpoint(self, checkpoint):
        CALLS.append(f"module {checkpoint['words']}")
        self.learn(tuple(checkpoint["words"]))


class Notes(Callback):
    def state_dict(self):
        return {"noted": 3}

    def load_state_dict(self, state):
        CALLS.append(f"callback's state {state['noted']}")

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        checkpoint["notes"] = 7

    def on_load_checkpoint(self, trainer, pl_module, checkpoint):
        CALLS.append(f"callback {checkpoint['notes']}")


class Data(L.LightningDataModule):
    fold = 0

    def state_dict(self):
        return {"fold": 5}

    def load_state_dict(self, state):
        self.fold = state["fold"]
        CALLS.append(f"data {self.fold}")

    def train_dataloader(self):
        CALLS.append(f"loader of fold {self.fold}")
        return loader()

    test_dataloader = predict_dataloader = train_dataloader

    def val_dataloader(self):
        return loader()


def loader(count: int = 8) -> DataLoader:
    return DataLoader(TensorDataset(torch.linspace(-1, 1, 4 * count).reshape(count, 4)), batch_size=2)


def trainer(folder: Path, **given: Any) -> L.Trainer:
    settings = {"max_epochs": 1, "logger": False, "default_root_dir": folder, **QUIET, **given}
    return L.Trainer(**settings)


def test_checkpoints_give_back_all_that_hooks_put_there_before_what_depends_on_it(tmp_path) -> None:
    first = trainer(tmp_path, callbacks=[Notes()])
    first.fit(Words(("a", "b")), datamodule=Data())
    path, light = str(tmp_path / "whole"), str(tmp_path / "light")
    first.save_checkpoint(path)
    for stage in ("test", "validate", "predict"):
        CALLS.clear()
        module = Words()
        getattr(trainer(tmp_path, callbacks=[Notes()]), stage)(module, datamodule=Data(), ckpt_path=path)
        order = ["module ('a', 'b')", "data 5", "callback's state 3"]
        assert [call for call in dict.fromkeys(CALLS) if call in order] == order, stage
        assert CALLS.index("callback 7") > 0
        assert stage == "validate" or CALLS.index("loader of fold 5") > CALLS.index("callback's state 3")
        assert module.embedding.weight.shape == (2, 2)
    CALLS.clear()
    second = trainer(tmp_path, callbacks=[Notes()], max_epochs=2)
    second.fit(Words(), datamodule=Data(), ckpt_path=path)
    assert list(dict.fromkeys(CALLS)) == [
        "module ('a', 'b')",
        "callback 7",
        "data 5",
        "loader of fold 5",
        "optimizers",
        "callback's state 3",
    ]
    weights_only = ModelCheckpoint(tmp_path, filename="light", save_weights_only=True)
    trainer(tmp_path, callbacks=[weights_only]).fit(Words(("c",)), datamodule=Data())
    CALLS.clear()
    trainer(tmp_path).test(Words(), datamodule=Data(), ckpt_path=f"{light}.ckpt")
    assert CALLS[0] == "module ('c',)"
    assert Words.load_from_checkpoint(f"{light}.ckpt").words == ("c",)


@pytest.mark.parametrize("change", ["set", "update", "pop"])
def test_parts_of_a_checkpoint_that_no_hook_can_change_are_refused(tmp_path, change) -> None:
    class Changes(Net):
        def on_save_checkpoint(self, checkpoint):
            if change == "set":
                checkpoint["state_dict"] = {}
            elif change == "update":
                checkpoint.update(optimizer_states=[])
            else:
                checkpoint.pop("lr_schedulers", None)

    with pytest.raises(ConfigError, match=r"on_save_checkpoint (sets|reads) '(state_dict|opt|lr_sch)"):
        trainer(tmp_path).fit(Changes(), loader())


def test_a_modules_own_load_state_dict_is_called_or_refused(tmp_path) -> None:
    fit = trainer(tmp_path)
    fit.fit(module := Own(), loader())
    path = str(tmp_path / "own")
    fit.save_checkpoint(path)
    sentence = "Own overrides load_state_dict, which isn't called .* pass what Own.load_from_checkpoint"
    with pytest.raises(ConfigError, match=sentence):
        trainer(tmp_path).test(Own(), loader(), ckpt_path=path)
    with pytest.raises(ConfigError, match=sentence):
        trainer(tmp_path, max_epochs=2).fit(Own(), loader(), ckpt_path=path)
    loaded = Own.load_from_checkpoint(path)
    assert loaded.loaded
    assert torch.equal(loaded.net.weight, module.net.weight)


def test_private_methods_of_lightning_are_refused_by_name(tmp_path) -> None:
    class Saves(ModelCheckpoint):
        def _save_checkpoint(self, trainer, filepath):
            raise AssertionError

    class Stops(EarlyStopping):
        def _evaluate_stopping_criteria(self, current):
            raise AssertionError

    class Runs(L.Trainer):
        def _run_stage(self):
            raise AssertionError

    class Moves(Net):
        def _apply_batch_transfer_handler(self, batch, device=None, dataloader_idx=0):
            raise AssertionError

    class Brings(Net):
        def configure_callbacks(self):
            return [Stops("val")]

    class Writes(CSVLogger):
        def _get_next_version(self):
            raise AssertionError

    with pytest.raises(
        ConfigError, match=r"Saves defines _save_checkpoint, a private method of .*ModelCheckp"
    ):
        trainer(tmp_path, callbacks=[Saves()])
    with pytest.raises(ConfigError, match=r"Stops defines _evaluate_stopping_criteria.*should_stop"):
        trainer(tmp_path, callbacks=[Stops("val")])
    with pytest.raises(ConfigError, match="Runs defines _run_stage, a private method of Lightning's Trainer"):
        Runs(**QUIET)
    with pytest.raises(ConfigError, match="Writes defines _get_next_version"):
        trainer(tmp_path, logger=Writes(tmp_path))
    with pytest.raises(ConfigError, match="Moves defines _apply_batch_transfer_handler"):
        trainer(tmp_path).fit(Moves(), loader())
    with pytest.raises(ConfigError, match="Stops defines _evaluate_stopping_criteria"):
        trainer(tmp_path).fit(Brings(), loader(), loader())


def test_all_private_methods_of_lightning_are_in_the_table() -> None:
    lightning = pytest.importorskip(
        "lightning.pytorch", reason="lightning, which is compared, isn't installed"
    )
    from lightning.pytorch import callbacks, loggers, profilers

    ours = set(PRIVATE) - {"HyperparametersMixin"}
    places = (lightning, callbacks, loggers, profilers)
    for kind in {getattr(place, name) for place in places for name in ours if hasattr(place, name)}:
        known = {
            name for each in kind.__mro__ if each.__name__ in PRIVATE for name in PRIVATE[each.__name__][0]
        }
        for each in kind.__mro__:
            if each.__module__.startswith("lightning."):
                methods = {
                    name
                    for name, value in vars(each).items()
                    if name.startswith("_")
                    and not name.startswith(("__", f"_{each.__name__}__"))
                    and (inspect.isroutine(value) or isinstance(value, property))
                }
                assert methods <= known, each


class Own(Net):
    loaded = False

    def load_state_dict(self, state_dict, strict=True):
        self.loaded = True
        renamed = {name.replace("net.", "", 1): value for name, value in state_dict.items()}
        return self.net.load_state_dict(renamed, strict)


class Steps(Net):
    """Logs each second batch of its validations."""

    def validation_step(self, batch, batch_idx):
        if batch_idx % 2:
            self.log("each", float(batch_idx), on_step=True, on_epoch=False)
        self.log("val", 1.0)


def test_values_of_single_validation_steps_have_the_number_of_their_batch(tmp_path) -> None:
    fit = trainer(tmp_path, max_epochs=2, logger=CSVLogger(tmp_path, name="", version="log"))
    fit.fit(Steps(), loader(), loader())
    with (tmp_path / "log/metrics.csv").open() as file:
        rows = [(int(row["step"]), float(row["each"])) for row in csv.DictReader(file) if row.get("each")]
    assert rows == [(1, 1.0), (3, 3.0), (5, 1.0), (7, 3.0)]


def test_a_folder_has_lightnings_checkpoints_and_last(tmp_path) -> None:
    class Values(Net):
        def validation_step(self, batch, batch_idx):
            self.log("val", float(self.current_epoch))

    kept = ModelCheckpoint(tmp_path / "all", "{step}-{val:.0f}", monitor="val", save_top_k=-1)
    cut = {"max_epochs": -1, "max_steps": 7, "val_check_interval": 0.5}
    trainer(tmp_path, callbacks=[kept], **cut).fit(Values(), loader(), loader())
    names = ["step=2-val=0.ckpt", "step=4-val=0.ckpt", "step=6-val=1.ckpt"]
    assert sorted(path.name for path in (tmp_path / "all").glob("[!.]*")) == ["last.ckpt", *names]
    assert len(kept.best_k_models) == 3
    ended = trainer(tmp_path, max_epochs=3)
    ended.fit(Values(), loader(), loader(), ckpt_path=str(tmp_path / "all/last.ckpt"))
    assert ended.global_step == 11


def test_no_batches_are_no_evaluation(tmp_path) -> None:
    class Ends(Net):
        def on_validation_epoch_end(self):
            raise AssertionError

        on_test_epoch_end = on_predict_epoch_end = on_validation_epoch_end
        on_validation_start = on_test_start = on_predict_start = on_validation_epoch_end

    none = trainer(tmp_path, limit_val_batches=0, limit_test_batches=0.0, limit_predict_batches=0)
    assert none.validate(Ends(), loader()) == []
    assert none.test(Ends(), loader()) == []
    assert none.predict(Ends(), loader()) == []
    none.fit(Ends(), loader(), loader())


def test_a_graph_is_logged_where_the_loggers_own_attribute_says_so(tmp_path) -> None:
    pytest.importorskip("tensorboard")
    fit = trainer(tmp_path, logger=TensorBoardLogger(tmp_path), limit_train_batches=1)
    drawn = []
    fit.logger._log_graph = True
    fit.logger.experiment.add_graph = lambda *given, **how: drawn.append(given)
    module = Net()
    module.forward = lambda x: module.net(x)
    module.example_input_array = torch.zeros(2, 4)
    fit.fit(module, loader())
    assert len(drawn) == 1


class Draws(L.LightningModule):
    """Drops out while it trains, and draws while it is validated."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.seen: list[Any] = []

    def training_step(self, batch, batch_idx):
        loss = self.net(batch[0]).mean()
        self.seen.append(loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        self.seen.append((batch[0].flatten().tolist(), torch.rand(1).item()))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


NUMBERS = TensorDataset(torch.arange(20.0).view(20, 1))


def test_validations_draw_from_the_trainings_random_numbers(tmp_path) -> None:
    def expected() -> list[Any]:
        L.seed_everything(3)
        module, train = Draws(), DataLoader(NUMBERS, 5)
        optimizer, val = module.configure_optimizers(), DataLoader(NUMBERS, 5, shuffle=True)
        for _epoch in range(2):
            for index, batch in enumerate(train):
                module.train()
                optimizer.zero_grad()
                module.training_step(batch, index).backward()
                optimizer.step()
            module.eval()
            with torch.no_grad():
                for index, batch in zip(range(2), val):
                    module.validation_step(batch, index)
        return module.seen

    def found(epochs: int, ckpt_path: str | None = None, sanity: int = 0) -> list[Any]:
        L.seed_everything(3)
        limits = {"max_epochs": epochs, "limit_val_batches": 2, "num_sanity_val_steps": sanity}
        fit = trainer(tmp_path, callbacks=[ModelCheckpoint(tmp_path / f"{epochs}")], **limits)
        fit.fit(
            module := Draws(),
            DataLoader(NUMBERS, 5),
            DataLoader(NUMBERS, 5, shuffle=True),
            ckpt_path=ckpt_path,
        )
        return module.seen[sanity:]

    assert found(2) == found(2, sanity=2) == expected()
    assert found(1) == expected()[:6]
    assert found(2, ckpt_path=str(tmp_path / "1/last.ckpt")) == expected()[6:]


class Reads(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
        self.seen: list[list[float]] = []

    def training_step(self, batch, batch_idx):
        return self.net(batch[0]).mean()

    def validation_step(self, batch, batch_idx):
        self.seen.append(batch[0].flatten().tolist())

    def on_train_end(self):
        torch.save(self.seen, f"seen-{self.global_rank}.pt")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_two_processes_evaluate_what_torchs_distributed_sampler_draws(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    L.seed_everything(5)
    settings = {"devices": 2, "strategy": "ddp", "enable_checkpointing": False}
    fit = trainer(tmp_path, max_epochs=2, limit_train_batches=1, limit_val_batches=3, **settings)
    fit.fit(Reads(), DataLoader(NUMBERS, 2), DataLoader(NUMBERS, 2, shuffle=True))
    for rank in range(2):
        wanted = []
        for epoch in range(2):
            sampler = DistributedSampler(NUMBERS, 2, rank, shuffle=True, seed=5)
            sampler.set_epoch(epoch)
            batches = [batch.flatten().tolist() for (batch,) in DataLoader(NUMBERS, 2, sampler=sampler)]
            wanted += batches[:3]
        assert torch.load(f"seen-{rank}.pt") == wanted


class Kept(Draws):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(1, width)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["words"] = ["a", "b"]


@pytest.mark.filterwarnings("ignore")  # Lightning's, of torch's names
def test_checkpoints_are_files_that_torch_and_lightning_read_where_asked_for(tmp_path, monkeypatch) -> None:
    kept = ModelCheckpoint(tmp_path / "files", "{epoch}", as_file=True)
    first = trainer(tmp_path, callbacks=[kept], max_epochs=2)
    first.fit(module := Kept(), DataLoader(NUMBERS, 5))
    path = kept.best_model_path
    assert path == str(tmp_path / "files/epoch=1.ckpt")
    assert sorted(each.name for each in (tmp_path / "files").glob("*.ckpt")) == ["epoch=1.ckpt", "last.ckpt"]
    content = torch.load(path)
    assert torch.equal(content["state_dict"]["net.weight"], module.net.weight)
    assert (content["epoch"], content["global_step"], content["words"]) == (1, 8, ["a", "b"])
    assert content["hyper_parameters"] == {"width": 3}
    assert torch.load(kept.last_model_path)["global_step"] == 8
    # Here a file stands for its folder.
    assert torch.equal(Kept.load_from_checkpoint(path).net.weight, module.net.weight)
    second = trainer(tmp_path, max_epochs=3)
    second.fit(Kept(), DataLoader(NUMBERS, 5), ckpt_path=path)
    assert second.global_step == 12
    monkeypatch.setenv("STRATAGEM_CKPT_FILES", "1")
    third = trainer(tmp_path)
    third.fit(module, DataLoader(NUMBERS, 5))
    third.save_checkpoint(tmp_path / "own.ckpt")
    assert torch.load(tmp_path / "own.ckpt")["hyper_parameters"] == {"width": 3}
    assert torch.load(third.checkpoint_callback.best_model_path)["global_step"] == 4
    monkeypatch.setenv("STRATAGEM_CKPT_FILES", "yes")
    with pytest.raises(ConfigError, match="STRATAGEM_CKPT_FILES='yes' must be 1"):
        trainer(tmp_path)
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning, which reads it, isn't installed")

    class There(lightning.LightningModule):
        def __init__(self, width=1):
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Linear(1, width)

        def training_step(self, batch, batch_idx):
            return self.net(batch[0]).mean()

        configure_optimizers = Draws.configure_optimizers

    assert torch.equal(There.load_from_checkpoint(path).net.weight, content["state_dict"]["net.weight"])
    quiet = {**QUIET, "logger": False, "enable_checkpointing": False}
    goes_on = lightning.Trainer(max_epochs=3, **quiet)
    goes_on.fit(There(3), DataLoader(NUMBERS, 5), ckpt_path=path)
    assert goes_on.global_step == 12


def test_a_smaller_last_window_is_divided_by_a_whole_one(tmp_path: Path) -> None:
    """8 batches in windows of 3: Lightning divides the last two losses by 3, as all others."""

    class Net(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    loader, ours, plain = DataLoader(TensorDataset(x), batch_size=2), Net(), Net()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        accumulate_grad_batches=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(ours, loader)
    optimizer = plain.configure_optimizers()
    for index, batch in enumerate(loader):
        (plain.training_step(batch, index) / 3).backward()
        if index in (2, 5, 7):
            optimizer.step()
            optimizer.zero_grad()
    assert torch.equal(ours.net.weight, plain.net.weight)
