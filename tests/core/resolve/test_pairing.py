"""Which strategies go with which accelerators, numbers of processes and features."""

from __future__ import annotations

from typing import Any

import pytest
from components import Here, Plain, catalogue, component
from stratagem_clusters import TorchElastic

from stratagem.environments.single import SingleProcess
from stratagem.errors import CombinationError, DeviceError, UnknownNameError
from stratagem.launchers.nodes import Nodes, parse_num_nodes
from stratagem.plugin.component import Capabilities
from stratagem.resolve.pairing import (
    allows,
    automatic_strategy,
    processes_per_node,
    refuse_accelerator,
    refuse_missing_features,
    refuse_process_count,
    refuse_start_method,
    strategies_for,
)
from stratagem.resolve.resolved import Resolved

ONE = component("strategy", "one", priority=1)
MANY = component("strategy", "many", priority=1, processes="per-device")
SPLIT = component("strategy", "split", priority=9, features=frozenset({"several_devices", "closure"}))
NODE = component("strategy", "node", priority=9, processes="per-node")
NODE_SPLIT = component(
    "strategy", "node_split", processes="per-node", features=frozenset({"several_devices"})
)
ALL = catalogue(ONE, MANY, SPLIT, NODE)


def strategy(name: str = "mine", component: str = "mine", **capabilities: Any) -> Resolved:
    return Resolved("strategy", name, Plain(), capabilities=Capabilities(**capabilities), component=component)


def accelerator(**capabilities: Any) -> Resolved:
    return Resolved("accelerator", "here", Here(), capabilities=Capabilities(**capabilities))


def test_a_list_of_names_allows_what_it_names_and_a_star_everything() -> None:
    assert allows(("a", "b"), "b")
    assert not allows(("a", "b"), "c")
    assert allows(("*",), "c")
    assert allows(("a", "float8*"), "float8-rowwise")
    assert not allows(("a", "float8*"), "float")
    assert not allows((), "c")


@pytest.mark.parametrize(
    ("processes", "installed", "chosen"),
    [
        (1, (ONE, MANY), "one"),
        (2, (ONE, MANY), "many"),
        (2, (ONE, MANY, SPLIT), "many"),  # one process per device comes before several devices in one
        (2, (ONE, SPLIT), "split"),
        (2, (ONE, NODE_SPLIT), "node_split"),
        (1, (MANY, SPLIT), "split"),
        (1, (MANY,), "many"),  # core, ddp and cpu alone
    ],
)
def test_auto_is_the_first_that_wants_so_many_processes(processes: int, installed: Any, chosen: str) -> None:
    assert automatic_strategy(catalogue(*installed), processes, None).name == chosen


def test_auto_leaves_out_what_lacks_a_library() -> None:
    lacks = component("strategy", "lacks", priority=9, requires=("a_library_that_is_not_there",))
    has = component("strategy", "has", priority=9, requires=("torch",))
    assert automatic_strategy(catalogue(lacks, ONE), 1, None).name == "one"
    assert automatic_strategy(catalogue(has, ONE), 1, None).name == "has"


def test_auto_leaves_out_what_does_not_go_with_the_accelerator() -> None:
    elsewhere = component("strategy", "elsewhere", priority=9, accelerators=("there",))
    both = catalogue(elsewhere, ONE)
    assert automatic_strategy(both, 1, None).name == "elsewhere"
    assert automatic_strategy(both, 1, accelerator()).name == "one"
    assert automatic_strategy(both, 1, accelerator(strategies=("one",))).name == "one"
    with pytest.raises(UnknownNameError):
        automatic_strategy(both, 1, accelerator(strategies=("elsewhere",)))


@pytest.mark.parametrize(
    ("processes", "installed"), [(2, (ONE, NODE)), (1, ()), (1, (NODE, NODE_SPLIT)), (2, ())]
)
def test_auto_without_a_strategy_says_what_to_install(processes: int, installed: Any) -> None:
    message = (
        f"no installed strategy trains on {processes} devices: pip install stratagem, or choose devices=1"
        if processes > 1
        else "no installed strategy trains on one device: pip install stratagem"
    )
    with pytest.raises(UnknownNameError, match=message):
        automatic_strategy(catalogue(*installed), processes, None)


def test_missing_features_are_refused_with_strategies_that_have_them_all() -> None:
    none: frozenset[str] = frozenset()
    refuse_missing_features(ALL, "one", Capabilities(), [])
    refuse_missing_features(ALL, "split", SPLIT.capabilities, ["closure", "several_devices"])
    with pytest.raises(CombinationError, match=r"'one' can't do this: an optimizer that .*can: split$"):
        refuse_missing_features(ALL, "one", Capabilities(features=none), ["closure"])
    with pytest.raises(CombinationError, match=r"several devices in one process; installed .*: split$"):
        refuse_missing_features(ALL, "x", Capabilities(features=frozenset({"closure"})), ["several_devices"])
    with pytest.raises(CombinationError, match=r"installed strategies that can: split$"):
        refuse_missing_features(ALL, "one", Capabilities(), ["closure", "several_devices"])
    with pytest.raises(CombinationError, match=r"no installed strategy can$"):
        refuse_missing_features(ALL, "split", SPLIT.capabilities, ["closure", "elastic"])


def test_a_strategy_is_refused_on_accelerators_that_it_does_not_name() -> None:
    elsewhere = component("strategy", "elsewhere", accelerators=("there",))
    refuse_accelerator(ALL, strategy(), accelerator())
    refuse_accelerator(ALL, strategy(accelerators=("there", "here")), accelerator())
    message = r"'mine' works on there, not on here; installed strategies that can: one$"
    with pytest.raises(CombinationError, match=message):
        refuse_accelerator(catalogue(ONE, elsewhere), strategy(accelerators=("there",)), accelerator())
    with pytest.raises(CombinationError, match="no installed strategy can"):
        refuse_accelerator(catalogue(elsewhere), strategy(accelerators=("there",)), accelerator())


def test_an_accelerator_refuses_strategies_that_it_does_not_name() -> None:
    of_one = accelerator(strategies=("one", "other"))
    refuse_accelerator(ALL, strategy("fast_one", "one"), of_one)
    refuse_accelerator(ALL, strategy("Own", ""), of_one)  # it isn't declared
    message = r"'here' works with one, other, not with fast; installed strategies that can: one$"
    with pytest.raises(CombinationError, match=message):
        refuse_accelerator(ALL, strategy("fast", "many"), of_one)


def test_processes_per_node() -> None:
    assert processes_per_node(MANY.capabilities, (0, 1, 2)) == 3
    assert processes_per_node(ONE.capabilities, (0, 1, 2)) == 1
    assert processes_per_node(NODE.capabilities, (0, 1, 2)) == 1


def made(local: int, total: int) -> TorchElastic:
    """Where a launcher has made processes."""
    variables = {"RANK": 0, "LOCAL_RANK": 0, "GROUP_RANK": 0, "WORLD_SIZE": total, "LOCAL_WORLD_SIZE": local}
    variables |= {"MASTER_PORT": 1, "TORCHELASTIC_RESTART_COUNT": 0}
    addresses = {"MASTER_ADDR": "localhost", "TORCHELASTIC_RUN_ID": "x"}
    return TorchElastic({**addresses, **{name: str(value) for name, value in variables.items()}})


def check(capabilities: Capabilities, devices: int, environment: Any = None, **config: Any) -> None:
    chosen = Resolved("strategy", "mine", Plain(), capabilities=capabilities)
    nodes = parse_num_nodes(config.get("num_nodes", 1))
    refuse_process_count(ALL, chosen, environment or SingleProcess({}), tuple(range(devices)), nodes, devices)


def test_one_process_cannot_be_several() -> None:
    message = "'mine' runs in one process, but there are 2: choose one of many"
    check(ONE.capabilities, 1)
    check(ONE.capabilities, 1, made(1, 1))
    with pytest.raises(CombinationError, match=message):
        check(ONE.capabilities, 1, num_nodes=2)
    with pytest.raises(CombinationError, match=message):
        check(ONE.capabilities, 1, made(1, 2))
    check(NODE.capabilities, 1, num_nodes=2)
    check(MANY.capabilities, 1, num_nodes=2)


def test_several_devices_want_a_strategy_for_them() -> None:
    message = (
        r"'mine' uses one device per process, but devices=2 asks for 2: choose one of many, or devices=1"
    )
    for capabilities in (ONE.capabilities, NODE.capabilities):
        check(capabilities, 1)
        with pytest.raises(CombinationError, match=message):
            check(capabilities, 2)
    check(SPLIT.capabilities, 2)
    check(MANY.capabilities, 2)


def test_a_launcher_that_made_another_number_is_refused() -> None:
    check(MANY.capabilities, 2, made(2, 4))
    check(NODE.capabilities, 1, made(1, 4))
    for devices, environment in ((3, made(2, 2)), (1, made(2, 2))):
        with pytest.raises(DeviceError, match=f"started 2 processes .* devices={devices} asks for {devices}"):
            check(MANY.capabilities, devices, environment)
    message = "drives all devices of a node from one process, but torchelastic started 2 on this node: start one per"
    with pytest.raises(CombinationError, match=message):
        check(NODE.capabilities, 1, made(2, 4))


def test_without_a_strategy_for_several_processes_its_package_is_named() -> None:
    chosen = Resolved("strategy", "mine", Plain(), capabilities=ONE.capabilities)
    with pytest.raises(CombinationError, match="choose one of those that `pip install stratagem` brings"):
        refuse_process_count(catalogue(ONE), chosen, SingleProcess({}), (0, 1), Nodes(1, 1), 2)


def test_a_way_to_start_processes_that_is_not_declared_is_refused() -> None:
    refuse_start_method(strategy(start_methods=("spawn", "forkserver")))
    with pytest.raises(CombinationError, match="start_method='forkserver': choose one of spawn, popen"):
        refuse_start_method(strategy(start_methods=("spawn", "popen")))


def test_strategies_for_a_number_of_processes_come_by_priority() -> None:
    assert strategies_for(ALL, "one") == ["split", "one"]
    assert strategies_for(ALL, "per-device") == ["many"]
