"""Parameters and gradients in a user's hands: rows of held_tensors on shards and on one process, and refusals."""

from __future__ import annotations

from typing import Any

import held_tensors
import numpy as np
import pytest
import torch
from held_tensors import ROWS, Net, batch
from stratagem_model_parallel import ModelParallelStrategy
from stratagem_sharding.whole_tensors import reading_exchange
from torch.distributed.tensor import DTensor

import stratagem
from stratagem.errors import ShardedUseError


def plain(value: Any) -> Any:
    if isinstance(value, DTensor):
        return DTensor.full_tensor(value.detach()).clone()
    if isinstance(value, torch.Tensor):
        return value.detach().clone().as_subclass(torch.Tensor)
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def is_same(want: Any, got: Any) -> bool:
    if isinstance(want, torch.Tensor):
        same_kind = isinstance(got, torch.Tensor) and want.shape == got.shape and want.dtype == got.dtype
        return same_kind and torch.allclose(want.double(), got.double(), atol=1e-5)
    if isinstance(want, np.ndarray):
        return isinstance(got, np.ndarray) and np.allclose(want, got, atol=1e-5)
    if isinstance(want, dict):
        return want.keys() == got.keys() and all(is_same(each, got[key]) for key, each in want.items())
    if isinstance(want, list):
        return len(want) == len(got) and all(map(is_same, want, got))
    return abs(want - got) < 1e-5 if isinstance(want, float) else want == got


def run_rows(runtime: Any, tokens: torch.Tensor) -> dict[str, Any]:
    """Run each row on the same values; return its result, and parameters and gradients after it."""
    torch.set_num_threads(1)
    module: Any = Net()
    optimizer: Any = torch.optim.Adam(module.parameters(), lr=0.1)
    if runtime is not None:
        module, optimizer = runtime.setup(module, optimizer)
    start, found = Net().state_dict(), {}

    def again(penalty: Any = None) -> None:
        optimizer.zero_grad()
        output = module(tokens)
        loss = output.pow(2).mean() + (0 if penalty is None else penalty(output))
        loss.backward() if runtime is None else runtime.backward(loss)

    for name, function in ROWS.items():
        with torch.no_grad():
            for key, parameter in module.named_parameters():
                parameter.copy_(start[key])
            for state in optimizer.state.values():
                for value in state.values():
                    value.zero_()
        again()
        try:
            result = plain(function(module, optimizer, again))
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        parameters = {key: plain(parameter) for key, parameter in module.named_parameters()}
        grads = {key: plain(parameter.grad) for key, parameter in module.named_parameters()}
        found[name] = {"result": result, "parameters": parameters, "gradients": grads}
    return found


def rows_on_shards(runtime: stratagem.Runtime, tensor: int) -> dict[str, Any]:
    return run_rows(runtime, batch(runtime.rank // tensor, runtime.world_size // tensor))


def split(tensor: int, data: int) -> ModelParallelStrategy:
    plan = {"first": "colwise", "second": "rowwise"}
    return ModelParallelStrategy(parallelize=plan, tensor_parallel_size=tensor, data_parallel_size=data)


@pytest.fixture(scope="module")
def on_one_process() -> dict[str, Any]:
    return run_rows(None, batch(0, 1))


@pytest.mark.parametrize(
    ("strategy", "ranks", "tensor"),
    [
        ("fsdp", 3, 1),
        pytest.param("ddp_fully_sharded", 2, 1, marks=pytest.mark.long),
        (split(2, 1), 2, 2),
        pytest.param("fsdp", 2, 1, marks=pytest.mark.long),
        pytest.param("ddp_fully_sharded", 3, 1, marks=pytest.mark.long),
        pytest.param(split(2, 2), 4, 2, marks=pytest.mark.long),
    ],
    ids=[
        "fsdp-3",
        "ddp_fully_sharded-2",
        "model_parallel-2",
        "fsdp-2",
        "ddp_fully_sharded-3",
        "model_parallel-4",
    ],
)
def test_equals_one_process(strategy, ranks, tensor, on_one_process):
    if ranks == 4 and torch.__version__ < "2.11":
        pytest.skip(
            "torch before 2.11 has rows in another order: see test_what_torch_would_shuffle_is_refused"
        )
    runtime = stratagem.Runtime(strategy=strategy, devices=ranks, accelerator="cpu")
    got = runtime.launch(rows_on_shards, tensor)
    differ = [
        f"{name}: {what} is {got[name][what]}, and {value} on one process"
        for name, want in on_one_process.items()
        for what, value in want.items()
        if not is_same(value, got[name][what])
    ]
    assert not differ, "\n".join(differ)
    assert not [name for name, row in on_one_process.items() if "Error" in str(row["result"])]


def refused(runtime: stratagem.Runtime) -> dict[str, str]:
    module, _ = runtime.setup(Net(), lambda module: torch.optim.SGD(module.parameters(), lr=0.1))
    tokens, said = batch(runtime.rank, runtime.world_size), {}
    weight = module.first.weight

    def attempt(name: str, function: Any) -> None:
        try:
            said[name] = str(function())
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"

    def on_one_rank() -> Any:
        reading_exchange.TIMEOUT_S = 2.0  # no other rank reads: this one has to give up
        return weight.norm().item() if runtime.rank == 1 else None

    def on_each_its_own() -> Any:
        return weight.max().item() if runtime.rank == 1 else weight.min().item()

    parameters = dict(module.named_parameters())
    attempt("functional_call", lambda: torch.func.functional_call(module, parameters, (tokens,)))
    attempt("grad", lambda: torch.autograd.grad(module(tokens).sum(), list(parameters.values())))
    attempt("grad of some", lambda: torch.autograd.grad(module(tokens).sum(), weight, allow_unused=True))
    attempt(
        "grad as zeros", lambda: torch.autograd.grad(module(tokens).sum(), weight, materialize_grads=True)
    )
    runtime.backward(module(tokens).pow(2).mean())
    attempt("another shape", lambda: setattr(weight, "data", torch.zeros(3, 4)))
    attempt("another dtype", lambda: setattr(weight, "data", weight.data.double()))
    attempt("gradient's shape", lambda: setattr(weight, "grad", torch.zeros(2)))
    attempt("a leaf", lambda: weight.__setitem__(0, 1.0))
    attempt("a leaf's view", lambda: weight[0].zero_())
    attempt("numpy", lambda: weight.detach().numpy().__setitem__(0, 1.0))
    attempt("shape in place", lambda: weight.data.unsqueeze_(0))
    attempt("each its own", on_each_its_own)
    attempt("one rank", on_one_rank)
    return runtime.collectives.gather_objects(said)


def test_what_is_not_possible_is_refused():
    first, second = stratagem.Runtime(strategy="fsdp", devices=2, accelerator="cpu").launch(refused)
    file = "test_whole_tensors.py"
    parts = {
        "functional_call": ["ShardedUseError: 'scale' was given to torch.func.functional_call", "choose ddp"],
        "grad": [
            "ShardedUseError: ",
            "at index 0 of its inputs, of shape (1,)",
            "use runtime.backward(loss)",
        ],
        "grad of some": ["ShardedUseError: ", "at index 0 of its inputs, of shape (5, 4)"],
        "grad as zeros": ["ShardedUseError: ", "at index 0 of its inputs, of shape (5, 4)"],
        "another shape": ["data of a sharded parameter is float32 (5, 4), and was given float32 (3, 4)"],
        "another dtype": ["and was given float64 (5, 4)"],
        "gradient's shape": ["grad of a sharded parameter is float32 (5, 4), and was given float32 (2,)"],
        "a leaf": ["do it within torch.no_grad()"],
        "a leaf's view": ["do it within torch.no_grad()"],
        "numpy": ["read-only"],
        "shape in place": ["(1, 5, 4)"],
        "each its own": ["rank 1 reads max of a tensor (5×4) at " + file, "rank 0 reads min", "the same one"],
        "one rank": [
            "rank 1 reads norm of a tensor (5×4) at " + file,
            "rank 0 did not within 2 s",
            "print it on one",
        ],
    }
    for name, expected in parts.items():
        assert all(part in second[name] for part in expected), second[name]
    assert first["one rank"] == "None"
    assert {name for name in parts if name != "one rank"} == {
        name for name in first if "Error" in first[name]
    }


def copies(runtime: stratagem.Runtime) -> Any:
    """Copies made of a module between forward and backward, as it is and in bfloat16."""
    module, optimizer = runtime.setup(Net(), lambda module: torch.optim.SGD(module.parameters(), lr=0.1))
    tokens = batch(runtime.rank, runtime.world_size)
    loss = module(tokens).pow(2).mean()
    copy = held_tensors.copy.deepcopy(module)
    runtime.backward(loss)
    optimizer.step()
    kinds = {type(each).__name__ for each in copy.modules()}, {type(p).__name__ for p in copy.parameters()}
    hooks = [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in copy.modules()]
    return kinds, hooks, {key: value.clone() for key, value in copy.state_dict().items()}


def test_a_copy_is_the_plain_module():
    runtime = stratagem.Runtime(strategy="fsdp", devices=2, accelerator="cpu", precision="bf16-mixed")
    kinds, hooks, state = runtime.launch(copies)
    assert kinds == ({"Net", "Embedding", "Linear"}, {"Parameter"})
    assert hooks == [0, 0, 0, 0]
    assert is_same(Net().state_dict(), state)


def test_what_torch_would_shuffle_is_refused(monkeypatch):
    from stratagem_sharding.whole_tensors import gathering
    from torch.distributed.tensor import Shard

    class FakeSharded:
        """Stands for a DTensor that two dimensions of a mesh shard by rows."""

        placements = (Shard(0), Shard(0))

    monkeypatch.setattr(gathering, "SHUFFLES_ROWS", True)
    with pytest.raises(
        ShardedUseError, match=r"^norm of a tensor whose rows .* in another order; use torch 2\.11"
    ):
        gathering.gather(FakeSharded(), "norm")
