"""Torch still has what launchers use of its private names, with the same meaning."""

from __future__ import annotations

import importlib
import inspect
import pickle
import subprocess
import sys
import warnings

import torch
from stratagem_launch import torch_private as private
from stratagem_launch.hangs.evidence import read_collectives
from torch import nn


def test_it_imports_no_torch():
    code = "import stratagem_launch.torch_private, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_modules_pickle_has_its_tables():
    assert set(private.MODULE_TABLES) <= set(nn.Linear(1, 1).__getstate__())


def test_hosts_are_distinguished():
    assert private.is_this_machine("localhost")
    assert private.is_this_machine("127.0.0.1")
    assert not private.is_this_machine("192.0.2.1")  # kept for documentation


def test_torchs_own_rendezvous_decides_by_it():
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend

    assert "_matches_machine_hostname(" in inspect.getsource(c10d_rendezvous_backend)


def test_a_rendezvous_state_is_made_of_the_classes_that_are_allowed():
    for module, name in private.RENDEZVOUS_STATE:
        assert inspect.isclass(getattr(importlib.import_module(module), name))


def test_hooks_are_moved():
    one, other = (torch.ones(1, requires_grad=True) for _ in range(2))
    seen: list[str] = []
    one.register_hook(lambda _: seen.append("backward"))
    one.register_post_accumulate_grad_hook(lambda _: seen.append("accumulated"))
    private.set_hooks(other, *private.hooks_of(one))
    (other * 2).sum().backward()
    assert seen == ["backward", "accumulated"]


def test_torchs_pickle_still_leaves_out_hooks():
    tensor = torch.ones(1, requires_grad=True)
    tensor.register_post_accumulate_grad_hook(print)
    again = pickle.loads(pickle.dumps(tensor))
    assert not any(private.hooks_of(again)), "it keeps them now: leave it to torch"


def test_buffers_are_a_modules_own():
    assert list(private.buffers_of(nn.BatchNorm1d(1))) == [
        "running_mean",
        "running_var",
        "num_batches_tracked",
    ]


def test_storages_are_wrapped_and_unwrapped_without_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory = torch.ones(2).untyped_storage()
        wrapped = private.typed(memory, torch.float32)
        assert private.memory_of(wrapped) is memory


def test_the_flight_recorder_says_which_collectives_there_were(tmp_path):
    code = (
        "import torch, torch.distributed as dist\n"
        f"dist.init_process_group('gloo', init_method='file://{tmp_path}/meet', rank=0, world_size=1)\n"
        "dist.all_reduce(torch.ones(3))\n"
        "from stratagem_launch.torch_private import recorded_collectives\n"
        "from stratagem_launch.hangs.files import write_whole\n"
        f"write_whole('{tmp_path}/dump', recorded_collectives())\n"
        "dist.destroy_process_group()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    (call,) = read_collectives(f"{tmp_path}/dump")
    assert (call.name, call.number, call.shapes, call.group) == ("all_reduce", 1, "Float [3]", "default_pg")
