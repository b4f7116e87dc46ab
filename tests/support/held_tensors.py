"""What a user's code does with parameters and gradients: a function each, for one process and for shards alike."""

from __future__ import annotations

import copy
import io
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    """Five rows over two or three ranks; one block is sharded by itself."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.words = nn.Embedding(7, 4)
        self.first = nn.Linear(4, 5)
        self.second = nn.Linear(5, 5)
        self.scale = nn.Parameter(torch.ones(1))
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.second(torch.tanh(self.first(self.words(x).mean(1))))


def batch(rank: int, world_size: int) -> torch.Tensor:
    """Return this rank's rows of the global batch."""
    whole = torch.randint(0, 7, (6, 3), generator=torch.Generator().manual_seed(5))
    return whole.chunk(world_size)[rank]


ROWS: dict[str, Any] = {}


def row(function: Any) -> Any:
    ROWS[function.__name__] = function
    return function


def each(source: str) -> None:
    """Add a row for each line, an expression of `names`."""
    for line in source.strip().splitlines():
        ROWS[line] = partial(evaluate, compile(line, line, "eval"))


def do(source: str) -> None:
    """Add a row for each line of statements, which run within no_grad."""
    for line in source.strip().splitlines():
        ROWS[line] = torch.no_grad()(partial(execute, compile(line, line, "exec")))


def evaluate(code: Any, m: Any, opt: Any, again: Any) -> Any:
    return eval(code, names(m))


def execute(code: Any, m: Any, opt: Any, again: Any) -> None:
    exec(code, names(m))


def names(m: Any) -> dict[str, Any]:
    return {
        "m": m,
        "w": m.first.weight,
        "g": m.first.weight.grad,
        "b": m.first.bias,
        "q": m.second.weight,
        "p": m.second.weight,
        "s": m.scale,
        "e": m.words.weight,
        "torch": torch,
        "nn": nn,
        "F": F,
        "np": np,
        "copy": copy,
        "mask": torch.arange(20).reshape(5, 4) % 3 == 0,
        "plain": torch.arange(20.0).reshape(5, 4) / 7,
        "square": torch.arange(25.0).reshape(5, 5) / 9,
    }


each("""
sum(p.grad.data.norm(2).item() ** 2 for p in m.parameters()) ** 0.5
torch.norm(torch.stack([torch.norm(p.grad.detach(), 2) for p in m.parameters()]), 2)
torch.linalg.vector_norm(g)
torch.linalg.norm(g)
g.norm()
g.norm(1).item()
g.norm(float('inf')).item()
w.detach().norm(dim=1)
float(g.max())
g.max().item()
g.min()
g.amax(dim=0)
g.max(dim=1)
g.argmax()
g.argmax(dim=0)
g.abs().max().item()
g.mean().item()
g.mean(dim=0)
w.mean()
g.std()
g.var(dim=1)
w.data.sum()
w.detach().sum(0)
g.median()
g.sort().values
g.topk(2).values
g.view(-1).topk(3).indices
g.flatten().kthvalue(4).values
g.quantile(0.3)
torch.histc(g, 4)
g.numel(), g.shape, g.dim(), len(g)
bool((g > 0).any())
bool((g.abs() > 1e3).all())
(g > 0).sum().item()
(w == 0).any().item()
(w > 0)[1]
torch.isnan(g).any().item()
torch.isfinite(g).all().item()
torch.allclose(w, plain)
torch.equal(w, w.clone())
torch.equal(w.detach(), plain)
torch.count_nonzero(g)
g.tolist()
w.detach().tolist()
g.numpy()
w.detach().cpu().numpy()
np.asarray(g)
w.detach().clone()
w.data[3]
w[1, 2].item()
w.detach()[1:4]
w.detach()[:, 1]
g[mask]
w.detach()[torch.tensor([0, 4])]
w.detach().chunk(3)
w.detach().split(2)[1]
w.detach().unbind()[4]
[row.sum().item() for row in w.detach()]
w.detach().t()
w.T.detach()
w.detach().reshape(-1)
w.detach().view(4, 5)
w.detach().flatten()[7].item()
w.detach() @ plain.t()
plain.t() @ w.detach()
torch.mm(w.detach(), plain.t())
F.cosine_similarity(w.detach().flatten(), g.flatten(), dim=0).item()
torch.dot(w.detach().view(-1), g.view(-1))
w.detach() + plain
plain * w.detach()
w.detach() * 2 + 1
1 - w.detach()
w.detach() * g
w.detach() / (g.abs() + 1)
(w.detach() ** 2).sum()
w.detach() + b.detach().unsqueeze(1)
torch.cat([w.detach(), q.detach()], dim=1)
torch.stack([w.detach(), g])
torch.where(w.detach() > 0, w.detach(), plain)
torch.outer(b.detach(), b.detach())
torch.linalg.matrix_norm(w.detach(), 2)
torch.linalg.svdvals(w.detach())
torch.triu(w.detach())
torch.einsum('ij,ij->i', w, g).detach()
w.detach().to(torch.float64)
w.detach().double().sum().item()
w.detach().half()
nn.utils.parameters_to_vector(m.parameters()).detach()
nn.utils.parameters_to_vector([p.grad for p in m.parameters()])
nn.utils.clip_grad_norm_(m.parameters(), 0.1)
nn.utils.clip_grad_value_(m.parameters(), 0.01)
nn.utils.get_total_norm([p.grad for p in m.parameters()])
torch._foreach_norm([p.grad for p in m.parameters()])
copy.deepcopy(w).detach()
copy.deepcopy(g)
{k: v.clone() for k, v in copy.deepcopy(m.state_dict()).items()}
torch.zeros_like(w).detach()
w.new_zeros(3)
w.new_tensor([1.0, 2.0])
F.mse_loss(w.detach(), plain)
F.normalize(w.detach())
F.softmax(w.detach(), dim=0)
F.embedding(torch.tensor([1, 6]), e.detach())
w.detach().cumsum(0)
w.detach().roll(1, 0)
w.detach().repeat(2, 1)
w.detach().expand(2, 5, 4)
w.detach().sign()
f'{b.detach()[2]:.4f} {g.norm():.4f}'
round(g.norm().item(), 4)
max(p.grad.abs().max() for p in m.parameters())
sorted(b.detach().tolist())
s.item()
float(s.detach()), int(s.detach()), bool(s > 0)
s.data.numpy()
w.detach().is_contiguous(), w.requires_grad, w.dtype, w.is_leaf
[n for n, p in m.named_parameters() if p.grad.abs().max() > 0.05]
""")

do("""
w.data[3].zero_()
w.data[3] = 0
w[3] = 1.5
w[1:4, ::2] = 7
e.data[0].zero_()
e.grad[0] = 0
b.data[0] = 1
b[4] += 2
w.data[0, 0] += 1
g[:8].mul_(2)
g[:2].mul_(3)
g.chunk(2)[1].zero_()
[part.mul_(i) for i, part in enumerate(g.split(2))]
[row.div_(row.norm()) for row in w.data]
g[g.abs() < 0.02] = 0
w[mask] = 0
w.data[mask] *= 2
g.masked_fill_(mask, 0)
w.data.masked_fill_(w.data < 0, 0)
w.data.fill_diagonal_(0)
q.fill_diagonal_(1.0)
w.t().mul_(2)
w.data.T[0].add_(1)
w.view(-1)[3:9].fill_(2)
w.flatten()[3] = 2
w.diagonal().zero_()
w.index_fill_(0, torch.tensor([1, 4]), 3)
w.index_add_(0, torch.tensor([4]), plain[:1])
w.index_copy_(0, torch.tensor([0]), plain[:1])
w.scatter_(1, torch.tensor([[0], [1], [2], [3], [0]]), 9.0)
w.clamp_(-0.1, 0.1)
w.data.clamp_(min=0)
w.mul_(mask)
w.data = w.data * mask
w.mul_(2).add_(1)
w.add_(plain)
w.data.add_(g, alpha=-0.1)
w -= 0.1 * g
w.sub_(0.1 * g.sign())
w.copy_(plain)
w.data.copy_(plain)
w.copy_(plain[0])
w.copy_(g)
w.data = plain
w.data = torch.zeros(5, 4)
w.data = w.data * 0.9 + g.data * (1 - 0.9)
q.data = q.data * 0.9 + square * 0.1
w.grad = plain * 2
w.grad = w.grad * 2
w.grad.data = plain.clone()
g.copy_(plain)
g.sub_(g.mean(dim=1, keepdim=True))
g.data.div_(g.norm() + 1e-6)
g.mul_((1.0 / (g.norm() + 1e-6)).clamp(max=1.0))
w.div_(w.norm(dim=1, keepdim=True))
w.data.renorm_(2, 0, 1)
w.zero_()
w.fill_(2)
s.data[0] = 3
s.data.clamp_(0, 0.5)
s.fill_(0.1)
w.data.apply_(lambda x: 2 * x)
w.data.map_(plain, lambda x, y: x + y)
w.swapaxes(0, 1).add_(1)
w.squeeze().zero_()
w.data.unsqueeze(0).mul_(3)
g.unfold(0, 2, 2).zero_()
w.select(0, 4).fill_(3)
w.narrow(0, 1, 2).mul_(0)
w.masked_scatter_(mask, plain)
torch.cumsum(w, 0, out=g)
w.put_(torch.tensor([1, 19]), torch.tensor([5.0, 6.0]))
g.clamp_(-plain.abs(), plain.abs())
w.requires_grad_(False).mul_(2).requires_grad_(True)
torch._foreach_mul_([p.grad for p in m.parameters()], 0.5)
torch._foreach_add_([p for p in m.parameters()], [p.grad for p in m.parameters()], alpha=-0.1)
torch._foreach_copy_([w], [plain])
torch._foreach_lerp_([w], [plain], 0.3)
w.lerp_(plain, 0.1)
torch.add(w, 1, out=g)
torch.mul(w.data, 2, out=w.data)
torch.manual_seed(1); nn.init.normal_(w)
torch.manual_seed(1); nn.init.xavier_uniform_(w)
torch.manual_seed(1); nn.init.kaiming_normal_(w)
torch.manual_seed(1); nn.init.orthogonal_(w)
torch.manual_seed(1); nn.init.trunc_normal_(w, std=0.02)
torch.manual_seed(1); nn.init.sparse_(w, 0.4)
nn.init.eye_(q)
nn.init.zeros_(w)
nn.init.constant_(w, 3)
torch.manual_seed(1); w.normal_()
torch.manual_seed(1); w.data.uniform_(-1, 1)
torch.manual_seed(1); w.data.bernoulli_(0.4)
torch.manual_seed(1); w.add_(torch.randn_like(w) * 0.1)
torch.manual_seed(1); g.add_(torch.randn_like(g), alpha=0.1)
torch.manual_seed(1); w.data.copy_(torch.rand_like(w))
torch.manual_seed(1); w.exponential_()
torch.manual_seed(1); w.add_(torch.randn(5, 4) * 0.1)
torch.manual_seed(1); m.second.reset_parameters()
torch.manual_seed(1); m.words.reset_parameters()
nn.utils.vector_to_parameters(torch.arange(84.0), m.parameters())
nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(m.parameters()) * 2, m.parameters())
m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()})
m.load_state_dict({k: torch.zeros(v.shape) for k, v in m.state_dict().items()})
view = w.data[2]; w.add_(1); w.sub_(view.clone())
view = w.data[2]; w.mul_(2); view.add_(1)
row = w[0]; row.zero_()
u, s, v = torch.linalg.svd(w, full_matrices=False); w.copy_(u @ torch.diag(s.clamp(max=0.5)) @ v)
""")


@row
def average_of_weights(m: Any, opt: Any, again: Any) -> Any:
    average = torch.optim.swa_utils.AveragedModel(
        m, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    for _ in range(2):
        average.update_parameters(m)
        opt.step()
    average.update_parameters(m)
    x = batch(0, 1)
    return average(x).detach(), {k: v.detach().clone() for k, v in average.module.named_parameters()}


@row
def average_by_hand(m: Any, opt: Any, again: Any) -> Any:
    average = copy.deepcopy(m)
    for _ in range(2):
        opt.step()
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), m.parameters()):
                mean.mul_(0.9).add_(parameter, alpha=0.1)
    return average.first(torch.ones(4)).detach()


@row
def copy_of_a_part(m: Any, opt: Any, again: Any) -> Any:
    part = copy.deepcopy(m.second)
    part.weight.data[0] = 0
    assert type(part) is nn.Linear
    return part(torch.ones(5)).detach()


@row
def best_weights(m: Any, opt: Any, again: Any) -> None:
    best = copy.deepcopy(m.state_dict())
    opt.step()
    m.load_state_dict(best)


@row
def own_momentum(m: Any, opt: Any, again: Any) -> Any:
    momentum = {name: torch.zeros_like(p) for name, p in m.named_parameters()}
    with torch.no_grad():
        for _ in range(3):
            for name, p in m.named_parameters():
                momentum[name].mul_(0.9).add_(p.grad)
                p -= 0.1 * momentum[name]
    return momentum["first.weight"].detach()


@row
def skip_large(m: Any, opt: Any, again: Any) -> Any:
    norm = sum(p.grad.data.norm(2).item() ** 2 for p in m.parameters()) ** 0.5
    if norm < 0.9 * norm + 0.01:
        opt.step()
    return norm


@row
def state_of_the_optimizer(m: Any, opt: Any, again: Any) -> Any:
    opt.step()
    return {k: v.detach().clone() if v.dim() else v for k, v in opt.state[m.first.weight].items()}


@row
def state_of_the_optimizer_loaded(m: Any, opt: Any, again: Any) -> Any:
    opt.step()
    before = copy.deepcopy(opt.state_dict())
    opt.step()
    opt.load_state_dict(before)
    opt.step()
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    opt.load_state_dict(torch.load(io.BytesIO(file.getvalue())))
    opt.state[m.scale]["exp_avg"].mul_(0.5)
    opt.step()
    return [opt.state[p]["exp_avg"].detach().clone() for p in m.parameters()]


@row
def initialized_with_gradient(m: Any, opt: Any, again: Any) -> Any:
    torch.manual_seed(1)
    nn.init.normal_(m.first.weight, std=0.3)
    nn.init.kaiming_uniform_(m.second.weight)
    nn.init.uniform_(m.words.weight, -1, 1)
    nn.init.zeros_(m.first.bias)
    return nn.init.constant_(m.scale, 2.0) is m.scale, m.scale.requires_grad


@row
def hook_on_gradients(m: Any, opt: Any, again: Any) -> Any:
    norms = []
    parameters = [m.first.weight, m.second.bias]
    handles = [
        parameter.register_post_accumulate_grad_hook(lambda p: norms.append(p.grad.norm().item()))
        for parameter in parameters
    ]
    again()
    for handle in handles:
        handle.remove()
    return sorted(norms)


@row
def penalty_of_weights(m: Any, opt: Any, again: Any) -> None:
    again(lambda y: 0.1 * sum(p.pow(2).sum() for p in m.parameters()) + m.words.weight.abs().mean())


@row
def weights_and_data(m: Any, opt: Any, again: Any) -> None:
    again(lambda y: (m.second.weight @ y.t()).abs().mean())


@row
def view_with_gradient(m: Any, opt: Any, again: Any) -> Any:
    first, rest = m.first.weight[0], m.first.weight[1:]
    with torch.no_grad():
        first.zero_()
        rest *= 2
    return rest.detach().sum().item()


@row
def saved_with_torch(m: Any, opt: Any, again: Any) -> Any:
    file = io.BytesIO()
    torch.save({"model": m.state_dict(), "grad": m.first.weight.grad, "row": m.first.weight.data[1]}, file)
    m.first.weight.data.zero_()
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    m.load_state_dict(saved["model"])
    return saved


@row
def states_of_the_optimizer(m: Any, opt: Any, again: Any) -> Any:
    opt.step()
    state = opt.state[m.first.weight]
    state["exp_avg"][0].zero_()
    return state["exp_avg"].norm().item(), state["exp_avg_sq"].sum(0), state["exp_avg"].tolist()
