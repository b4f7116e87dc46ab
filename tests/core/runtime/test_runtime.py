"""`Runtime` in one process; tests/integration/test_runtime.py has it on several."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from small import Line, samples
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

import stratagem
from stratagem import Clipping, PreparedWrapper, hookimpl
from stratagem.errors import ConfigError, NonFiniteError, StratagemError, UsageError
from stratagem.runtime.loaders import EpochLoader, EvalLoader
from stratagem.sdk.loops import PreparedModule

HERE = {"strategy": "single", "accelerator": "cpu"}


def launch(work: Any, *args: Any, **config: Any) -> Any:
    return stratagem.Runtime(**{**HERE, **config}).launch(work, *args, quiet=True)


# Its life -----------------------------------------------------------------------------------------------


def test_a_runtime_outside_of_launch_says_so() -> None:
    runtime = stratagem.Runtime(strategy="ddp", accelerator="cpu", devices=2)
    with pytest.raises(StratagemError, match=r"isn't live: call launch\(\) first"):
        _ = runtime.rank
    with pytest.raises(UsageError, match="stratagem run"):
        runtime.launch(quiet=True)
    with pytest.raises(ConfigError, match="Runtime has no argument 'number'"):
        stratagem.Runtime(number=2)
    with pytest.raises(ConfigError, match="gpus=2 is now called accelerator='cuda', devices=2"):
        stratagem.Runtime(gpus=2)


def test_a_script_launches_a_runtime_once_until_it_is_closed() -> None:
    runtime = stratagem.Runtime(**HERE)
    runtime.launch(quiet=True)
    first = runtime.session
    with pytest.raises(UsageError, match="live already"):
        runtime.launch(quiet=True)
    assert runtime.session is first
    runtime.close()
    runtime.close()
    assert runtime.launch(lambda runtime: runtime.session is not first, quiet=True)


def test_it_returns_what_the_function_returns_and_prints_the_plan_unless_it_is_quiet(capsys: Any) -> None:
    def add(runtime: Any, first: int, second: int) -> int:
        return first + second

    assert stratagem.Runtime(**HERE).launch(add, 1, 2, quiet=True) == 3
    assert capsys.readouterr().err == ""
    assert stratagem.Runtime(**HERE).launch(add, 1, 2) == 3
    assert capsys.readouterr().err.startswith("plan\n")
    assert stratagem.Runtime(**HERE).launch(add, 1, second=3) == 4
    assert stratagem.Runtime(**HERE).launch(add, first=2, second=3, quiet=True) == 5


def test_arguments_without_a_function_are_refused() -> None:
    for args, kwargs in (((3,), {}), ((), {"epochs": 3})):
        with pytest.raises(ConfigError, match="arguments and no function: give the function that takes them"):
            stratagem.Runtime(**HERE).launch(None, *args, **kwargs)


def test_what_is_pickled_is_not_live() -> None:
    def work(runtime: Any) -> Any:
        runtime.setup(nn.Linear(1, 1))
        again = pickle.loads(pickle.dumps(runtime))
        assert runtime.session.collectives.world_size == 1
        return again

    again = launch(work, seed=3)
    assert again.config.seed == 3
    with pytest.raises(StratagemError, match="isn't live"):
        _ = again.session
    assert again.launch(lambda runtime: runtime.world_size, quiet=True) == 1


def test_what_was_set_up_goes_with_its_run() -> None:
    runtime = stratagem.Runtime(**HERE)
    runtime.launch(lambda runtime: runtime.setup(nn.Linear(1, 1)), quiet=True)
    with pytest.raises(ConfigError, match="no module was set up"):
        runtime.launch(lambda runtime: runtime.no_sync(), quiet=True)


def test_a_seed_is_every_generators() -> None:
    def work(runtime: Any) -> Any:
        first = torch.rand(())
        runtime.seed_everything(3)
        assert torch.equal(torch.rand(()), first)
        return first.item()

    torch.manual_seed(8)
    seeded = launch(work, seed=3)
    torch.manual_seed(9)
    assert launch(work, seed=3) == seeded
    torch.manual_seed(9)
    expected = torch.rand(())
    torch.manual_seed(9)
    assert launch(lambda runtime: torch.rand(())) == expected


# Set up -------------------------------------------------------------------------------------------------


class Watches:
    """Notes how modules are set up; its backward is not autograd's alone, where it says so."""

    def __init__(self, own_backward: bool = False) -> None:
        self.asked: list[Any] = []
        self.backwards: list[nn.Module] = []
        self.own_backward = own_backward

    @hookimpl(wrapper=True)
    def setup(self, request: Any) -> Any:
        self.asked.append(request)
        prepared = yield
        backwards = self.backwards

        class Noting(PreparedWrapper):
            def backward(self, loss: Any, **kwargs: Any) -> None:
                backwards.append(self.original_module)
                super().backward(loss, **kwargs)

        return Noting(prepared) if self.own_backward else prepared


def test_a_module_alone_is_evaluated_and_with_optimizers_trained() -> None:
    watches = Watches()

    def work(runtime: Any) -> None:
        alone, trained = nn.Linear(1, 1), nn.Linear(1, 1)
        assert runtime.setup(alone) is alone
        module, first, second = runtime.setup(
            trained,
            SGD([trained.weight], lr=1.0),
            lambda module: SGD([module.bias], lr=2.0),
            accumulate=4,
            clipping=Clipping(max_norm=1.0),
        )
        assert (module, first.param_groups[0]["lr"], second.param_groups[0]["lr"]) == (trained, 1.0, 2.0)

    launch(work, plugins=[watches], run_dir="runs/a")
    for request, plan in zip(
        watches.asked, [(False, 1, Clipping()), (True, 4, Clipping(max_norm=1.0))], strict=True
    ):
        assert (request.loop.training, request.loop.accumulate, request.loop.clipping) == plan
        assert request.config.run_dir == "runs/a"


def test_misuse_of_a_live_runtime_is_reported() -> None:
    def work(runtime: Any) -> None:
        model = Line()
        first = runtime.setup(model)  # no optimizer: for evaluation
        assert torch.equal(first.layer.weight, model.layer.weight)
        with pytest.raises(ConfigError, match=r"pass the module"):
            runtime.backward(torch.zeros(()), module=nn.Linear(1, 1))
        optimizer = SGD(model.parameters(), lr=1.0)
        with pytest.raises(ConfigError, match="wasn't set up"):
            runtime.clip(optimizer, max_norm=1.0)
        with pytest.raises(ConfigError, match="clip got no limit: give max_norm or max_value"):
            runtime.clip(optimizer)
        for given, said in (
            ([nn.Linear], "the class Linear first: give your module, and then"),
            ([optimizer, model], "an object of SGD first: give your module"),
            ([PreparedModule(runtime._prepared[0])], "an object of PreparedModule first: give your module"),
            ([model, [optimizer]], "an object of list for an optimizer: give optimizers one by one"),
            (
                [model, StepLR(optimizer, 1)],
                "an object of StepLR for an optimizer: .*; schedulers stay as they are",
            ),
        ):
            with pytest.raises(ConfigError, match=f"^setup got {said}"):
                runtime.setup(*given)
        for call in (runtime.save, runtime.load):
            with pytest.raises(
                ConfigError, match=r"^state is an object of list: give a dict of what to keep, by name"
            ):
                call("somewhere", [1])

    launch(work)


# Loaders ------------------------------------------------------------------------------------------------


def test_loaders_are_for_training_unless_they_say_otherwise() -> None:
    def work(runtime: Any) -> None:
        loader = DataLoader(samples(7), 2, shuffle=True)
        assert type(runtime.dataloader(loader)) is EpochLoader
        evaluation = runtime.dataloader(loader, evaluation=True)
        assert type(evaluation) is EvalLoader
        read = torch.cat([x for x, _ in evaluation])
        assert torch.equal(read, samples(7).tensors[0])
        (only,) = [runtime.setup_dataloaders(loader)]
        assert type(only) is EpochLoader
        both = runtime.setup_dataloaders(loader, loader)
        assert [type(each) for each in both] == [EpochLoader, EpochLoader]
        assert runtime.setup_dataloaders() == []

    launch(work)


def test_batches_are_moved_by_what_was_set_up_last() -> None:
    moved: list[Any] = []

    class Moves:
        @hookimpl(wrapper=True)
        def setup(self, request: Any) -> Any:
            class Noting(PreparedWrapper):
                def dataloader(self, loader: Any) -> Any:
                    moved.append(self.original_module)
                    return super().dataloader(loader)

            return Noting((yield))

    def work(runtime: Any) -> None:
        first, last = nn.Linear(1, 1), nn.Linear(1, 1)
        for net in (first, last):
            runtime.setup(net)
            assert len(list(runtime.dataloader(DataLoader(samples(4), 2)))) == 2
        assert moved == [first, last]

    launch(work, plugins=[Moves()])


def test_a_loader_that_is_left_alone_is_read_as_it_is() -> None:
    def work(runtime: Any) -> None:
        order = torch.Generator().manual_seed(4)
        loader = DataLoader(samples(6), 2, shuffle=True, generator=order)
        expected = torch.cat(
            [x for x, _ in DataLoader(samples(6), 2, shuffle=True, generator=order.clone_state())]
        )
        for made in (
            runtime.dataloader(loader, use_distributed_sampler=False),
            runtime.setup_dataloaders(loader, use_distributed_sampler=False),
        ):
            order.manual_seed(4)
            assert torch.equal(torch.cat([x for x, _ in made]), expected)

    launch(work, seed=1)


# Steps --------------------------------------------------------------------------------------------------


def test_what_no_module_computes_has_the_runs_precision_too() -> None:
    def product(runtime: Any) -> torch.dtype:
        with runtime.autocast():
            return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

    assert launch(product) is torch.float32
    assert launch(product, precision="bf16-mixed") is torch.bfloat16


def test_several_modules_need_no_name_where_backward_is_autograds_alone() -> None:
    def work(runtime: Any, names: bool) -> Any:
        first, second = (
            runtime.setup(nn.Linear(1, 1), lambda net: SGD(net.parameters()))[0] for _ in range(2)
        )
        loss = second(first(torch.ones(1, 1))).sum()
        runtime.backward(loss, second if names else None)
        return first.weight.grad is not None and second.weight.grad is not None

    assert launch(work, False)
    own = Watches(own_backward=True)
    with pytest.raises(ConfigError, match="2 modules were set up: pass the module"):
        launch(work, False, plugins=[own])
    assert own.backwards == []
    assert launch(work, True, plugins=[own])
    assert own.backwards == [own.asked[-1].original_module]


def test_windows_are_apart_only_where_they_are_enabled() -> None:
    inside: list[bool] = []

    class Windows:
        @hookimpl(wrapper=True)
        def setup(self, request: Any) -> Any:
            prepared = yield
            no_sync = prepared.no_sync

            def noted() -> Any:
                inside.append(True)
                return no_sync()

            prepared.no_sync = noted
            return prepared

    def work(runtime: Any) -> None:
        net = runtime.setup(nn.Linear(1, 1), lambda net: SGD(net.parameters()))[0]
        for enter in (runtime.no_sync, lambda: runtime.no_sync(net), lambda: runtime.no_backward_sync(net)):
            before = len(inside)
            with enter():
                assert len(inside) == before + 1
        with runtime.no_backward_sync(net, enabled=False):
            assert len(inside) == 3

    launch(work, plugins=[Windows()])


def test_gradients_are_clipped_by_norm_or_by_value() -> None:
    def work(runtime: Any) -> None:
        net, optimizer = runtime.setup(nn.Linear(2, 1, bias=False), lambda net: SGD(net.parameters()))

        def clipped(clip: Any) -> Any:
            net.weight.grad = torch.tensor([[3.0, -4.0]])
            norm = clip()
            return None if norm is None else norm.item(), net.weight.grad.tolist()

        assert clipped(lambda: runtime.clip(optimizer, max_norm=10.0)) == (5.0, [[3.0, -4.0]])
        assert clipped(lambda: runtime.clip(optimizer, max_norm=9.0, norm_type=1.0))[0] == 7.0
        assert clipped(lambda: runtime.clip(optimizer, max_value=2.0)) == (None, [[2.0, -2.0]])
        assert clipped(lambda: runtime.clip_gradients(net, optimizer, 2.0)) == (None, [[2.0, -2.0]])
        norm, grad = clipped(lambda: runtime.clip_gradients(net, optimizer, max_norm=1.0))
        assert norm == 5.0
        assert torch.tensor(grad).norm() == pytest.approx(1.0)
        assert clipped(lambda: runtime.clip_gradients(net, optimizer, max_norm=9.0, norm_type=1.0))[0] == 7.0

    launch(work)


def test_norms_that_arent_finite_are_an_error_unless_they_may_be() -> None:
    def work(runtime: Any) -> None:
        model = Line()
        model, optimizer = runtime.setup(model, SGD(model.parameters(), lr=0.1))
        runtime.backward(model(torch.full((1, 4), float("inf"))).sum())
        with pytest.raises(NonFiniteError, match=r"norm is (nan|inf): skip the batch"):
            runtime.clip_gradients(model, optimizer, max_norm=1.0)
        norm = runtime.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
        assert not norm.isfinite()
        assert runtime.clip_gradients(model, optimizer, clip_val=1.0) is None
        with pytest.raises(ConfigError, match="wasn't set up"):
            runtime.clip_gradients(model, SGD(Line().parameters(), lr=0.1), max_norm=1.0)

    launch(work)


# Checkpoints --------------------------------------------------------------------------------------------


def test_what_was_saved_is_loaded_and_the_rest_of_the_state_returned(tmp_path: Any) -> None:
    def save(runtime: Any) -> Any:
        net, _ = runtime.setup(nn.Linear(1, 1), lambda net: SGD(net.parameters()))
        runtime.save(tmp_path / "with", {"step": 3, "net": net, "more": "kept"})
        runtime.save(str(tmp_path / "without"))
        return net.weight.item()

    def load(runtime: Any) -> Any:
        net, _ = runtime.setup(nn.Linear(1, 1), lambda net: SGD(net.parameters()))
        state = {"step": 0, "net": net}
        rest = runtime.load(tmp_path / "with", state)
        assert runtime.load(str(tmp_path / "without")) == {}
        return net.weight.item(), state["step"], rest

    weight = launch(save)
    assert launch(load) == (weight, 3, {"more": "kept"})


def test_checksums_are_compared_unless_it_says_otherwise(tmp_path: Any) -> None:
    verified: list[bool] = []

    class Opens:
        @hookimpl(wrapper=True)
        def checkpoint(self, request: Any) -> Any:
            class Noting(stratagem.CheckpointerWrapper):
                def open(self, path: str, verify: bool = True) -> Any:
                    verified.append(verify)
                    return super().open(path, verify)

            return Noting((yield))

    def work(runtime: Any) -> None:
        runtime.setup(nn.Linear(1, 1))
        runtime.save(tmp_path / "a")
        runtime.load(tmp_path / "a")
        runtime.load(tmp_path / "a", verify=False)

    launch(work, plugins=[Opens()])
    assert verified == [True, False]
