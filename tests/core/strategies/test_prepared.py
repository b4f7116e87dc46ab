from contextlib import contextmanager

import pytest
import torch
from stratagem_checkpoint.directory import DirectoryCheckpointer
from torch import nn

from stratagem.checkpoint.base import Checkpoint
from stratagem.collectives.local import LocalCollectives
from stratagem.errors import CheckpointError, DataError
from stratagem.plugin.requests import Clipping, LoopPlan, SetupRequest
from stratagem.precision.base import Precision
from stratagem.precision.mixed import MixedPrecision, ScaledPrecision
from stratagem.precision.true16 import TruePrecision
from stratagem.precision.wrapper import PrecisionWrapper
from stratagem.strategies.prepared import Prepared

CPU = torch.device("cpu")


class Net(nn.Module):
    """Squared distance of a linear layer's output from one."""

    def __init__(self, width=4, answer=lambda loss: loss):
        super().__init__()
        self.layer = nn.Linear(width, 2)
        self.register_buffer("seen", torch.zeros(()))
        self.answer = answer
        self.dtype_seen = None

    def forward(self, x):
        output = self.layer(x)
        self.dtype_seen = output.dtype
        return self.answer((output - 1).square().mean())


def sgd(net):
    return lambda: [torch.optim.SGD(net.parameters(), lr=0.1)]


def request(net, make=None, precision=None, **loop):
    return SetupRequest(
        module=net,
        original_module=net,
        make_optimizers=make or sgd(net),
        devices=(CPU,),
        collectives=LocalCollectives(CPU),
        precision=precision or Precision(),
        loop=LoopPlan(**loop),
    )


def batch(size=3, width=4):
    return torch.arange(size * width, dtype=torch.float32).reshape(size, width) / 10


# Steps ------------------------------------------------------------------------------------------------


def test_a_step_is_plain_torchs_step():
    torch.manual_seed(0)
    net, reference = Net(), Net()
    reference.load_state_dict(net.state_dict())
    prepared, optimizer = Prepared(request(net)), torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(3):
        prepared.forward_backward(batch())
        assert prepared.step(0)
        prepared.zero_grad(0)
        reference(batch()).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(net.layer.weight, reference.layer.weight)


def test_micro_batches_add_up_to_the_mean_of_the_batch():
    net = Net()
    prepared = Prepared(request(net))
    prepared.forward_backward(batch(4))
    whole = net.layer.weight.grad.clone()
    prepared.zero_grad(0)
    prepared.forward_backward(batch(4)[:2], divisor=2, sync=False)
    prepared.forward_backward(batch(4)[2:], divisor=2, sync=True)
    assert torch.allclose(net.layer.weight.grad, whole, atol=1e-7)


def test_only_the_last_micro_batch_is_outside_of_no_sync():
    seen = []

    class Watched(Prepared):
        inside = False

        @contextmanager
        def no_sync(self):
            self.inside = True
            yield
            self.inside = False

        def backward(self, loss, **kwargs):
            seen.append(self.inside)
            super().backward(loss, **kwargs)

    prepared = Watched(request(Net()))
    prepared.forward_backward(batch(), divisor=2, sync=False)
    prepared.forward_backward(batch(), divisor=2, sync=True)
    assert seen == [True, False]


def test_the_output_of_the_module_is_returned_undivided():
    prepared = Prepared(request(Net(answer=lambda loss: {"loss": loss, "more": 7})))
    output = prepared.forward_backward(batch(), divisor=2)
    assert output["more"] == 7
    assert output["loss"].item() == prepared.forward(batch())["loss"].item()


def test_none_skips_the_backward():
    net = Net(answer=lambda loss: None)
    assert Prepared(request(net)).forward_backward(batch()) is None
    assert net.layer.weight.grad is None


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda loss: {"los": loss}, "returned dict without a loss"),
        (lambda loss: 0.5, "returned float without a loss"),
        (lambda loss: [loss], "returned list without a loss"),
        (lambda loss: {"loss": 0.5}, '"loss" that is float, not a tensor'),
    ],
)
def test_an_answer_without_a_loss_is_refused(answer, message):
    with pytest.raises(DataError, match=message):
        Prepared(request(Net(answer=answer))).forward_backward(batch())


def test_optimizers_are_made_once_and_only_to_train():
    made = []
    net = Net()

    def make():
        made.append(1)
        return sgd(net)()

    Prepared(request(net, make))
    assert made == [1]
    assert Prepared(request(net, make, training=False)).optimizers == ()
    assert made == [1]


def test_each_optimizer_is_stepped_and_cleared_by_itself():
    net = Net()
    weight, bias = net.layer.weight, net.layer.bias
    prepared = Prepared(
        request(net, lambda: [torch.optim.SGD([weight], lr=0.1), torch.optim.SGD([bias], lr=0.1)])
    )
    before = weight.detach().clone(), bias.detach().clone()
    prepared.forward_backward(batch())
    prepared.step(1)
    prepared.zero_grad(1)
    assert torch.equal(weight, before[0])
    assert not torch.equal(bias, before[1])
    assert weight.grad is not None
    assert bias.grad is None


class Keeps(torch.optim.SGD):
    """Has a way of its own to drop gradients."""

    def zero_grad(self, set_to_none=True):
        super().zero_grad(set_to_none=False)


def test_an_optimizers_own_way_to_drop_gradients_is_called():
    net = Net()
    prepared = Prepared(request(net, lambda: [Keeps(net.parameters(), lr=0.1)]))
    prepared.forward_backward(batch())
    prepared.zero_grad(0)
    assert not net.layer.weight.grad.any()


def test_a_way_to_drop_gradients_that_one_optimizer_was_given_is_called(monkeypatch):
    net, calls = Net(), []
    prepared = Prepared(request(net))
    monkeypatch.setattr(prepared.optimizers[0], "zero_grad", lambda: calls.append("zero_grad"), raising=False)
    prepared.forward_backward(batch())
    prepared.zero_grad(0)
    assert calls == ["zero_grad"]
    assert net.layer.weight.grad is not None


def test_a_closure_is_handed_to_the_optimizer():
    net = Net()
    prepared = Prepared(request(net, lambda: [torch.optim.LBFGS(net.parameters(), max_iter=4)]))
    calls = []

    def closure():
        calls.append(1)
        prepared.zero_grad(0)
        return prepared.forward_backward(batch())

    first = net(batch()).item()
    prepared.step(0, closure)
    assert len(calls) > 1
    assert net(batch()).item() < first


# Clipping ---------------------------------------------------------------------------------------------


def test_clipping_by_norm_returns_the_norm_before():
    net = Net()
    prepared = Prepared(request(net))
    prepared.forward_backward(batch())
    before = torch.cat([p.grad.flatten() for p in net.parameters()]).norm()
    total = prepared.clip(0, Clipping(max_norm=1e-3))
    after = torch.cat([p.grad.flatten() for p in net.parameters()]).norm()
    assert torch.allclose(total, before)
    assert torch.allclose(after, torch.tensor(1e-3), rtol=1e-2)


def test_clipping_by_value_limits_each_element():
    net = Net()
    prepared = Prepared(request(net))
    prepared.forward_backward(batch())
    assert net.layer.weight.grad.abs().max() > 1e-3
    assert prepared.clip(0, Clipping(max_value=1e-3)) is None
    assert net.layer.weight.grad.abs().max() <= 1e-3


def test_clipping_leaves_other_optimizers_gradients_alone():
    net = Net()
    prepared = Prepared(
        request(net, lambda: [torch.optim.SGD([p], lr=0.1) for p in (net.layer.weight, net.layer.bias)])
    )
    prepared.forward_backward(batch())
    bias = net.layer.bias.grad.clone()
    prepared.clip(0, Clipping(max_norm=1e-6))
    assert torch.equal(net.layer.bias.grad, bias)


# Precision --------------------------------------------------------------------------------------------


def test_full_precision_calls_the_module_directly():
    prepared = Prepared(request(Net()))
    assert prepared.is_direct
    assert prepared.steps_directly


def test_autocast_is_around_the_forward_and_not_around_the_parameters():
    net = Net()
    prepared = Prepared(request(net, precision=MixedPrecision("bf16-mixed", CPU)))
    prepared.forward_backward(batch())
    assert not prepared.is_direct
    assert net.dtype_seen == torch.bfloat16
    assert net.layer.weight.grad.dtype == torch.float32


def test_true_half_precision_converts_parameters_and_inputs():
    net = Net()
    prepared = Prepared(request(net, precision=TruePrecision("bf16-true", CPU)))
    prepared.forward_backward(batch())
    assert net.layer.weight.dtype == torch.bfloat16
    assert net.layer.weight.grad.dtype == torch.bfloat16
    assert net.dtype_seen == torch.bfloat16


def test_a_strategy_that_overrides_step_is_not_bypassed():
    class Counts(Prepared):
        def step(self, index, closure=None):
            return super().step(index, closure)

    class CountsBeside:
        def step(self, index, closure=None):
            return super().step(index, closure)

    class Mixed(CountsBeside, Prepared):
        pass

    class Inherits(Counts):
        pass

    class Says(Counts):
        steps_directly = True

    class Trusts(Says):
        pass

    for kind, answer in ((Counts, False), (Mixed, False), (Inherits, False), (Says, True), (Trusts, True)):
        assert kind(request(Net())).steps_directly is answer


def test_a_precision_that_overrides_step_or_conversion_is_not_bypassed():
    class Own(Precision):
        def step(self, optimizer, closure=None):
            return super().step(optimizer, closure)

        def convert_input(self, batch):
            return batch

    class Around(PrecisionWrapper):
        def step(self, optimizer, closure=None):
            return super().step(optimizer, closure)

    plain = Precision()
    assert (plain.steps_directly, plain.converts_input, plain.scales_loss) == (True, False, False)
    assert (Own().steps_directly, Own().converts_input) == (False, True)
    assert not Prepared(request(Net(), precision=Own())).steps_directly
    assert PrecisionWrapper(plain).steps_directly
    assert not PrecisionWrapper(Own()).steps_directly
    assert PrecisionWrapper(Own()).converts_input
    assert not Around(plain).steps_directly
    scaling = PrecisionWrapper(ScaledPrecision("16-mixed", CPU))
    assert (scaling.scales_loss, scaling.steps_directly) == (True, False)


# Checkpoints ------------------------------------------------------------------------------------------


def saved(prepared, path):
    checkpointer = DirectoryCheckpointer(LocalCollectives(CPU))
    tensors = {**prepared.model_tensors(), **prepared.optimizer_tensors()}
    checkpointer.save(str(path), Checkpoint(tensors=tensors, state=prepared.state()))
    return checkpointer.open(str(path))


def adam(net):
    return lambda: [torch.optim.AdamW(net.parameters(), lr=0.01)]


def train(prepared, steps):
    for _ in range(steps):
        prepared.forward_backward(batch())
        prepared.step(0)
        prepared.zero_grad(0)


def test_training_goes_on_where_a_checkpoint_left_it(tmp_path):
    net = Net()
    prepared = Prepared(request(net, adam(net)))
    train(prepared, 3)
    net.seen += 3
    reader = saved(prepared, tmp_path / "ckpt")
    train(prepared, 3)

    other = Net()
    resumed = Prepared(request(other, adam(other)))
    resumed.load(reader, dict(reader.state))
    assert other.seen == 3
    train(resumed, 3)
    assert torch.equal(other.layer.weight, net.layer.weight)
    assert torch.equal(other.layer.bias, net.layer.bias)


def test_model_only_leaves_the_optimizer_as_it_was(tmp_path):
    net, other = Net(), Net()
    prepared = Prepared(request(net, adam(net)))
    train(prepared, 2)
    reader = saved(prepared, tmp_path / "ckpt")
    resumed = Prepared(request(other, adam(other)))
    resumed.load(reader, dict(reader.state), model_only=True)
    assert torch.equal(other.layer.weight, net.layer.weight)
    assert resumed.optimizer_tensors() == {}


def test_keys_are_the_plain_modules_names_whatever_wraps_it():
    net = Net()
    wrapper = nn.ModuleDict({"inner": net})
    prepared = Prepared(request(net), module=wrapper)
    assert set(prepared.model_tensors()) == {"model/layer.weight", "model/layer.bias", "model/seen"}


def test_another_module_is_refused_with_what_differs(tmp_path):
    class Other(Net):
        def __init__(self):
            super().__init__()
            self.extra = nn.Linear(2, 2)
            del self.seen

    reader = saved(Prepared(request(Net())), tmp_path / "ckpt")
    prepared = Prepared(request(Other()))
    before = prepared.original_module.layer.weight.detach().clone()
    with pytest.raises(
        CheckpointError, match=r"missing keys: extra\.bias, extra\.weight; unexpected keys: seen"
    ):
        prepared.load(reader, dict(reader.state))
    assert torch.equal(prepared.original_module.layer.weight, before)


def test_another_shape_is_refused(tmp_path):
    reader = saved(Prepared(request(Net())), tmp_path / "ckpt")
    with pytest.raises(CheckpointError, match=r"layer\.weight"):
        Prepared(request(Net(width=5))).load(reader, dict(reader.state))


def test_extra_state_of_modules_is_kept(tmp_path):
    class Counting(Net):
        count = 0

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    net, other = Counting(), Counting()
    net.count = 5
    reader = saved(Prepared(request(net)), tmp_path / "ckpt")
    Prepared(request(other)).load(reader, dict(reader.state))
    assert other.count == 5
    assert torch.equal(other.layer.weight, net.layer.weight)


def test_release_lets_go_of_the_wrapper():
    net = Net()
    prepared = Prepared(request(net), module=nn.ModuleDict({"inner": net}))
    prepared.release()
    assert prepared.module is net


class Doubling(Prepared):
    def forward(self, *args, **kwargs):
        return 2 * super().forward(*args, **kwargs)


def test_a_forward_of_its_own_is_no_direct_call():
    net = Net()
    assert Prepared(request(net)).forwards_directly
    assert not Prepared(request(Net(), precision=MixedPrecision("bf16-mixed", CPU))).forwards_directly
    assert not Doubling(request(Net())).forwards_directly
