"""The options that strategies share are the same in each: as their base states them."""

from __future__ import annotations

import inspect

import pytest

from stratagem import ParallelStrategy, ProcessGroupStrategy, Strategy
from stratagem.sdk.catalogue import load_catalogue

_SHARED = "accelerator parallel_devices cluster_environment checkpoint_io precision_plugin "
POSITIONS = {
    name: arguments.split()
    for name, arguments in {
        "DDPStrategy": _SHARED + "ddp_comm_state ddp_comm_hook ddp_comm_wrapper model_averaging_period "
        "process_group_backend timeout start_method",
        "FSDPStrategy": _SHARED
        + "process_group_backend timeout auto_wrap_policy cpu_offload mixed_precision "
        "sharding_strategy backward_prefetch forward_prefetch limit_all_gathers use_orig_params param_init_fn "
        "sync_module_states",
        "HorovodStrategy": "accelerator parallel_devices checkpoint_io precision_plugin",
        "ModelParallelStrategy": "accelerator parallel_devices checkpoint_io precision_plugin",
    }.items()
}
"""Strategy → its first arguments as the reference orders them; of a positional call, each means the same here."""


def strategies() -> dict[str, type[Strategy]]:
    found = {}
    for offer in load_catalogue().of_kind("strategy"):
        if not offer.missing():
            cls = offer.load()
            found[cls.__name__] = cls
    return found


def base_of(cls: type[Strategy]) -> type[Strategy]:
    return next(base for base in (ProcessGroupStrategy, ParallelStrategy, Strategy) if issubclass(cls, base))


@pytest.mark.parametrize("cls", strategies().values(), ids=strategies())
def test_a_strategy_has_the_shared_options_of_its_base(cls: type[Strategy]) -> None:
    own, shared = inspect.signature(cls).parameters, inspect.signature(base_of(cls)).parameters
    for name, parameter in shared.items():
        assert name in own
        assert (own[name].annotation, own[name].default) == (parameter.annotation, parameter.default), name
    if cls.__name__ not in POSITIONS:
        assert [name for name in own if name in shared] == list(shared), "in the order of the base"


@pytest.mark.parametrize("name", sorted(POSITIONS.keys() & strategies().keys()))
def test_positional_arguments_are_in_the_order_of_the_reference(name: str) -> None:
    own = list(inspect.signature(strategies()[name]).parameters)
    assert own[: len(POSITIONS[name])] == POSITIONS[name]
