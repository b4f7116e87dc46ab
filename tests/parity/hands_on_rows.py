"""Rows: own loops as people write them, each with one thing that it takes into its own hands.

The same function runs in one process and in each rank of a strategy; it can't ask which. Its docstring is its title.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from stratagem import Clipping
from tests.support.hands_on import Loop, Row

ROWS: dict[str, Row] = {}


def row(function: Row) -> Row:
    """Put a loop into the table under its name."""
    ROWS[function.__name__] = function
    return function


def net(seed: int = 3, outputs: int = 3) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, outputs)
        )


def sgd(module: nn.Module, lr: float = 0.1, momentum: float = 0.9) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum)


def ready(run: Loop, make: Any = sgd, module: nn.Module | None = None) -> tuple[Any, Any]:
    model = module or net()
    return run.setup(model, make(model))


def step(run: Loop, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    run.backward(loss, model)
    optimizer.step()
    return loss


class Embedded(nn.Module):
    """An embedding that inputs look up, and a layer."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.emb, self.out = nn.Embedding(12, 6, **options), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.emb((x.abs() * 4).long().clamp(max=11)).mean(1))


class Blocks(nn.Module):
    """Blocks that a strategy may shard by themselves, a layer outside of them, and a parameter of one element."""

    def __init__(self, scalar: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)])
            self.head: nn.Module = nn.Linear(6, 3)
            self.scale = nn.Parameter(torch.tensor(1.5) if scalar else torch.full((1,), 1.5))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x) * self.scale


# Schedulers, groups and state ---------------------------------------------------------------------


@row
def plain_steps(run: Loop) -> None:
    """Nothing special."""
    model, optimizer = ready(run)
    for x, y in run.batches(4):
        step(run, model, optimizer, x, y)


@row
def scheduler_resumed(run: Loop) -> None:
    """A scheduler that goes on after a load."""
    model, optimizer = ready(run)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    for index, (x, y) in enumerate(run.batches(6)):
        step(run, model, optimizer, x, y)
        scheduler.step()
        if index == 2:
            run.save("middle", state)
            run.load("middle", state)
        run.note("lr", optimizer.param_groups[0]["lr"])


@row
def group_edits(run: Loop) -> None:
    """`for g in opt.param_groups: g["lr"] = …`."""
    model, optimizer = ready(run)
    for index, (x, y) in enumerate(run.batches(4)):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (index + 1)
        step(run, model, optimizer, x, y)


@row
def groups_assigned(run: Loop) -> None:
    """`opt.param_groups = […]`."""
    model, optimizer = ready(run)
    for index, (x, y) in enumerate(run.batches(4)):
        if index == 2:
            optimizer.param_groups = [{**group, "lr": 0.02} for group in optimizer.param_groups]
        step(run, model, optimizer, x, y)


@row
def state_assigned(run: Loop) -> None:
    """`opt.state = defaultdict(dict)` resets momentum."""
    model, optimizer = ready(run)
    for index, (x, y) in enumerate(run.batches(4)):
        if index == 2:
            optimizer.state = defaultdict(dict)
        step(run, model, optimizer, x, y)


@row
def state_round_trip(run: Loop) -> None:
    """`opt.load_state_dict(copy.deepcopy(opt.state_dict()))` in the middle."""
    model, optimizer = ready(run)
    for index, (x, y) in enumerate(run.batches(4)):
        if index == 2:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        step(run, model, optimizer, x, y)


@row
def group_added(run: Loop) -> None:
    """A backbone unfrozen by `add_param_group` in the middle."""
    model = net()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    model, optimizer = run.setup(
        model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    )
    for index, (x, y) in enumerate(run.batches(4)):
        if index == 2:
            for parameter in model[0].parameters():
                parameter.requires_grad_(True)
            optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.05})
        step(run, model, optimizer, x, y)


@row
def schedule_and_hooks(run: Loop) -> None:
    """A step hook from before `setup`, one of what `setup` returned, and a schedule."""
    model = net()
    given = sgd(model)
    given.register_step_pre_hook(lambda *_: run.note("gradients", model[0].weight.grad.abs().sum()))
    model, optimizer = run.setup(model, given)
    optimizer.register_step_post_hook(lambda *_: run.note("weights", model[0].weight.sum()))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    for x, y in run.batches(4):
        step(run, model, optimizer, x, y)
        scheduler.step()


@row
def given_optimizer_stepped(run: Loop) -> None:
    """The optimizer that `setup` was given is stepped."""
    model = net()
    optimizer = sgd(model)
    model, _ = run.setup(model, optimizer)
    for x, y in run.batches(3):
        optimizer.zero_grad()
        with run.no_sync(model):
            run.backward(F.mse_loss(model(x), y), model)
        optimizer.step()


# Norms and gradients by hand ----------------------------------------------------------------------


@row
def norm_idiom(run: Loop) -> None:
    """`p.grad.data.norm(2).item() ** 2`, summed over parameters."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        optimizer.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        total = 0.0
        for p in model.parameters():
            total += p.grad.data.norm(2).item() ** 2
        run.note("norm", total**0.5)
        optimizer.step()


@row
def norm_skips(run: Loop) -> None:
    """A step skipped where the forum's norm is large."""
    model, optimizer = ready(run)
    for x, y in run.batches(6):
        optimizer.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        total = sum(p.grad.data.norm(2).item() ** 2 for p in model.parameters()) ** 0.5
        if total > 0.7:
            continue
        optimizer.step()


@row
def clip_by_hand(run: Loop) -> None:
    """Gradients times `max_norm / norm`."""
    model, optimizer = ready(run)
    for x, y in run.batches(4):
        optimizer.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        norm = torch.norm(torch.stack([p.grad.detach().norm() for p in model.parameters()]))
        coefficient = min(1.0, 0.3 / (float(norm) + 1e-6))
        for p in model.parameters():
            p.grad.data.mul_(coefficient)
        optimizer.step()


@row
def clip_of_torch(run: Loop) -> None:
    """`torch.nn.utils.clip_grad_norm_`."""
    model, optimizer = ready(run)
    for x, y in run.batches(4):
        optimizer.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        run.note("norm", nn.utils.clip_grad_norm_(model.parameters(), 0.3))
        optimizer.step()


@row
def clip_of_runtime(run: Loop) -> None:
    """`runtime.clip`."""
    model, optimizer = ready(run)
    for x, y in run.batches(4):
        optimizer.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        run.clip(optimizer, max_norm=0.3)
        optimizer.step()


@row
def clip_values(run: Loop) -> None:
    """`torch.nn.utils.clip_grad_value_`."""
    model, optimizer = ready(run)
    for x, y in run.batches(4):
        optimizer.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        nn.utils.clip_grad_value_(model.parameters(), 0.02)
        optimizer.step()


@row
def gradient_mask(run: Loop) -> None:
    """`p.grad[p.grad.abs() < t] = 0`."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        optimizer.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        for p in model.parameters():
            p.grad[p.grad.abs() < 0.01] = 0.0
        optimizer.step()


@row
def gradient_rows(run: Loop) -> None:
    """`p.grad[:5].mul_(0.5)`."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        optimizer.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        model[0].weight.grad[:5].mul_(0.5)
        optimizer.step()


@row
def gradient_mean_removed(run: Loop) -> None:
    """Gradient centralization: `p.grad -= p.grad.mean()`."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        optimizer.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        for p in model.parameters():
            p.grad -= p.grad.mean()
        optimizer.step()


@row
def gradient_noise(run: Loop) -> None:
    """Noise on gradients, from one seed."""
    model, optimizer = ready(run)
    for index, (x, y) in enumerate(run.batches(3)):
        optimizer.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        torch.manual_seed(index)
        for p in model.parameters():
            p.grad.add_(torch.randn_like(p.grad), alpha=0.01)
        optimizer.step()


@row
def gradient_replaced(run: Loop) -> None:
    """`p.grad = p.grad.sign()` (signSGD by hand)."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        optimizer.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        for p in model.parameters():
            p.grad = p.grad.sign() * 0.1
        optimizer.step()


@row
def pcgrad(run: Loop) -> None:
    """Two losses by `autograd.grad`, projected, written to `p.grad`."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        output, params = model(x), list(model.parameters())
        losses = (F.mse_loss(output, y), output.abs().mean())
        first, second = (torch.autograd.grad(loss, params, retain_graph=True) for loss in losses)
        dot = sum((a * b).sum() for a, b in zip(first, second))
        size = sum((b * b).sum() for b in second)
        for p, a, b in zip(params, first, second):
            p.grad = a + b - (torch.clamp(dot, max=0.0) / size) * b
        optimizer.step()


@row
def private_gradients(run: Loop) -> None:
    """DP-SGD: each sample's gradient by `autograd.grad`, clipped, averaged."""
    model, optimizer = ready(run)
    for x, y in run.batches(2):
        params = list(model.parameters())
        sums = [torch.zeros_like(p) for p in params]
        for one, target in zip(x, y):
            grads = torch.autograd.grad(F.mse_loss(model(one.unsqueeze(0)), target.unsqueeze(0)), params)
            norm = torch.sqrt(sum((g * g).sum() for g in grads))
            for total, g in zip(sums, grads):
                total += g * torch.clamp(0.3 / norm, max=1.0)
        for p, total in zip(params, sums):
            p.grad = total / len(x)
        optimizer.step()


@row
def optimizer_in_backward(run: Loop) -> None:
    """torch's tutorial: a post-accumulate hook steps an optimizer per parameter."""
    model = net()
    model = run.setup(model)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def hook(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    for x, y in run.batches(3):
        run.backward(F.mse_loss(model(x), y), model)


@row
def norm_of_two_backwards(run: Loop) -> None:
    """The norm of gradients after two forwards and then two backwards."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        optimizer.zero_grad()
        one, two = F.mse_loss(model(x), y), F.mse_loss(model(x + 0.3), y)
        run.backward(one, model)
        run.backward(two, model)
        run.note("norm", sum(p.grad.data.norm(2).item() ** 2 for p in model.parameters()))
        optimizer.step()


@row
def gradients_replaced_and_dropped(run: Loop) -> None:
    """Clipped, then `p.grad = p.grad - p.grad.mean()`, and one `p.grad = None`."""
    model, optimizer = ready(run)
    for index, (x, y) in enumerate(run.batches(4)):
        run.backward(F.mse_loss(model(x), y), model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for p in model.parameters():
            p.grad = p.grad - p.grad.mean()
            p.grad.mul_(1.5)
        if index == 2:
            model[0].bias.grad = None
        optimizer.step()
        optimizer.zero_grad()


@row
def clip_within_no_sync(run: Loop) -> None:
    """`clip_grad_norm_` after a backward within `no_sync`."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        with run.no_sync(model):
            run.backward(F.mse_loss(model(x), y), model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()


@row
def gradients_averaged(run: Loop) -> None:
    """Gradients of `autograd.grad`, averaged by the runtime, and clipped by hand."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        params = list(model.parameters())
        for p, gradient in zip(params, torch.autograd.grad(F.mse_loss(model(x), y), params)):
            p.grad = gradient
        run.average_gradients(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


@row
def averages_of_changed(run: Loop) -> None:
    """`runtime.average_gradients` after gradients were doubled by hand."""
    model, optimizer = ready(run)
    for x, y in run.batches(2):
        optimizer.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        for p in model.parameters():
            if p.grad is not None:
                p.grad *= 2
        run.average_gradients(optimizer)
        optimizer.step()


@row
def averages_clipped(run: Loop) -> None:
    """`runtime.average_gradients`, in turns after `autograd.grad` and after `no_sync`, and `runtime.clip`."""
    model, optimizer = ready(run)
    for index, (x, y) in enumerate(run.batches(4)):
        loss = F.mse_loss(model(x), y)
        if index % 2:
            params = list(model.parameters())
            for p, gradient in zip(params, torch.autograd.grad(loss, params)):
                p.grad = gradient
            run.average_gradients(optimizer)
        else:
            with run.no_sync(model):
                run.backward(F.mse_loss(model(x), y), model)
        run.average_gradients(optimizer)
        run.clip(optimizer, max_norm=0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=index % 3 == 0)


@row
def assigned_head(run: Loop) -> None:
    """The head's gradients alone, from `autograd.grad`."""
    _assigned_head(run, average=False)


@row
def assigned_head_averaged(run: Loop) -> None:
    """The head's gradients alone, from `autograd.grad`, averaged by the runtime."""
    _assigned_head(run, average=True)


def _assigned_head(run: Loop, average: bool) -> None:
    original = Blocks()
    model, optimizer = run.setup(original, sgd(original))
    for x, y in run.batches(3):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        params = list(original.head.parameters())
        for p, gradient in zip(params, torch.autograd.grad(loss, params)):
            p.grad = gradient
        if average:
            run.average_gradients(optimizer)
        optimizer.step()


# Forwards and backwards ---------------------------------------------------------------------------


@row
def raw_backward(run: Loop) -> None:
    """`loss.backward()` instead of `runtime.backward`."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


@row
def two_views(run: Loop) -> None:
    """SimSiam: two forwards, one loss."""
    model, optimizer = ready(run)
    for x, _ in run.batches(3):
        optimizer.zero_grad()
        one, two = model(x), model(x + 0.3)
        loss = -(F.cosine_similarity(one, two.detach()) + F.cosine_similarity(two, one.detach())).mean() / 2
        run.backward(loss, model)
        optimizer.step()


@row
def two_forwards_two_backwards(run: Loop) -> None:
    """Two forwards, and then the backward of each."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        optimizer.zero_grad()
        one, two = F.mse_loss(model(x), y), F.mse_loss(model(x + 0.3), y)
        run.backward(one, model)
        run.backward(two, model)
        optimizer.step()


@row
def backward_twice(run: Loop) -> None:
    """Forward and backward twice before a step, without `no_sync`."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        optimizer.zero_grad()
        run.backward(F.mse_loss(model(x), y) / 2, model)
        run.backward(F.mse_loss(model(x + 0.3), y) / 2, model)
        optimizer.step()


@row
def retained_graph(run: Loop) -> None:
    """A second backward of one graph."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        optimizer.zero_grad()
        output = model(x)
        F.mse_loss(output, y).backward(retain_graph=True)
        output.abs().mean().backward()
        optimizer.step()


@row
def gradient_penalty(run: Loop) -> None:
    """A penalty on the gradients with regard to inputs."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        optimizer.zero_grad()
        x = x.clone().requires_grad_(True)
        output = model(x)
        (slopes,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        run.backward(F.mse_loss(output, y) + (slopes.norm(dim=1) - 1).square().mean(), model)
        optimizer.step()


@row
def original_called(run: Loop) -> None:
    """The module that `setup` was given is called."""
    original = net()
    _, optimizer = run.setup(original, sgd(original))
    for x, y in run.batches(3):
        step(run, original, optimizer, x, y)


@row
def weight_penalty(run: Loop) -> None:
    """`sum(p.pow(2).sum() for p in parameters)` in the loss."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        optimizer.zero_grad()
        penalty = sum(p.pow(2).sum() for p in model.parameters())
        run.backward(F.mse_loss(model(x), y) + 0.01 * penalty, model)
        optimizer.step()


@row
def functional_maml(run: Loop) -> None:
    """MAML by `functional_call`: one inner step on a support set that all ranks have."""
    model, optimizer = ready(run)
    support, targets = torch.linspace(-1, 1, 24).view(4, 6), torch.ones(4, 3)
    for x, y in run.batches(2):
        optimizer.zero_grad()
        params = dict(model.named_parameters())
        inner = F.mse_loss(functional_call(model, params, (support,)), targets)
        grads = torch.autograd.grad(inner, list(params.values()), create_graph=True)
        fast = {name: p - 0.1 * g for (name, p), g in zip(params.items(), grads)}
        run.backward(F.mse_loss(functional_call(model, fast, (x,)), y), model)
        optimizer.step()


@row
def sharpness_aware(run: Loop) -> None:
    """SAM by hand: a step up, a second backward, back, and the step."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        optimizer.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        with torch.no_grad():
            norm = torch.norm(torch.stack([p.grad.norm() for p in model.parameters()]))
            moves = [(p, p.grad * (0.05 / (norm + 1e-12))) for p in model.parameters()]
            for p, move in moves:
                p.add_(move)
        optimizer.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        with torch.no_grad():
            for p, move in moves:
                p.sub_(move)
        optimizer.step()


@row
def raw_backward_clipped(run: Loop) -> None:
    """`loss.backward()` and `runtime.clip`, of blocks."""
    original = Blocks()
    model, optimizer = run.setup(original, sgd(original))
    for x, y in run.batches(3):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        run.clip(optimizer, max_norm=0.1)
        optimizer.step()


@row
def raw_and_runtime_backward(run: Loop) -> None:
    """Two forwards, `loss.backward()` of the first and `runtime.backward` of the second."""
    original = Blocks()
    model, optimizer = run.setup(original, sgd(original))
    for x, y in run.batches(3):
        optimizer.zero_grad()
        one, two = F.mse_loss(model(x), y), F.mse_loss(model(x + 0.3), y)
        one.backward()
        run.backward(two, model)
        optimizer.step()


@row
def graph_of_blocks_twice(run: Loop) -> None:
    """A second backward of one graph, of blocks."""
    original = Blocks()
    model, optimizer = run.setup(original, sgd(original))
    for x, y in run.batches(3):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward(retain_graph=True)
        (0.5 * loss).backward()
        optimizer.step()


@row
def original_blocks_called(run: Loop) -> None:
    """The module of blocks that `setup` was given is called."""
    original = Blocks()
    _, optimizer = run.setup(original, sgd(original))
    for x, y in run.batches(3):
        optimizer.zero_grad()
        F.mse_loss(original(x), y).backward()
        optimizer.step()


@row
def functional_of_changed(run: Loop) -> None:
    """`functional_call` with parameters times 0.9."""
    original = Blocks()
    model, optimizer = run.setup(original, sgd(original))
    for x, y in run.batches(2):
        optimizer.zero_grad()
        fast = {name: value * 0.9 for name, value in original.named_parameters()}
        run.backward(F.mse_loss(functional_call(original, fast, (x,)), y), model)
        optimizer.step()


# Accumulation -------------------------------------------------------------------------------------


@row
def accumulate(run: Loop) -> None:
    """Windows of two by `accumulate`, with `zero_grad` first and clipping in each micro-batch."""
    module = net()
    model, optimizer = run.setup(module, sgd(module), accumulate=2, clipping=Clipping(max_norm=0.5))
    for index, (x, y) in enumerate(run.batches(4)):
        if run.runtime is None:
            (F.mse_loss(model(x), y) / 2).backward()
            if index % 2 == 1:
                run.clip(optimizer, max_norm=0.5)
                optimizer.step()
                optimizer.zero_grad()
            continue
        with run.runtime.accumulate():
            optimizer.zero_grad()
            run.backward(F.mse_loss(model(x), y), model)
            run.clip(optimizer, max_norm=0.5)
            optimizer.step()


@row
def accumulation(run: Loop) -> None:
    """Windows of two, the first within `no_sync`."""
    model, optimizer = ready(run)
    for index, (x, y) in enumerate(run.batches(4)):
        if index % 2 == 0:
            with run.no_sync(model):
                run.backward(F.mse_loss(model(x), y) / 2, model)
            continue
        run.backward(F.mse_loss(model(x), y) / 2, model)
        optimizer.step()
        optimizer.zero_grad()


@row
def accumulation_synced(run: Loop) -> None:
    """Windows of two without `no_sync`."""
    model, optimizer = ready(run)
    for index, (x, y) in enumerate(run.batches(4)):
        run.backward(F.mse_loss(model(x), y) / 2, model)
        if index % 2:
            optimizer.step()
            optimizer.zero_grad()


@row
def partial_window(run: Loop) -> None:
    """The last, incomplete window is stepped, though its backward was within `no_sync`."""
    model, optimizer = ready(run)
    for index, (x, y) in enumerate(run.batches(3)):
        if index % 2 == 0:
            with run.no_sync(model):
                run.backward(F.mse_loss(model(x), y) / 2, model)
            continue
        run.backward(F.mse_loss(model(x), y) / 2, model)
        optimizer.step()
        optimizer.zero_grad()
    optimizer.step()


@row
def gradients_kept(run: Loop) -> None:
    """`zero_grad(set_to_none=False)`."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        optimizer.zero_grad(set_to_none=False)
        run.backward(F.mse_loss(model(x), y), model)
        optimizer.step()


@row
def gradients_dropped_by_module(run: Loop) -> None:
    """`model.zero_grad()`."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        model.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        optimizer.step()


@row
def gradients_set_to_none(run: Loop) -> None:
    """`for p in parameters: p.grad = None`."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        for p in model.parameters():
            p.grad = None
        run.backward(F.mse_loss(model(x), y), model)
        optimizer.step()


@row
def two_forwards_and_a_window(run: Loop) -> None:
    """Two forwards, the backward of the first within `no_sync`, and that of the second."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        one, two = F.mse_loss(model(x), y), F.mse_loss(model(x + 0.3), y)
        with run.no_sync(model):
            run.backward(one, model)
        run.backward(two, model)
        optimizer.step()
        optimizer.zero_grad()


@row
def evaluation_within_a_window(run: Loop) -> None:
    """A forward of `model.eval()` between the backwards of a window and the step."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        with run.no_sync(model):
            run.backward(F.mse_loss(model(x), y), model)
        run.backward(F.mse_loss(model(x + 0.3), y), model)
        model.eval()
        model(x - 0.3)
        model.train()
        optimizer.step()
        optimizer.zero_grad()


@row
def windows_within_no_sync(run: Loop) -> None:
    """Each window is wholly within `no_sync`, clipped by the runtime, and stepped."""
    original = Blocks()
    model, optimizer = run.setup(original, sgd(original))
    for x, y in run.batches(3):
        for views in (x, x + 0.3):
            with run.no_sync(model):
                run.backward(F.mse_loss(model(views), y) / 2, model)
        run.clip(optimizer, max_norm=0.1)
        optimizer.step()
        optimizer.zero_grad()


@row
def windows_of_two_optimizers(run: Loop) -> None:
    """Windows within `no_sync` that two optimizers step, one of whose layers is frozen at times."""
    model = net()
    model, body, head = run.setup(
        model, sgd(model[:4], momentum=0.0), torch.optim.SGD(model[4].parameters(), lr=0.05, momentum=0.9)
    )
    for index, (x, y) in enumerate(run.batches(4)):
        model[0].requires_grad_(index != 2)
        for views in (x, x + 0.3):
            with run.no_sync(model):
                run.backward(F.mse_loss(model(views), y), model)
        for optimizer in (body, head):
            optimizer.step()
            optimizer.zero_grad()


@row
def step_within_no_sync(run: Loop) -> None:
    """The step itself is within `no_sync`."""
    original = Blocks()
    model, optimizer = run.setup(original, sgd(original))
    for x, y in run.batches(3):
        optimizer.zero_grad()
        with run.no_sync(model):
            run.backward(F.mse_loss(model(x), y), model)
            optimizer.step()


@row
def leftovers(run: Loop) -> None:
    """Micro-batches within `no_sync` before and after one that isn't."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        with run.no_sync(model):
            run.backward(F.mse_loss(model(x + 0.3), y), model)
        run.backward(F.mse_loss(model(x), y), model)
        with run.no_sync(model):
            run.backward(F.mse_loss(model(x - 0.3), y), model)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


@row
def dropped_within_a_window(run: Loop) -> None:
    """`zero_grad` after a micro-batch within `no_sync`."""
    original = Blocks()
    model, optimizer = run.setup(original, sgd(original))
    for index, (x, y) in enumerate(run.batches(4)):
        with run.no_sync(model):
            run.backward(F.mse_loss(model(x + 0.3), y), model)
        model.zero_grad() if index % 2 else optimizer.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        optimizer.step()
        optimizer.zero_grad()


@row
def dropped_between_forward_and_backward(run: Loop) -> None:
    """`zero_grad` between a forward and its backward drops what earlier backwards left."""
    model, optimizer = ready(run)
    for index, (x, y) in enumerate(run.batches(4)):
        run.backward(F.mse_loss(model(x + 0.3), y), model)
        if index % 2:
            with run.no_sync(model):
                run.backward(F.mse_loss(model(x - 0.3), y), model)
        output = model(x)
        optimizer.zero_grad(set_to_none=index < 2)
        run.backward(F.mse_loss(output, y), model)
        optimizer.step()


# Closures -----------------------------------------------------------------------------------------


def _closures(run: Loop, make: Any, count: int = 3) -> None:
    model, optimizer = ready(run, make)
    for x, y in run.batches(count):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            run.backward(loss, model)
            return loss

        loss = optimizer.step(closure)
        run.note("loss", run.mean(torch.as_tensor(loss)))


@row
def closure_sgd(run: Loop) -> None:
    """`opt.step(closure)` with SGD."""
    _closures(run, sgd)


@row
def closure_adam(run: Loop) -> None:
    """`opt.step(closure)` with Adam."""
    _closures(run, lambda module: torch.optim.Adam(module.parameters(), lr=0.01, eps=1e-2))


@row
def closure_lbfgs(run: Loop) -> None:
    """`opt.step(closure)` with LBFGS."""
    _closures(run, lambda module: torch.optim.LBFGS(module.parameters(), lr=0.1, max_iter=3))


@row
def closures_of_two_optimizers(run: Loop) -> None:
    """`step(closure)` of SGD and of Adam, in turns."""
    model = net()
    model, first, second = run.setup(
        model,
        torch.optim.SGD(model[:4].parameters(), lr=0.1),
        torch.optim.Adam(model[4].parameters(), lr=0.05, eps=1e-2),
    )
    for x, y in run.batches(3):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            first.zero_grad()
            second.zero_grad()
            loss = F.mse_loss(model(x), y)
            run.backward(loss, model)
            return loss

        for optimizer in (first, second):
            run.note("loss", run.mean(torch.as_tensor(optimizer.step(closure))))


@row
def closure_that_clips(run: Loop) -> None:
    """A closure with `runtime.clip`, and `loss.backward()` at times."""
    original = Blocks()
    model, optimizer = run.setup(original, torch.optim.AdamW(original.parameters(), lr=0.01, eps=1e-2))
    for index, (x, y) in enumerate(run.batches(3)):

        def closure(x: Tensor = x, y: Tensor = y, raw: bool = index == 1) -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward() if raw else run.backward(loss, model)
            run.clip(optimizer, max_norm=0.1)
            return loss

        run.note("loss", run.mean(torch.as_tensor(optimizer.step(closure))))


class Ascending(torch.optim.SGD):
    """As SAM does: the gradients of a second place, with a step to it and back."""

    def step(self, closure: Any = None) -> Any:
        evaluate = torch.enable_grad()(closure)
        loss = evaluate()
        with torch.no_grad():
            for p in self._stepped():
                self.state[p]["ascent"] = 0.05 * p.grad.sign()
                p.add_(self.state[p]["ascent"])
        evaluate()
        with torch.no_grad():
            for p in self._stepped():
                p.sub_(self.state[p]["ascent"])
        super().step()
        return loss

    def _stepped(self) -> list[Any]:
        return [p for group in self.param_groups for p in group["params"]]


@row
def ascending_optimizer(run: Loop) -> None:
    """SAM as an optimizer: its `step` evaluates the closure twice."""
    original = Blocks()
    model, optimizer = run.setup(original, Ascending(original.parameters(), lr=0.1, momentum=0.9))
    closures(run, model, optimizer)


class Lookahead(torch.optim.Optimizer):
    """Lets another optimizer step, and goes half of the way back after every second step."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        self.base, self.count = base, 0
        super().__init__(base.param_groups, {})
        self.param_groups = base.param_groups

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's returns a loss
        parameters = [p for group in self.param_groups for p in group["params"]]
        for p in parameters:
            if "slow" not in self.state[p]:
                self.state[p]["slow"] = p.clone()
        self.base.step()
        self.count += 1
        if self.count % 2 == 0:
            for p in parameters:
                p.copy_(self.state[p]["slow"].lerp_(p, 0.5))


class Whitened(torch.optim.Optimizer):
    """As Shampoo: multiplies a gradient by a matrix that it keeps for its rows."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's returns a loss
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                rows = p.grad.reshape(len(p), -1)
                if "left" not in self.state[p]:
                    self.state[p]["left"] = torch.eye(len(rows), dtype=p.dtype)
                self.state[p]["left"] += rows @ rows.T
                p.sub_(group["lr"] * torch.linalg.solve(self.state[p]["left"], rows).view_as(p))


@row
def lookahead(run: Loop) -> None:
    """An optimizer that lets Adam step."""
    model, optimizer = ready(
        run, lambda module: Lookahead(torch.optim.Adam(module.parameters(), lr=0.01, eps=1e-3))
    )
    for x, y in run.batches(5):
        step(run, model, optimizer, x, y)


@row
def lookahead_of_matrices(run: Loop) -> None:
    """An optimizer that lets one step that needs whole matrices."""
    model, optimizer = ready(run, lambda module: Lookahead(Whitened(module.parameters())))
    for x, y in run.batches(5):
        step(run, model, optimizer, x, y)


class Counting(torch.optim.Optimizer):
    """As MADGRAD: has a count for all parameters in its states."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's returns a loss
        self.state["count"] = self.state.get("count", 0) + 1
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                p.sub_(group["lr"] / self.state["count"] * mean.lerp_(p.grad, 0.5))


@row
def count_for_all(run: Loop) -> None:
    """A state of no parameter, saved and loaded."""
    model, optimizer = ready(run, lambda module: Counting(module.parameters()))
    state = {"model": model, "optimizer": optimizer}
    for index, (x, y) in enumerate(run.batches(5)):
        step(run, model, optimizer, x, y)
        if index == 2:
            run.save("middle", state)
            run.load("middle", state)


class Swapping(torch.optim.Optimizer):
    """As an optimizer without a schedule: evaluated with averages, which `train` and `eval` exchange."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "averaged": False})

    def train(self) -> None:
        self._swap(False)

    def eval(self) -> None:
        self._swap(True)

    @torch.no_grad()
    def _swap(self, averaged: bool) -> None:
        for group in self.param_groups:
            for p in group["params"] if group["averaged"] is not averaged else ():
                if "other" in self.state[p]:
                    other = self.state[p]["other"].clone()
                    self.state[p]["other"].copy_(p)
                    p.copy_(other)
            group["averaged"] = averaged

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's returns a loss
        for group in self.param_groups:
            for p in group["params"]:
                if "other" not in self.state[p]:
                    self.state[p]["other"] = p.clone()
                p.sub_(group["lr"] * p.grad)
                self.state[p]["other"].lerp_(p, 0.25)


@row
def averages_swapped_by_the_optimizer(run: Loop) -> None:
    """`optimizer.train()` and `optimizer.eval()`, which exchange parameters."""
    model, optimizer = ready(run, lambda module: Swapping(module.parameters()))
    for x, y in run.batches(4):
        optimizer.train()
        step(run, model, optimizer, x, y)
        optimizer.eval()
        with torch.no_grad():
            run.note("loss", run.mean(F.mse_loss(model(x), y)))


class OneNorm(torch.optim.SGD):
    """Clips the norm of all gradients itself."""

    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.05)
        return super().step(closure)


@row
def one_norm_from_a_rate_of_zero(run: Loop) -> None:
    """An optimizer that clips all gradients, and a schedule that begins with 0."""
    model, optimizer = ready(run, lambda module: OneNorm(module.parameters(), lr=0.3, momentum=0.9))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda index: index / 3)
    for x, y in run.batches(5):
        step(run, model, optimizer, x, y)
        scheduler.step()


class OneRate(torch.optim.Optimizer):
    """As Prodigy: one rate for all, which grows by a tenth at most, by how far all have come."""

    def __init__(self, params: Any, lr: float = 0.02) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's returns a loss
        come = length = 0.0
        parameters = [(group, p) for group in self.param_groups for p in group["params"]]
        for _, p in parameters:
            first = self.state[p].setdefault("first", p.clone())
            come += float((p.grad * (first - p)).sum())
            length += float(p.grad.abs().sum())
        for group in self.param_groups:
            group["lr"] = max(group["lr"], min(1.1 * group["lr"], 3 * come / length))
        for group, p in parameters:
            p.sub_(group["lr"] * p.grad)


@row
def one_rate_for_all(run: Loop) -> None:
    """An optimizer that computes one rate from all gradients."""
    model, optimizer = ready(run, lambda module: OneRate(module.parameters()))
    for x, y in run.batches(6):
        step(run, model, optimizer, x, y)
        run.note("lr", optimizer.param_groups[0]["lr"])


class Projecting(torch.optim.SGD):
    """As AdamP: takes away what lengthens a row, where gradients are nearly orthogonal to it."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() > 1:
                    unit = p / p.norm(dim=1, keepdim=True)
                    along = (p.grad * unit).sum(1, keepdim=True)
                    if float((along / p.grad.norm(dim=1, keepdim=True)).abs().max()) < 0.9:
                        p.grad.sub_(along * unit)
        return super().step(closure)


@row
def projected_where_orthogonal(run: Loop) -> None:
    """An optimizer that mixes elements where values of a whole matrix say so."""
    model, optimizer = ready(run, lambda module: Projecting(module.parameters(), lr=0.1, momentum=0.9))
    for x, y in run.batches(5):
        step(run, model, optimizer, x, y)


class Ahead(torch.optim.SGD):
    """Computes gradients where momentum is going to lead."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if "momentum_buffer" in self.state[p]:
                        p.sub_(self.state[p]["momentum_buffer"], alpha=0.05)
        loss = torch.enable_grad()(closure)()
        super().step()
        return loss


@row
def moved_before_the_closure(run: Loop) -> None:
    """An optimizer that changes parameters before its closure computes a loss."""
    model, optimizer = ready(run, lambda module: Ahead(module.parameters(), lr=0.1, momentum=0.9))
    closures(run, model, optimizer)


@row
def line_search(run: Loop) -> None:
    """LBFGS along a line, which evaluates its closure as often as losses say."""
    model, optimizer = ready(
        run, lambda module: torch.optim.LBFGS(module.parameters(), max_iter=3, line_search_fn="strong_wolfe")
    )
    closures(run, model, optimizer)


def closures(run: Loop, model: Any, optimizer: Any) -> None:
    for x, y in run.batches(3):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            run.backward(loss, model)
            return loss

        run.note("loss", run.mean(torch.as_tensor(optimizer.step(closure))))


# Optimizers ---------------------------------------------------------------------------------------


@row
def optimizer_afterwards(run: Loop) -> None:
    """`m = runtime.setup(model)`, and the optimizer made of `m.parameters()`."""
    model = run.setup(net())
    optimizer = sgd(model)
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)


@row
def late_optimizer(run: Loop) -> None:
    """A second optimizer, of the last layer, made in the middle."""
    model, optimizer = ready(run)
    late = None
    for index, (x, y) in enumerate(run.batches(4)):
        if index == 2:
            late = torch.optim.SGD(model[4].parameters(), lr=0.05)
        step(run, model, optimizer, x, y)
        if late is not None:
            late.step()


@row
def optimizer_hooks(run: Loop) -> None:
    """Step hooks, after `setup`: one halves gradients, one clamps weights."""
    model, optimizer = ready(run)

    def before(*_: Any) -> None:
        for p in model.parameters():
            p.grad.mul_(0.5)

    def after(*_: Any) -> None:
        with torch.no_grad():
            for p in model.parameters():
                p.clamp_(-0.3, 0.3)

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)


@row
def optimizer_hooks_of_groups(run: Loop) -> None:
    """A step hook from before `setup` that reads the norm of its optimizer's gradients."""
    model = net()
    optimizer = sgd(model)

    def before(stepped: Any, *_: Any) -> None:
        total = sum(float(p.grad.norm()) ** 2 for group in stepped.param_groups for p in group["params"])
        run.note("norm", total**0.5)

    optimizer.register_step_pre_hook(before)
    model, optimizer = run.setup(model, optimizer)
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)


class LatePreconditioned(torch.optim.SGD):
    """From its ninth step, each update is divided by the norm of its whole matrix."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.05)
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.count += 1
        if self.count >= 9:
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.div_(p.grad.norm() + 1.0)
        return super().step(closure)


@row
def late_preconditioner(run: Loop) -> None:
    """An optimizer that is elementwise until step 9."""
    model, optimizer = ready(run, lambda module: LatePreconditioned(module.parameters()))
    for x, y in run.batches(11):
        step(run, model, optimizer, x, y)


@row
def two_modules(run: Loop) -> None:
    """A GAN: two modules, each with an optimizer, in turns."""
    generator, of_generator = ready(run, module=net(3, 6))
    critic, of_critic = ready(run, module=net(4, 1))
    for x, _ in run.batches(3):
        fake = generator(x)
        of_critic.zero_grad()
        run.backward(critic(fake.detach()).mean() - critic(x).mean(), critic)
        of_critic.step()
        of_generator.zero_grad()
        run.backward(-critic(generator(x)).mean(), generator)
        of_generator.step()


@row
def two_optimizers(run: Loop) -> None:
    """Two optimizers of one module."""
    model = net()
    model, body, head = run.setup(
        model,
        torch.optim.SGD(model[:4].parameters(), lr=0.1),
        torch.optim.SGD(model[4].parameters(), lr=0.05),
    )
    for x, y in run.batches(3):
        body.zero_grad()
        head.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        body.step()
        head.step()


@row
def hooks_before_and_after(run: Loop) -> None:
    """Step hooks of both optimizers see whole tensors and states: they halve gradients and shrink weights."""
    original = Blocks()
    shapes = [value.shape for value in original.parameters()]

    def seen(optimizer: Any) -> list[Any]:
        params = [p for group in optimizer.param_groups for p in group["params"]]
        assert [p.shape for p in params] == shapes
        return params

    def before(optimizer: Any, *_: Any) -> None:
        run.note("called before", 1)
        for p in seen(optimizer):
            p.grad.mul_(0.5)

    @torch.no_grad()
    def after(optimizer: Any, *_: Any) -> None:
        run.note("called after", 1)
        for p in seen(optimizer):
            if p in optimizer.state:  # ranks may share out the states
                assert optimizer.state[p]["momentum_buffer"].shape == p.shape
            p.mul_(0.9)

    given = sgd(original)
    given.register_step_pre_hook(before)
    given.register_step_post_hook(after)
    model, optimizer = run.setup(original, given)
    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)


@row
def states_loaded_each_step(run: Loop) -> None:
    """`opt.load_state_dict(opt.state_dict())` after each step."""
    original = Blocks()
    model, optimizer = run.setup(original, sgd(original))
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)
        optimizer.load_state_dict(optimizer.state_dict())


@row
def fake_of_one_forward(run: Loop) -> None:
    """A GAN whose generator runs once per step: the critic's backward leads through it."""
    generator, of_generator = ready(
        run, lambda module: torch.optim.Adam(module.parameters(), lr=0.01, eps=1e-2), module=net(3, 6)
    )
    critic, of_critic = ready(run, module=net(4, 1))
    for x, _ in run.batches(3):
        fake = generator(x)
        of_critic.zero_grad()
        run.backward(critic(fake.detach()).square().mean() - critic(x).mean(), critic)
        of_critic.step()
        of_generator.zero_grad()
        run.backward(-critic(fake).mean(), generator)
        of_generator.step()


# Weights by hand ----------------------------------------------------------------------------------


@row
def padding_row(run: Loop) -> None:
    """`emb.weight.data[0].zero_()` after each step."""
    model, optimizer = ready(run, module=Embedded())
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)
        model.emb.weight.data[0].zero_()


@row
def bias_element(run: Loop) -> None:
    """`bias.data[0] = 1`."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)
        model[4].bias.data[0] = 1.0


@row
def weights_clamped(run: Loop) -> None:
    """WGAN: `p.data.clamp_(-0.2, 0.2)`."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)
        for p in model.parameters():
            p.data.clamp_(-0.2, 0.2)


@row
def weights_masked(run: Loop) -> None:
    """`w[w.abs() < t] = 0` under no_grad."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)
        with torch.no_grad():
            for p in model.parameters():
                p[p.abs() < 0.05] = 0.0


@row
def weights_normalized(run: Loop) -> None:
    """`w.data = F.normalize(w.data)` (the rows of a prototype layer)."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)
        model[4].weight.data = F.normalize(model[4].weight.data, dim=1)


@row
def weights_copied(run: Loop) -> None:
    """`w.data.copy_(tensor)`."""
    model, optimizer = ready(run)
    for index, (x, y) in enumerate(run.batches(3)):
        step(run, model, optimizer, x, y)
        if index == 1:
            model[2].weight.data.copy_(torch.eye(12) * 0.5)


@row
def weights_by_vector(run: Loop) -> None:
    """`vector_to_parameters(parameters_to_vector(…) * 0.9, …)`."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)
        vector = nn.utils.parameters_to_vector(model.parameters()) * 0.9
        nn.utils.vector_to_parameters(vector, model.parameters())


@row
def weights_reinitialized(run: Loop) -> None:
    """`torch.manual_seed(5); nn.init.normal_(layer.weight)` in the middle."""
    model, optimizer = ready(run)
    for index, (x, y) in enumerate(run.batches(4)):
        if index == 2:
            torch.manual_seed(5)
            nn.init.normal_(model[0].weight, std=0.3)
            nn.init.zeros_(model[0].bias)
        step(run, model, optimizer, x, y)


@row
def weights_read(run: Loop) -> None:
    """`.item()`, `float()`, `max`, `mean`, comparisons, `tolist()`, `numpy()` of weights."""
    model, optimizer = ready(run)
    for x, y in run.batches(2):
        step(run, model, optimizer, x, y)
        weight = model[2].weight
        run.note("mean", weight.mean().item())
        run.note("max", float(weight.detach().abs().max()))
        run.note("norm", weight.data.norm())
        run.note("large", bool((weight > 0.2).any()))
        run.note("list", weight.detach().flatten().tolist())
        run.note("numpy", weight.detach().cpu().numpy().sum())


@row
def momentum_encoder(run: Loop) -> None:
    """MoCo: `k.data = k.data * m + q.data * (1 - m)`."""
    query = net()
    key = copy.deepcopy(query)
    query, optimizer = run.setup(query, sgd(query))
    for x, _ in run.batches(3):
        with torch.no_grad():
            for q, k in zip(query.parameters(), key.parameters()):
                k.data = k.data * 0.9 + q.data * 0.1
            target = key(x)
        step(run, query, optimizer, x + 0.3, target)
    run.keep(key=key)


@row
def average_of_copy(run: Loop) -> None:
    """`ema = copy.deepcopy(model)` after `setup`, followed by `lerp_`."""
    model, optimizer = ready(run)
    ema = copy.deepcopy(model)
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)
        with torch.no_grad():
            for mine, theirs in zip(ema.parameters(), model.parameters()):
                mine.lerp_(theirs, 0.3)
    run.keep(ema=ema)


@row
def averaged_model(run: Loop) -> None:
    """`torch.optim.swa_utils.AveragedModel(model)`."""
    model, optimizer = ready(run)
    average = torch.optim.swa_utils.AveragedModel(model)
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)
        average.update_parameters(model)
    run.keep(average=average.module)


@row
def state_dict_average(run: Loop) -> None:
    """An average kept as a dict of clones, read by `named_parameters`."""
    model, optimizer = ready(run)
    shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)
        for name, p in model.named_parameters():
            shadow[name] = 0.7 * shadow[name] + 0.3 * p.detach()
    for name, value in shadow.items():
        run.note(f"mean of {name}", value.mean())


# Modules that change ------------------------------------------------------------------------------


@row
def frozen_and_unfrozen(run: Loop) -> None:
    """`requires_grad_(False)` for two steps, and then again True."""
    model, optimizer = ready(run)
    for index, (x, y) in enumerate(run.batches(4)):
        model[0].requires_grad_(index >= 2)
        step(run, model, optimizer, x, y)


@row
def head_replaced(run: Loop) -> None:
    """`model[4] = nn.Linear(…)` after `setup`, with an optimizer of its own."""
    model, optimizer = ready(run)
    late = None
    for index, (x, y) in enumerate(run.batches(4)):
        if index == 2:
            torch.manual_seed(9)
            model[4] = nn.Linear(12, 3)
            late = torch.optim.SGD(model[4].parameters(), lr=0.1)
        step(run, model, optimizer, x, y)
        if late is not None:
            late.step()
            late.zero_grad()


@row
def layer_added(run: Loop) -> None:
    """`model.append(nn.Linear(…))` and `opt.add_param_group` in the middle."""
    model, optimizer = ready(run)
    for index, (x, y) in enumerate(run.batches(4)):
        if index == 2:
            torch.manual_seed(9)
            model.append(nn.Linear(3, 3))
            optimizer.add_param_group({"params": list(model[5].parameters())})
        step(run, model, optimizer, x, y)


@row
def embedding_max_norm(run: Loop) -> None:
    """`nn.Embedding(max_norm=1)`, which changes its rows in the forward."""
    model, optimizer = ready(run, module=Embedded(max_norm=1.0))
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)


@row
def empty_parameter(run: Loop) -> None:
    """A parameter without elements."""
    model = net()
    model.register_parameter("empty", nn.Parameter(torch.zeros(0)))
    model, optimizer = run.setup(model, sgd(model))
    for x, y in run.batches(2):
        step(run, model, optimizer, x, y)


@row
def shared_trunk(run: Loop) -> None:
    """Two modules with one trunk, both set up."""
    trunk = net(3, 4)
    first, second = nn.Sequential(trunk, nn.Linear(4, 3)), nn.Sequential(trunk, nn.Linear(4, 3))
    first, of_first = run.setup(first, sgd(first, momentum=0.0))
    second, of_second = run.setup(second, sgd(second, momentum=0.0))
    for x, y in run.batches(3):
        step(run, first, of_first, x, y)
        step(run, second, of_second, x, y)


class Recurrent(nn.Module):
    """Truncated backpropagation through time: hidden states of a batch lie in a buffer."""

    hidden: Tensor

    def __init__(self, samples: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.cell, self.out = nn.Linear(10, 4), nn.Linear(4, 3)
        self.register_buffer("hidden", torch.zeros(samples, 4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.cell(torch.cat([x, self.hidden], 1)))
        self.hidden = hidden.detach()
        return self.out(hidden)


@row
def state_per_sample(run: Loop) -> None:
    """Hidden states of the batch's samples in a buffer."""
    model = Recurrent(12 // run.ranks)
    model, optimizer = run.setup(model, sgd(model))
    for x, y in run.batches(4):
        step(run, model, optimizer, x, y)


class Centered(nn.Module):
    """DINO's center: the mean of outputs, kept in a buffer."""

    center: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.register_buffer("center", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        output = self.net(x)
        if self.training:
            self.center = 0.5 * self.center + 0.5 * output.detach().mean(0)
        return output - self.center


@row
def buffer_of_batch(run: Loop) -> None:
    """A buffer that follows the mean of this rank's outputs."""
    model = Centered()
    model, optimizer = run.setup(model, sgd(model))
    for x, y in run.batches(4):
        step(run, model, optimizer, x, y)


@row
def head_replaced_in_group(run: Loop) -> None:
    """`model[4] = nn.Linear(…)` and `opt.add_param_group`, of the module that `setup` was given."""
    original = net()
    _, optimizer = run.setup(original, sgd(original))
    for index, (x, y) in enumerate(run.batches(4)):
        if index == 2:
            torch.manual_seed(9)
            original[4] = nn.Linear(12, 3)
            optimizer.add_param_group({"params": list(original[4].parameters())})
        step(run, original, optimizer, x, y)


@row
def head_extended(run: Loop) -> None:
    """`model.head = nn.Sequential(model.head, nn.Linear(…))` and `opt.add_param_group`."""
    original = Blocks()
    model, optimizer = run.setup(original, sgd(original))
    for index, (x, y) in enumerate(run.batches(3)):
        if index == 1:
            torch.manual_seed(9)
            added = nn.Linear(3, 3)
            original.head = nn.Sequential(original.head, added)
            optimizer.add_param_group({"params": list(added.parameters())})
        step(run, model, optimizer, x, y)


@row
def head_replaced_untrained(run: Loop) -> None:
    """`model.head = nn.Linear(…)` that no optimizer steps."""
    original = Blocks()
    model, optimizer = run.setup(original, sgd(original))
    for index, (x, y) in enumerate(run.batches(3)):
        if index == 1:
            torch.manual_seed(9)
            original.head = nn.Linear(6, 3)
        step(run, model, optimizer, x, y)


@row
def empty_parameter_clipped(run: Loop) -> None:
    """A parameter of shape (0, 3) in the loss, and `runtime.clip`."""
    original = Blocks()
    original.nothing = nn.Parameter(torch.zeros(0, 3))
    model, optimizer = run.setup(original, sgd(original))
    for x, y in run.batches(3):
        optimizer.zero_grad()
        run.backward(F.mse_loss(model(x), y) + original.nothing.sum(), model)
        run.clip(optimizer, max_norm=0.1)
        optimizer.step()


@row
def scalar_parameter(run: Loop) -> None:
    """A parameter without dimensions."""
    original = Blocks(scalar=True)
    model, optimizer = run.setup(original, sgd(original))
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)


# Exceptions ---------------------------------------------------------------------------------------


@row
def caught_in_backward(run: Loop) -> None:
    """An exception in the backward that all ranks catch, skipping the batch."""
    model, optimizer = ready(run)

    def fail(_: Tensor) -> None:
        raise ValueError("not this batch")

    for index, (x, y) in enumerate(run.batches(4)):
        optimizer.zero_grad()
        try:
            hidden = model(x)
            if index == 1:
                hidden.register_hook(fail)
            run.backward(F.mse_loss(hidden, y), model)
        except ValueError:
            continue
        optimizer.step()


class Failing(nn.Module):
    """Raises where it is said to."""

    fails = False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = net(3, 6), net(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.fails:
            raise ValueError("not this batch")
        return self.second(hidden)


@row
def caught_in_forward(run: Loop) -> None:
    """An exception in the forward that all ranks catch, skipping the batch."""
    original = Failing()
    model, optimizer = run.setup(original, sgd(original))
    for index, (x, y) in enumerate(run.batches(4)):
        original.fails = index == 1
        try:
            step(run, model, optimizer, x, y)
        except ValueError:
            continue


def _caught(run: Loop, where: str, dropped: bool = True) -> None:
    """An exception in the second step, which the loop leaves out."""
    original = Blocks()
    model, optimizer = run.setup(original, sgd(original))
    at = 0

    def fail(place: str) -> None:
        if place == where and at == 1:
            raise LookupError(place)

    original.blocks[1].register_forward_pre_hook(lambda *_: fail("forward"))
    original.blocks[0].register_forward_hook(
        lambda layer, args, output: Raising.apply(output, lambda: fail("backward"))
    )
    if where == "step":
        optimizer.register_step_pre_hook(lambda *_: fail("step"))

    def evaluate(x: Tensor, y: Tensor) -> Tensor:
        if dropped or not at:
            optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        run.backward(loss, model)
        fail("closure")
        return loss

    for index, (x, y) in enumerate(run.batches(4)):
        at = index
        try:
            if where == "closure":
                optimizer.step(lambda x=x, y=y: evaluate(x, y))
                continue
            evaluate(x, y)
            optimizer.step()
        except LookupError:
            continue


class Raising(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, fail: Any) -> Tensor:
        ctx.fail = fail
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.fail()
        return gradient, None


@row
def caught_in_a_layer(run: Loop) -> None:
    """An exception in a layer's forward that all ranks catch."""
    _caught(run, "forward")


@row
def caught_in_a_layers_backward(run: Loop) -> None:
    """An exception in a layer's backward that all ranks catch."""
    _caught(run, "backward")


@row
def caught_in_step(run: Loop) -> None:
    """An exception in a step hook that all ranks catch."""
    _caught(run, "step")


@row
def caught_in_closure(run: Loop) -> None:
    """An exception in a closure that all ranks catch."""
    _caught(run, "closure")


@row
def caught_and_stepped(run: Loop) -> None:
    """An exception in the backward, whose gradients aren't dropped before the next one."""
    _caught(run, "backward", dropped=False)


# Gradients within no_sync, and parameters of no module --------------------------------------------


@row
def dropped_within_no_sync(run: Loop) -> None:
    """`p.grad = None` between two micro-batches within `no_sync`."""
    model, optimizer = ready(run)
    for index, (x, y) in enumerate(run.batches(6)):
        loss = F.mse_loss(model(x), y) / 3
        if index % 3 < 2:
            with run.no_sync(model):
                run.backward(F.mse_loss(model(x), y) / 3, model)
                if index % 3 == 0:
                    for parameter in list(model.parameters())[:3]:
                        parameter.grad = None
            continue
        run.backward(loss, model)
        optimizer.step()
        optimizer.zero_grad()


@row
def changed_within_no_sync(run: Loop) -> None:
    """Gradients clamped within `no_sync`, and then a backward that is synchronised."""
    model, optimizer = ready(run)
    for index, (x, y) in enumerate(run.batches(4)):
        if index % 2 == 0:
            with run.no_sync(model):
                run.backward(F.mse_loss(model(x), y) / 2, model)
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.grad.clamp_(-0.02, 0.02)
            continue
        run.backward(F.mse_loss(model(x), y) / 2, model)
        optimizer.step()
        optimizer.zero_grad()


@row
def zeroed_within_no_sync(run: Loop) -> None:
    """A micro-batch dropped by `zero_grad(set_to_none=False)`, and those after it stepped."""
    model, optimizer = ready(run)
    for index, (x, y) in enumerate(run.batches(6)):
        if index % 3 < 2:
            with run.no_sync(model):
                run.backward(F.mse_loss(model(x), y) / 3, model)
                if index % 3 == 0:
                    optimizer.zero_grad(set_to_none=False)
            continue
        run.backward(F.mse_loss(model(x), y) / 3, model)
        optimizer.step()
        optimizer.zero_grad()


@row
def parameter_of_no_module(run: Loop) -> None:
    """A learned scale that is in no module, with an optimizer of its own."""
    model, optimizer = ready(run)
    scale = nn.Parameter(torch.ones(3))
    of_scale = torch.optim.SGD([scale], lr=0.05)
    for x, y in run.batches(4):
        optimizer.zero_grad()
        of_scale.zero_grad()
        run.backward(F.mse_loss(model(x) * scale, y), model)
        optimizer.step()
        of_scale.step()
        run.note("scale", scale.sum())


@row
def parameter_averaged_by_hand(run: Loop) -> None:
    """The same, whose gradient the loop averages over ranks."""
    model, optimizer = ready(run)
    scale = nn.Parameter(torch.ones(3))
    of_scale = torch.optim.SGD([scale], lr=0.05)
    for x, y in run.batches(4):
        optimizer.zero_grad()
        of_scale.zero_grad()
        run.backward(F.mse_loss(model(x) * scale, y), model)
        assert scale.grad is not None
        scale.grad = run.mean(scale.grad)
        optimizer.step()
        of_scale.step()
        run.note("scale", scale.sum())


@row
def copied_with_parametrization(run: Loop) -> None:
    """`copy.deepcopy(model)` of a model with `weight_norm`."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 12))
        model, optimizer = ready(run, module=nn.Sequential(layer, nn.Tanh(), nn.Linear(12, 3)))
    ema = copy.deepcopy(model)
    for x, y in run.batches(4):
        step(run, model, optimizer, x, y)
        with torch.no_grad():
            for mine, theirs in zip(ema.parameters(), model.parameters()):
                mine.lerp_(theirs, 0.3)
    run.keep(ema=ema)


# What is done before a backward, without an optimizer, or to what a strategy has replaced ----------------


@row
def assigned_before_backward(run: Loop) -> None:
    """A clipped gradient of `autograd.grad` in `p.grad`, to which the main loss's backward adds."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        optimizer.zero_grad()
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(model(x).abs().mean(), parameters)
        norm = torch.sqrt(sum((g * g).sum() for g in gradients))
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient * torch.clamp(0.2 / norm, max=1.0)
        run.backward(F.mse_loss(model(x), y), model)
        optimizer.step()


@row
def assigned_within_a_window(run: Loop) -> None:
    """`p.grad = p.grad.sign()` after a backward within `no_sync`, and then another backward."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        optimizer.zero_grad()
        with run.no_sync(model):
            run.backward(model(x).abs().mean(), model)
        for parameter in model.parameters():
            parameter.grad = 0.01 * parameter.grad.sign()
        run.backward(F.mse_loss(model(x), y), model)
        optimizer.step()


@row
def decay_before_backward(run: Loop) -> None:
    """`p.grad = 0.1 * p` (weight decay by hand), to which the backward adds."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        for parameter in model.parameters():
            parameter.grad = 0.1 * parameter.detach()
        run.backward(F.mse_loss(model(x), y), model)
        optimizer.step()


@row
def losses_weighed_by_norms(run: Loop) -> None:
    """GradNorm: raw backwards of one graph, whose norms weigh the losses."""
    model, optimizer = ready(run)
    for x, y in run.batches(4):
        output = model(x)
        losses = (F.mse_loss(output, y), output.abs().mean())
        norms = []
        for loss in losses:
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            norms.append(sum(float(p.grad.norm()) ** 2 for p in model.parameters()) ** 0.5)
        run.note("the norms", sum(norms))
        optimizer.zero_grad()
        run.backward(sum(loss * norm for loss, norm in zip(losses, reversed(norms))) / sum(norms), model)
        optimizer.step()


@row
def without_an_optimizer(run: Loop) -> None:
    """Gradient descent by hand: `p -= 0.1 * p.grad`, and no optimizer."""
    model = run.setup(net())
    for x, y in run.batches(3):
        run.backward(F.mse_loss(model(x), y), model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad.zero_()


@row
def without_an_optimizer_raw(run: Loop) -> None:
    """The same with `loss.backward()` and `p.data`."""
    model = run.setup(net())
    for x, y in run.batches(3):
        F.mse_loss(model(x), y).backward()
        for parameter in model.parameters():
            parameter.data -= 0.1 * parameter.grad
            parameter.grad = None


@row
def frozen_after_the_forward(run: Loop) -> None:
    """`requires_grad_(False)` between a forward and its backward."""
    model, optimizer = ready(run)
    for index, (x, y) in enumerate(run.batches(4)):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        model[0].weight.requires_grad_(index % 2 == 0)
        run.backward(loss, model)
        optimizer.step()
        model[0].weight.requires_grad_(True)


class Centralizes(torch.optim.SGD):
    """Removes each gradient's mean, where the group or the attribute says so."""

    bound: float | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if group.get("centralize") and parameter.grad is not None:
                    parameter.grad -= parameter.grad.mean()
        if self.bound is not None:
            nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], self.bound)
        return super().step(closure)


@row
def option_switched_on(run: Loop) -> None:
    """A group's option that makes steps need whole tensors, set in the middle."""
    model, optimizer = ready(run, lambda module: Centralizes(module.parameters(), lr=0.1))
    for index, (x, y) in enumerate(run.batches(5)):
        if index == 2:
            for group in optimizer.param_groups:
                group["centralize"] = True
        step(run, model, optimizer, x, y)


@row
def attribute_switched_on(run: Loop) -> None:
    """The same with an attribute of the optimizer, for the norm of all gradients."""
    model, optimizer = ready(run, lambda module: Centralizes(module.parameters(), lr=0.1))
    for index, (x, y) in enumerate(run.batches(5)):
        if index == 2:
            optimizer.bound = 0.1
        step(run, model, optimizer, x, y)


@row
def members_of_groups_changed(run: Loop) -> None:
    """A parameter that moves to another group in the middle, and one that leaves."""
    model = net()
    parameters = list(model.parameters())
    groups = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.02}]
    model, optimizer = run.setup(model, torch.optim.SGD(groups, lr=0.1, momentum=0.9))
    for index, (x, y) in enumerate(run.batches(5)):
        if index == 2:
            moved = optimizer.param_groups[1]["params"].pop(0)
            optimizer.param_groups[0]["params"].append(moved)
            del optimizer.param_groups[1]["params"][-1]
        model.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        optimizer.step()


@row
def states_read(run: Loop) -> None:
    """The norm of all momenta, read from `opt.state.values()`."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)
        states = optimizer.state.values()
        run.note("momenta", sum(float(state["momentum_buffer"].norm()) ** 2 for state in states))


@row
def step_replaced_before(run: Loop) -> None:
    """`given.step` that was replaced before `setup` by one that halves gradients."""
    model = net()
    given = sgd(model)
    own_step = given.step

    def halved(*args: Any, **kwargs: Any) -> Any:
        for group in given.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.5)
        return own_step(*args, **kwargs)

    given.step = halved  # type: ignore[method-assign]  # as user code patches an optimizer
    model, optimizer = run.setup(model, given)
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)


@row
def zero_grad_of_its_own(run: Loop) -> None:
    """An optimizer whose `zero_grad` keeps half of each gradient."""

    class Keeps(torch.optim.SGD):
        def zero_grad(self, set_to_none: bool = True) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(0.5)

    model, optimizer = ready(run, lambda module: Keeps(module.parameters(), lr=0.05))
    for x, y in run.batches(4):
        step(run, model, optimizer, x, y)


@row
def clip_of_an_older_list(run: Loop) -> None:
    """`clip_grad_norm_` of a list of parameters from before `setup`."""
    module = net()
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    model, optimizer = run.setup(module, sgd(module))
    for x, y in run.batches(3):
        optimizer.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        nn.utils.clip_grad_norm_(parameters, 0.1)
        optimizer.step()


@row
def average_of_an_older_list(run: Loop) -> None:
    """A moving average of a list of parameters from before `setup`."""
    module = net()
    parameters = list(module.parameters())
    average = [parameter.detach().clone() for parameter in parameters]
    model, optimizer = run.setup(module, sgd(module))
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)
        for kept, parameter in zip(average, parameters):
            kept.lerp_(parameter.detach(), 0.5)
    run.note("the average", sum(float(each.sum()) for each in average))


@row
def weights_swapped_by_data(run: Loop) -> None:
    """`backup = p.data; p.data = average; …; p.data = backup` around an evaluation."""
    model, optimizer = ready(run)
    average = [parameter.data.clone() for parameter in model.parameters()]
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)
        for kept, parameter in zip(average, model.parameters()):
            kept.lerp_(parameter.data, 0.5)
        backup = []
        for kept, parameter in zip(average, model.parameters()):
            backup.append(parameter.data)
            parameter.data = kept
        with torch.no_grad():
            run.note("evaluation", run.mean(F.mse_loss(model(x), y)))
        for kept, parameter in zip(backup, model.parameters()):
            parameter.data = kept


@row
def weights_swapped_by_copies(run: Loop) -> None:
    """The same with `p.data.clone()`."""
    model, optimizer = ready(run)
    other = [parameter.detach() for parameter in net(seed=9).parameters()]
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)
        backup = [parameter.data.clone() for parameter in model.parameters()]
        for kept, parameter in zip(other, model.parameters()):
            parameter.data = kept.clone()
        with torch.no_grad():
            run.note("evaluation", run.mean(F.mse_loss(model(x), y)))
        for kept, parameter in zip(backup, model.parameters()):
            parameter.data = kept


@row
def gradients_in_one_buffer(run: Loop) -> None:
    """`p.grad` are views of one flat buffer, which is clipped."""
    model, optimizer = ready(run)
    flat = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    begin = 0
    for parameter in model.parameters():
        parameter.grad = flat[begin : begin + parameter.numel()].view_as(parameter)
        begin += parameter.numel()
    for x, y in run.batches(3):
        flat.zero_()
        run.backward(F.mse_loss(model(x), y), model)
        flat.mul_(torch.clamp(0.2 / (flat.norm() + 1e-6), max=1.0))
        optimizer.step()


@row
def gradients_of_a_copy(run: Loop) -> None:
    """First order MAML: the gradients of an adapted copy, assigned to `p.grad`."""
    model, optimizer = ready(run)
    for x, y in run.batches(3):
        adapted = copy.deepcopy(model)
        F.mse_loss(adapted(x), y).backward()
        optimizer.zero_grad()
        for parameter, adapted_parameter in zip(model.parameters(), adapted.parameters()):
            parameter.grad = adapted_parameter.grad
        optimizer.step()


class Normalizer(nn.Module):
    """Running statistics of a module's own, as of observations in reinforcement learning."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.running_mean = 0.9 * self.running_mean + 0.1 * x.mean(0)
        return x - self.running_mean


@row
def normalizer_of_its_own(run: Loop) -> None:
    """A normalizer with a running mean of this rank's samples, by the name that BatchNorm uses."""
    model, optimizer = ready(run, module=nn.Sequential(Normalizer(6), *net()))
    for x, y in run.batches(3):
        step(run, model, optimizer, x, y)


OF_REPLACED = (
    "assigned_before_backward",
    "assigned_within_a_window",
    "decay_before_backward",
    "losses_weighed_by_norms",
    "without_an_optimizer",
    "without_an_optimizer_raw",
    "frozen_after_the_forward",
    "option_switched_on",
    "attribute_switched_on",
    "members_of_groups_changed",
    "states_read",
    "step_replaced_before",
    "zero_grad_of_its_own",
    "clip_of_an_older_list",
    "average_of_an_older_list",
    "weights_swapped_by_data",
    "weights_swapped_by_copies",
    "gradients_in_one_buffer",
    "gradients_of_a_copy",
    "normalizer_of_its_own",
)
"""Rows about gradients before a backward, steps by hand, and what a strategy has replaced."""
OF_GRADIENTS = (
    "raw_backward",
    "original_called",
    "two_forwards_two_backwards",
    "two_views",
    "retained_graph",
    "windows_within_no_sync",
    "leftovers",
    "optimizer_afterwards",
    "given_optimizer_stepped",
    "closures_of_two_optimizers",
    "gradients_averaged",
    "pcgrad",
    "clip_within_no_sync",
    "gradients_replaced_and_dropped",
    "head_replaced_in_group",
    "optimizer_in_backward",
    "caught_in_a_layer",
    "caught_in_a_layers_backward",
    "schedule_and_hooks",
    "norm_of_two_backwards",
    "averaged_model",
    "fake_of_one_forward",
    "shared_trunk",
)
"""Rows that a strategy of replicas has to complete gradients for, or to refuse."""
OF_SHARDS = (
    "raw_backward_clipped",
    "original_blocks_called",
    "graph_of_blocks_twice",
    "raw_and_runtime_backward",
    "step_within_no_sync",
    "windows_within_no_sync",
    "dropped_within_a_window",
    "assigned_head",
    "assigned_head_averaged",
    "head_extended",
    "head_replaced_untrained",
    "empty_parameter_clipped",
    "scalar_parameter",
    "functional_of_changed",
    "closure_that_clips",
    "ascending_optimizer",
    "hooks_before_and_after",
    "states_loaded_each_step",
    "caught_in_a_layer",
    "caught_in_a_layers_backward",
    "caught_in_step",
    "caught_in_closure",
    "caught_and_stepped",
)
"""Rows that a strategy which shards parameters has to show whole tensors to, or to refuse."""
OF_OPTIMIZERS = (
    "lookahead",
    "lookahead_of_matrices",
    "count_for_all",
    "averages_swapped_by_the_optimizer",
    "one_norm_from_a_rate_of_zero",
    "one_rate_for_all",
    "projected_where_orthogonal",
    "moved_before_the_closure",
    "line_search",
)
"""Rows whose optimizers look at more than one element, keep more than states of parameters, or do more than step."""
