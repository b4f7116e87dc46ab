"""Selection and negotiation, before anything is launched."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest
import torch
from stratagem_cpu import CpuAccelerator
from stratagem_ddp import DDPStrategy
from stratagem_single import SingleDeviceStrategy

import stratagem
from stratagem import RunConfig
from stratagem.errors import (
    CombinationError,
    ConfigError,
    ConflictError,
    DeviceError,
    PrecisionError,
    UnknownNameError,
    UsageError,
)
from stratagem.resolve.run import Run, assemble
from stratagem.runtime.plan import plan_lines


def run(environ: dict[str, str] | None = None, **config: Any) -> Run:
    return assemble(RunConfig(**config), environ or {})


def choice(made: Run, kind: str) -> Any:
    return next(each for each in made.resolved if each.kind == kind)


def test_auto_is_one_process_on_the_best_device() -> None:
    made = run(accelerator="cpu")
    assert isinstance(made.strategy, SingleDeviceStrategy)
    assert made.plan.world_size == 1
    assert choice(made, "strategy").why == "auto: 1 device"


def test_auto_takes_a_parallel_strategy_for_several_devices() -> None:
    made = run(accelerator="cpu", devices=3)
    assert isinstance(made.strategy, DDPStrategy)
    assert (made.plan.processes_per_node, made.plan.world_size) == (3, 3)


def test_auto_says_why_an_accelerator_was_not_taken() -> None:
    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    assert "not available: hpu, tpu, cuda, mps, torch" in choice(run(), "accelerator").why


def test_presets_are_keyword_values_that_options_override() -> None:
    assert run(strategy="ddp_spawn", devices=2, accelerator="cpu").plan.start_method == "spawn"
    overridden = run(
        strategy="ddp_spawn", strategy_options={"start_method": "fork", "timeout_s": 5}, accelerator="cpu"
    )
    assert overridden.plan.start_method == "fork"
    assert overridden.strategy.timeout == timedelta(seconds=5)


def test_what_a_strategy_object_carries_wins() -> None:
    strategy = DDPStrategy(
        accelerator=CpuAccelerator(),
        parallel_devices=[torch.device("cpu"), torch.device("cpu"), torch.device("cpu")],
        cluster_environment="single",
        precision_plugin="bf16-mixed",
        checkpoint_io=stratagem.LocalCollectives,  # any callable: it isn't called here
    )
    made = run(strategy=strategy, accelerator="cuda", devices=1, precision="64-true")
    assert made.accelerator is strategy.accelerator
    assert made.plan.processes_per_node == 3
    assert made.precision == "bf16-mixed"
    assert made.of_kind("checkpoint").value is stratagem.LocalCollectives
    assert made.process_devices()[0] == torch.device("cpu")


def test_a_subclass_has_its_base_classes_capabilities() -> None:
    class Mine(DDPStrategy):
        pass

    made = run(strategy=Mine(), devices=2, accelerator="cpu")
    assert "manual_backward" in made.capabilities.features
    assert choice(made, "strategy").origin.startswith("stratagem-ddp")


def test_an_undeclared_class_declares_its_own_capabilities() -> None:
    class Own(stratagem.ParallelStrategy):
        pass

    made = run(strategy=Own(), devices=2, accelerator="cpu")
    assert made.plan.processes_per_node == 2
    with pytest.raises(CombinationError, match=r"'Own' can't do this: more than one optimizer.*ddp"):
        made.require(["several_optimizers"])


ELASTIC = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RESTART_COUNT": "0",
}


def test_a_launcher_decides_how_many_processes_there_are() -> None:
    made = run(ELASTIC, accelerator="cpu")
    assert isinstance(made.strategy, DDPStrategy)
    assert made.launcher().in_process
    assert "made by torchelastic" in plan_lines(made)[0]
    with pytest.raises(DeviceError, match="started 2 processes on this node, but devices=4 asks for 4"):
        run(ELASTIC, accelerator="cpu", devices=4)
    with pytest.raises(CombinationError, match="'single' runs in one process, but there are 2"):
        run(ELASTIC, accelerator="cpu", strategy="single")


def test_an_environment_that_is_named_says_where_nodes_meet_as_one_that_is_found() -> None:
    node = {"NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    for environment in ("auto", "node"):
        plan = run(node, accelerator="cpu", devices=1, num_nodes=2, environment=environment).plan
        assert (plan.node_rank, plan.rdzv_endpoint) == (1, "10.0.0.1:29500")


def test_several_nodes_are_refused_where_they_are_not_declared() -> None:
    class Own(stratagem.ParallelStrategy):
        pass

    sentence = "'Own' can't do this: more than one node; installed strategies that can: .*ddp"
    with pytest.raises(CombinationError, match=sentence):
        run(strategy=Own(), devices=2, num_nodes=2, accelerator="cpu")
    with pytest.raises(CombinationError, match=sentence):
        run({**ELASTIC, "WORLD_SIZE": "4"}, strategy=Own(), accelerator="cpu")
    assert run({**ELASTIC, "WORLD_SIZE": "4"}, strategy="ddp", accelerator="cpu").environment.world_size == 4


def test_several_nodes_without_a_secret_get_an_error() -> None:
    nodes = {"strategy": "ddp", "accelerator": "cpu", "num_nodes": 2, "rdzv_endpoint": "localhost:29400"}
    sentence = " ".join(" ".join(plan_lines(run(**nodes))).split())
    said = "none: any process that reaches the nodes can join; set STRATAGEM_RUN_SECRET to prevent it"
    assert f"secret {said}" in sentence
    assert not [x for x in plan_lines(run({"STRATAGEM_RUN_SECRET": "a"}, **nodes)) if x.startswith("secret")]
    assert not [x for x in plan_lines(run(accelerator="cpu")) if x.startswith("secret")]


def test_two_environments_of_one_priority_that_recognise_the_variables_are_named(site) -> None:
    site.offer("one-party", '"environment", "one", "one_environment:Mine", "mine", priority=60')
    site.offer("other-party", '"environment", "other", "other_environment:Mine", "mine", priority=60')
    for name in ("one", "other"):
        site.write(
            f"{name}_environment",
            "from stratagem import Environment\n"
            "class Mine(Environment):\n"
            f"    name = {name!r}\n"
            "    @classmethod\n"
            "    def detect(cls, environ):\n"
            "        return 'MINE is set' if 'MINE' in environ else None\n",
        )
    said = "'one' of one-party 1.0 and 'other' of other-party 1.0 both recognise .* priority 60"
    with pytest.raises(ConflictError, match=said):
        run({"MINE": "1"}, accelerator="cpu")
    assert run({}, accelerator="cpu").environment.name == "single"


def test_environment_overrides_detection() -> None:
    assert run(ELASTIC, environment="single", accelerator="cpu").plan.world_size == 1


def test_the_runs_secret_is_a_variable() -> None:
    """It is the run id: ranks prove by it that they are of the run."""
    made = run({"STRATAGEM_RUN_SECRET": "abc"}, strategy="ddp", devices=2, accelerator="cpu")
    assert made.plan.run_id == "abc"
    assert run(strategy="ddp", devices=2, accelerator="cpu").plan.run_id is None


def test_workers_get_the_environment_that_the_launcher_makes() -> None:
    # Otherwise each of them would take itself for a run of one process.
    made = run(environment="single", strategy="ddp", devices=2, accelerator="cpu")
    assert made.worker_config(made.launcher()).environment == "torchelastic"


def test_a_config_and_its_strategy_survive_pickling() -> None:
    config = RunConfig(strategy=DDPStrategy(timeout=timedelta(seconds=9)), devices=2, accelerator="cpu")
    again = assemble(pickle.loads(pickle.dumps(config)), {})
    assert again.strategy.timeout == timedelta(seconds=9)
    assert again.digest() == assemble(config, {}).digest()


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"strategy": "dpp"}, UnknownNameError, r"nearest: .*ddp"),
        ({"strategy": 3}, UsageError, "neither a name nor a Strategy"),
        ({"strategy": "ddp", "strategy_options": {"tiemout_s": 1}}, ConfigError, "no setting 'tiemout_s'"),
        ({"strategy": DDPStrategy(), "strategy_options": {"x": 1}}, ConfigError, "in its constructor"),
        ({"strategy": "single", "strategy_options": {"x": 1}}, ConfigError, "no setting 'x'; it has device"),
        ({"strategy": "single", "devices": 2}, CombinationError, "or devices=1"),
        ({"accelerator": "ddp"}, UnknownNameError, "it is now called strategy='ddp'"),
        ({"accelerator": "cpux"}, UnknownNameError, "nearest: cpu"),
        ({"devices": 0}, DeviceError, "asks for no device"),
        ({"devices": "two"}, DeviceError, "'two'"),
        ({"precision": "fp8"}, PrecisionError, "installed: 16, 16-mixed"),
        ({"precision": "16-true", "accelerator": "cpu"}, PrecisionError, "cpu has 16-mixed, 32-true"),
        ({"environment": "slrum"}, UnknownNameError, "nearest: slurm"),
        ({"environment": "slurm"}, UsageError, "SLURM_"),
        ({"extensions": ("no.such:Thing",)}, UnknownNameError, "can't be imported"),
        ({"strategy": "ddp", "num_nodes": 2, "devices": 2}, UsageError, "rdzv"),
    ],
)
def test_what_cannot_be_had_is_one_sentence(config: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        run(**{"accelerator": "cpu", **config}).launcher()
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("config", [{"strategy": "ddp", "devices": 2}, {}, {"strategy": DDPStrategy()}])
def test_each_name_is_looked_up_once_and_the_number_of_machines_parsed_once(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from stratagem.installed.catalogue import Catalogue
    from stratagem.resolve import environment
    from stratagem.resolve import run as assembling

    asked: list[Any] = []
    find, parse = Catalogue.find, assembling.parse_num_nodes
    monkeypatch.setattr(Catalogue, "find", lambda *args: asked.append(args[1]) or find(*args))
    for module in (assembling, environment):
        monkeypatch.setattr(module, "parse_num_nodes", lambda text: asked.append("num_nodes") or parse(text))
    run(accelerator="cpu", **config)
    assert len(asked) == len(set(asked)), asked
    assert "num_nodes" in asked
