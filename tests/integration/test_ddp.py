"""ddp on real processes: logging, evaluation, manual optimization, resumption, failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from parity import Net
from small import Closure, Descent, Fails, Line, Normed, TwoPlayers, Unequal
from stratagem_ddp import DDPStrategy

import stratagem
from stratagem.errors import LoggingError, WorkerError


def trainer(tmp_path: Path, devices: int = 2, strategy: Any = "ddp", **how: Any) -> stratagem.Trainer:
    settings = {
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "run_dir": tmp_path / f"run{devices}",
        "seed": 1,
        "max_epochs": 1,
        **how,
    }
    return stratagem.Trainer(strategy=strategy, devices=devices, **settings)


def weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def assert_close(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], atol: float = 1e-6) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], atol=atol, rtol=0, msg=name)


def test_evaluation_sees_every_sample_once_and_equals_one_process(tmp_path: Path) -> None:
    # 389 images: nothing divides them evenly.
    module = Net(batch_size=16)
    alone = trainer(tmp_path, 1, "single").test(module)[0]
    together = trainer(tmp_path, 3).test(module)[0]
    assert alone["seen"] == together["seen"] == 389
    assert together == pytest.approx(alone, abs=1e-6)


def test_predictions_come_in_the_order_of_the_data(tmp_path: Path) -> None:
    module = Line(count=21, batch_size=4)
    predicted = trainer(tmp_path, 2).predict(module)
    expected = module(module.predict_dataloader().dataset.tensors[0]).detach()
    torch.testing.assert_close(torch.cat([part.reshape(-1, 1) for part in predicted]), expected)


def test_manual_optimization_averages_gradients(tmp_path: Path) -> None:
    one, two = TwoPlayers(), TwoPlayers()
    two.batch_size = 2
    trainer(tmp_path, 1, "single").fit(one)
    trainer(tmp_path, 2).fit(two)
    assert_close(weights(two), weights(one))


def test_closures_equal_one_process(tmp_path: Path) -> None:
    one, two = Closure(batch_size=16), Closure(batch_size=8)
    trainer(tmp_path, 1, "single").fit(one)
    trainer(tmp_path, 2).fit(two)
    assert_close(weights(two), weights(one), atol=1e-5)


def test_every_keyword_reaches_ddp_and_unused_parameters_are_found(tmp_path: Path) -> None:
    strategy = DDPStrategy(
        find_unused_parameters=True,
        gradient_as_bucket_view=True,
        bucket_cap_mb=1,
        timeout_s=200,
        start_method="fork",
    )
    module = Normed()
    before = weights(module)
    t = trainer(tmp_path, 2, strategy, max_steps=3)
    t.fit(module)
    after = weights(module)
    assert t.global_step == 3
    assert not torch.equal(before["layer.weight"], after["layer.weight"])
    assert torch.equal(before["frozen.weight"], after["frozen.weight"])
    assert torch.equal(before["unused.weight"], after["unused.weight"])
    assert after["norm.num_batches_tracked"] == 3


def test_ranks_that_log_different_names_get_an_error(tmp_path: Path) -> None:
    with pytest.raises((LoggingError, WorkerError), match="loss_1") as caught:
        trainer(tmp_path, 2, log_every_n_steps=1).fit(Unequal())
    assert "ranks log different values" in str(caught.value)


def grandchildren() -> set[int]:
    """Workers among others: the fork server's children, and what other tests keep."""
    return {worker.pid for server in psutil.Process().children() for worker in server.children()}


def test_a_rank_that_raises_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    before = grandchildren()
    with pytest.raises(WorkerError) as caught:
        trainer(tmp_path, 2).fit(Fails())
    error = caught.value
    assert (error.rank, error.exit_code) == (1, 1)
    assert "the third batch is cursed" in str(error)
    assert "in training_step" in error.traceback
    # The fork server stays for the next launch, but none of its children does.
    assert grandchildren() <= before


class SaveAt(stratagem.Callback):
    def __init__(self, batches: int, path: Path) -> None:
        self.left, self.path = batches, path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.left -= 1
        if self.left == 0:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("later", [1, 2, 4])
def test_resumes_in_mid_epoch_at_any_world_size(tmp_path: Path, later: int) -> None:
    path = tmp_path / "ckpt"
    whole, rest = Line(batch_size=4), Line(batch_size=8 // later)
    trainer(tmp_path, 2, callbacks=SaveAt(2, path), max_epochs=2).fit(whole)
    resumed = trainer(tmp_path, later, max_epochs=2)
    resumed.fit(rest, ckpt_path=path)
    assert resumed.global_step == 12
    assert_close(weights(rest), weights(whole))


class Halved(DDPStrategy):
    """Wraps DDP with a hook that averages gradients and halves them."""

    def configure_ddp(self, module: Any, device: Any) -> Any:
        ddp = super().configure_ddp(module, device)
        ddp.register_comm_hook(None, _halve)
        return ddp


def _halve(state, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations, not their text
    work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0] / 4)


def test_a_subclass_overrides_configure_ddp_without_pluggy(tmp_path: Path) -> None:
    start, halved, whole = Descent().layer.weight.detach(), Descent(), Descent()
    trainer(tmp_path, 2, Halved(start_method="fork"), max_steps=1).fit(halved)
    trainer(tmp_path, 2, DDPStrategy(start_method="fork"), max_steps=1).fit(whole)
    torch.testing.assert_close(2 * (halved.layer.weight - start), whole.layer.weight - start)


def test_comm_hook_state_wrapper_and_averaging(tmp_path: Path) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook

    one, two = Line(), Line(batch_size=2)
    trainer(tmp_path, 1, "single").fit(one)
    wrapped = DDPStrategy(
        ddp_comm_hook=default_hooks.allreduce_hook,
        ddp_comm_wrapper=default_hooks.fp16_compress_wrapper,
        start_method="fork",
    )
    trainer(tmp_path, 2, wrapped).fit(two)
    assert_close(weights(two), weights(one), atol=2e-3)  # gradients travelled in 16 bits
    state = post_localSGD_hook.PostLocalSGDState(None, None, 2, post_local_gradient_allreduce=False)
    local = DDPStrategy(
        ddp_comm_state=state,
        ddp_comm_hook=post_localSGD_hook.post_localSGD_hook,
        model_averaging_period=3,
        start_method="fork",
    )
    module = Line(batch_size=2)
    agree = Agree()
    trainer(tmp_path, 2, local, callbacks=agree).fit(module)
    # Averaged after step 12, a multiple of 3; between, local steps let ranks drift.
    assert agree.apart[12] == 0
    assert agree.apart[11] > 0


class Agree(stratagem.Callback):
    """Keeps how far the ranks' parameters are apart after each step."""

    def __init__(self) -> None:
        self.apart: dict[int, float] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"apart": [*self.apart.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.apart = dict(state["apart"])

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        gathered = trainer.collectives.all_gather(module.layer.weight)
        self.apart[trainer.global_step] = (gathered[0] - gathered[1]).abs().max().item()
