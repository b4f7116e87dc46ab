"""Callbacks under one process, ddp and fsdp, held against plain loops with torch's own averaging."""

from __future__ import annotations

import os

import callback_nets as nets
import pytest
import torch
from callback_nets import Net, assert_equal, plain, trainer, values
from stratagem_callbacks import (
    BackboneFinetuning,
    DeviceStatsMonitor,
    EMAWeightAveraging,
    ModelPruning,
    StochasticWeightAveraging,
    ThroughputMonitor,
    WeightAveraging,
)
from stratagem_trainer.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelSummary,
    Timer,
)
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader

RANKS = [("single", 1), ("ddp", 2), ("fsdp", 2)]
under = pytest.mark.parametrize(("strategy", "devices"), RANKS)


@under
def test_ema_equals_torchs_validates_with_the_average_and_resumes_exactly(tmp_path, strategy, devices):
    reference = Net()
    averaged = AveragedModel(reference, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True)
    plain(reference, 3, after_step=averaged.update_parameters)

    def parts():
        kept = ModelCheckpoint(monitor="val_loss", save_top_k=-1, filename="{epoch}")
        monitors = (DeviceStatsMonitor(), ThroughputMonitor(), LearningRateMonitor(), Timer("00:00:10:00"))
        return [EMAWeightAveraging(decay=0.8), kept, EarlyStopping("val_loss", patience=9), *monitors]

    module, callbacks = Net(8 // devices), parts()
    run = trainer(strategy, tmp_path / "a", *callbacks, devices=devices, log_every_n_steps=1, logger=True)
    run.fit(module)
    assert_equal(values(module), values(averaged.module))
    whole = torch.stack([averaged.module.loss(nets.data()[:])])
    assert run.callback_metrics["val_loss"] == pytest.approx(float(whole.detach()), abs=1e-5)
    assert run.callback_metrics["train/samples"] == 96 / devices
    assert run.callback_metrics["lr-SGD"] == 0.05
    assert callbacks[6].time_elapsed() > 0
    # A checkpoint has the averages as its weights; a resumed run goes on from what was trained.
    best = callbacks[1].kept[0].path
    again = Net(8 // devices)
    first = str(tmp_path / "a" / "checkpoints" / "epoch=0")
    trainer(strategy, tmp_path / "b", *parts(), devices=devices).fit(again, ckpt_path=first)
    assert_equal(values(again), values(module), atol=0 if strategy == "single" else 1e-6)
    result = trainer(strategy, tmp_path / "c", devices=devices).validate(Net(8 // devices), ckpt_path=best)
    result = result[0] if isinstance(result, list) else result
    assert result["val_loss"] == pytest.approx(callbacks[1].best_model_score, abs=1e-6)


@under
def test_swa_equals_torchs_loop_with_batch_norm(tmp_path, strategy, devices):
    # One batch for all: ranks' statistics of half a batch aren't those of the whole.
    norm = devices == 1
    reference = Net(norm=norm)
    averaged = AveragedModel(reference)
    kept = {}

    def before(epoch, optimizer):
        if epoch == 1:
            kept["rates"] = SWALR(optimizer, 0.01, anneal_epochs=2)

    def after(epoch, optimizer):
        if epoch >= 1:
            averaged.update_parameters(reference)
            kept["rates"].step()

    plain(reference, 4, before_epoch=before, after_epoch=after)
    update_bn((batch[0] for batch in DataLoader(nets.data(), batch_size=8)), averaged)
    module = Net(8 // devices, norm=norm)
    swa = StochasticWeightAveraging(0.01, 2, annealing_epochs=2)
    trainer(strategy, tmp_path, swa, devices=devices, max_epochs=4).fit(module)
    assert_equal(values(module), values(averaged.module))


@under
def test_finetuning_equals_a_plain_loop_and_resumes(tmp_path, strategy, devices):
    reference = Net()
    reference.backbone.requires_grad_(False)

    def before(epoch, optimizer):
        if epoch == 1:
            reference.backbone.requires_grad_(True)
            optimizer.add_param_group({"params": list(reference.backbone.parameters()), "lr": 0.005})
        elif epoch == 2:
            optimizer.param_groups[1]["lr"] = 0.01

    plain(reference, 3, before_epoch=before)

    def parts():
        return BackboneFinetuning(1), ModelCheckpoint(save_top_k=-1, filename="{epoch}")

    module = Net(8 // devices)
    run = trainer(strategy, tmp_path / "a", *parts(), devices=devices, gradient_clip_val=1e9)
    run.fit(module)
    assert_equal(values(module), values(reference))
    again = Net(8 // devices)
    second = str(tmp_path / "a" / "checkpoints" / "epoch=1")
    trainer(strategy, tmp_path / "b", *parts(), devices=devices).fit(again, ckpt_path=second)
    assert_equal(values(again), values(reference))


@under
def test_pruning_zeroes_alike_and_accumulation_changes_steps(tmp_path, strategy, devices, capfd):
    pruning = ModelPruning(
        "l1_unstructured",
        parameter_names=["weight"],
        amount=0.5,
        use_lottery_ticket_hypothesis=False,
        verbose=1,
    )
    module = Net(8 // devices)
    summary = ModelSummary(max_depth=-1)
    run = trainer(
        strategy, tmp_path, pruning, GradientAccumulationScheduler({1: 2}), summary, devices=devices
    )
    run.fit(module)
    zeros = {name: int((value == 0).sum()) for name, value in module.named_parameters()}
    # 40 weights: half, then half of the rest, and again.
    assert zeros["backbone.0.weight"] + zeros["head.weight"] == 35
    assert zeros["backbone.0.bias"] == zeros["head.bias"] == 0
    assert run.global_step == 4 + 2 + 2
    if devices == 1:  # what workers print goes where the fork server's output goes
        shown = capfd.readouterr()
        assert "Epoch 3: 35 of 40 parameters are pruned" in shown.out
        assert "49 parameters, 49 trained; 160 FLOPs in a forward" in shown.err
    held = {("single", 1): [196], ("ddp", 2): [196, 196], ("fsdp", 2): [116, 80]}
    assert summary.bytes_per_rank == held[strategy, devices]


def only_in_the_first(epoch):
    return epoch == 0


@under
@pytest.mark.parametrize("lottery", [False, True])
def test_pruned_runs_resume_with_their_masks(tmp_path, strategy, devices, lottery):
    def parts():
        pruning = ModelPruning(
            "l1_unstructured",
            amount=0.5,
            apply_pruning=only_in_the_first,
            use_lottery_ticket_hypothesis=lottery,
        )
        return pruning, ModelCheckpoint(save_top_k=-1, filename="{epoch}")

    module = Net(8 // devices)
    trainer(strategy, tmp_path / "a", *parts(), devices=devices).fit(module)
    # 49 parameters, with biases.
    assert sum(int((value == 0).sum()) for value in module.parameters()) == 24
    for epoch in (0, 1):
        again = Net(8 // devices)
        path = str(tmp_path / "a" / "checkpoints" / f"epoch={epoch}")
        trainer(strategy, tmp_path / f"b{epoch}", *parts(), devices=devices).fit(again, ckpt_path=path)
        assert_equal(values(again), values(module), atol=0 if strategy == "single" else 1e-6)


def test_masks_are_those_of_torchs_pruning(tmp_path):
    from torch.nn.utils import prune

    module = Net(lr=0.0)
    layer = nn.Linear(4, 8)
    layer.load_state_dict(module.backbone[0].state_dict())
    prune.ln_structured(layer, "weight", amount=3, n=2, dim=0)
    pruning = ModelPruning(
        "ln_structured",
        parameters_to_prune=[("backbone.0", "weight")],
        use_global_unstructured=False,
        amount=3,
        pruning_dim=0,
        pruning_norm=2,
    )
    trainer("single", tmp_path, pruning, max_epochs=1).fit(module)
    assert torch.equal(module.backbone[0].weight, layer.weight)


def test_weights_alone_serve_evaluations_and_nothing_else(tmp_path):
    from stratagem.errors import StratagemError

    kept = ModelCheckpoint(save_weights_only=True, filename="w", dirpath=str(tmp_path / "w"))
    average = WeightAveraging()
    module = Net()
    trainer("single", tmp_path / "a", kept, average, max_epochs=1).fit(module)
    path = str(tmp_path / "w" / "w")
    loaded = Net()
    trainer("single", tmp_path / "b").validate(loaded, ckpt_path=path)
    assert_equal(values(loaded), values(module), atol=0)
    with pytest.raises(StratagemError, match="only weights"):
        trainer("single", tmp_path / "c").fit(Net(), ckpt_path=path)


def test_a_strategy_that_cannot_is_refused_by_name_before_launch(tmp_path):
    from stratagem.errors import CombinationError

    for callback in (
        BackboneFinetuning(),
        EMAWeightAveraging(),
        StochasticWeightAveraging(0.1),
        ModelPruning("l1_unstructured"),
    ):
        with pytest.raises(CombinationError, match=f"'pipeline'.*{type(callback).__name__}"):
            trainer("pipeline", tmp_path, callback, devices=2).fit(Net())
    assert os.listdir(tmp_path) == []
