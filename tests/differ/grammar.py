"""`draw(seed)`: an own loop as source text, made of freedoms that users take."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

HEAD = """\
import copy
from collections import defaultdict

import torch
from torch import nn
from torch.nn import functional as F

"""

MODELS = {
    "mlp": "nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3))",
    "wide": "nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 5, bias=False), nn.GELU(), nn.Linear(5, 3))",
    "norms": "nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.Tanh(), nn.Linear(12, 7), nn.Linear(7, 3))",
    "conv": (
        "nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), "
        "nn.Linear(12, 3))"
    ),
    "tied": (
        "nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.utils.parametrizations.weight_norm(nn.Linear(12, 12)), "
        "nn.Linear(12, 3))"
    ),
}
OPTIMIZERS = {
    "sgd": "torch.optim.SGD({}, lr=0.1)",
    "momentum": "torch.optim.SGD({}, lr=0.05, momentum=0.9, nesterov=True)",
    # Without a large eps, Adam turns a gradient's rounding into whole steps.
    "adam": "torch.optim.Adam({}, lr=0.02, eps=1e-2)",
    "adamw": "torch.optim.AdamW({}, lr=0.02, eps=1e-2, weight_decay=0.1)",
    "rmsprop": "torch.optim.RMSprop({}, lr=0.01, eps=1e-1)",
}

SLOTS = (
    "module",
    "made",
    "setup",
    "before",
    "zero",
    "loss",
    "backward",
    "gradients",
    "step",
    "after",
    "end",
)
RESUMED = "resumed_in_a_new_process"


@dataclass(frozen=True)
class Freedom:
    """What a loop does otherwise than the plainest one: text for some of the `SLOTS`."""

    name: str
    slots: Mapping[str, str]
    excludes: str = ""
    """Of freedoms with the same word, a program has one at most."""


FREEDOMS: dict[str, Freedom] = {}


def _freedom(name: str, excludes: str = "", **slots: str) -> None:
    assert set(slots) <= set(SLOTS), name
    FREEDOMS[name] = Freedom(name, {k: textwrap.dedent(v).strip("\n") for k, v in slots.items()}, excludes)


# How the gradients come about.
_freedom("raw_backward", "backward", backward="loss.backward()")
_freedom("two_views", "backward", loss="loss = F.mse_loss(model(x), y) + F.mse_loss(model(x * 0.7), y)")
_freedom(
    "two_backwards",
    "backward",
    loss="loss, other = F.mse_loss(model(x), y), F.mse_loss(model(x * 0.7), y)",
    backward="run.backward(loss, model)\nrun.backward(other, model)",
)
_freedom(
    "backward_twice",
    "backward",
    backward="run.backward(loss, model)\nrun.backward(F.mse_loss(model(x * 0.7), y), model)",
)
_freedom(
    "retained_graph",
    "backward",
    backward="loss.backward(retain_graph=True)\n(0.1 * loss).backward()",
)
_freedom(
    "autograd_grad",
    "backward",
    backward="""
        params = [p for p in model.parameters() if p.requires_grad]
        for p, g in zip(params, torch.autograd.grad(loss, params)):
            p.grad = g
    """,
)
_freedom(
    "penalty_of_weights",
    "",
    loss="loss = F.mse_loss(model(x), y) + 0.01 * sum(p.pow(2).sum() for p in model.parameters())",
)
_freedom(
    "accumulation",
    "backward",
    zero="",
    backward="""
        if index % 2 == 0:
            # The forward is within no_sync, too.
            with run.no_sync(model):
                run.backward(F.mse_loss(model(x), y) / 2, model)
            continue
        run.backward(loss / 2, model)
    """,
    after="optimizer.zero_grad()",
)
_freedom(
    "accumulation_synced",
    "backward",
    zero="",
    backward="""
        run.backward(loss / 2, model)
        if index % 2 == 0:
            continue
    """,
    after="optimizer.zero_grad()",
)
_freedom(
    "partial_window",
    "backward",
    zero="",
    backward="""
        if index % 3 < 2:
            with run.no_sync(model):
                run.backward(F.mse_loss(model(x), y) / 3, model)
            continue
        run.backward(loss / 3, model)
    """,
    after="optimizer.zero_grad()",
    end="optimizer.step()",
)
_freedom(
    "closure",
    "backward",
    zero="",
    loss="",
    backward="""
        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            run.backward(loss, model)
            return loss
    """,
    step="run.note('loss', run.mean(optimizer.step(closure)))",
)
_freedom(
    "sharpness_aware",
    "backward",
    backward="""
        run.backward(loss, model)
        with torch.no_grad():
            norm = torch.norm(torch.stack([p.grad.norm() for p in model.parameters()]))
            moves = [(p, p.grad * (0.05 / (norm + 1e-6))) for p in model.parameters()]
            for p, move in moves:
                p.add_(move)
        optimizer.zero_grad()
        run.backward(F.mse_loss(model(x), y), model)
        with torch.no_grad():
            for p, move in moves:
                p.sub_(move)
    """,
)
# Gradients by hand.
_OF_EACH = "for p in model.parameters():\n    if p.grad is not None:\n        "
for _name, _text in {
    "gradient_mask": "p.grad[p.grad.abs() < 0.01] = 0.0",
    "gradient_sign": "p.grad = 0.1 * torch.tanh(10 * p.grad)",
    "gradient_center": "p.grad -= p.grad.mean()",
    "gradient_scaled": "p.grad.data.mul_(0.5)",
    "gradient_rows": "p.grad[:2].mul_(0.5)",
    "gradient_where": "p.grad.copy_(torch.where(p.grad > 0, p.grad, 0.5 * p.grad))",
    "gradient_own_norm": "p.grad.div_(p.grad.norm() + 1.0)",
    "gradient_clamped": "p.grad.clamp_(-0.05, 0.05)",
}.items():
    _freedom(_name, gradients=_OF_EACH + _text)
_freedom(
    "gradient_noise",
    gradients="torch.manual_seed(index)\n" + _OF_EACH + "p.grad.add_(torch.randn_like(p.grad), alpha=0.01)",
)
_freedom("clip_of_torch", gradients="run.note('norm', nn.utils.clip_grad_norm_(model.parameters(), 0.2))")
_freedom("clip_of_runtime", gradients="run.clip(optimizer, max_norm=0.2)")
_freedom("clip_values", gradients="nn.utils.clip_grad_value_(model.parameters(), 0.03)")
_freedom(
    "norm_idiom",
    gradients="""
        total = 0.0
        for p in model.parameters():
            if p.grad is not None:
                total += p.grad.data.norm(2).item() ** 2
        run.note("norm", total**0.5)
    """,
)
_freedom(
    "norm_skips",
    gradients="""
        total = sum(p.grad.data.norm(2).item() ** 2 for p in model.parameters() if p.grad is not None) ** 0.5
        if abs(total - 0.8) > 1e-3 and total > 0.8:
            optimizer.zero_grad()
            continue
    """,
)
# How gradients are dropped.
_freedom("zero_in_place", "zero", zero="optimizer.zero_grad(set_to_none=False)")
_freedom("zero_by_module", "zero", zero="model.zero_grad()")
_freedom("zero_by_hand", "zero", zero="for p in model.parameters():\n    p.grad = None")
_freedom("zero_after", "zero", zero="", after="optimizer.zero_grad()")
# Weights by hand.
for _name, _text in {
    "weights_clamped": "p.data.clamp_(-0.4, 0.4)",
    "weights_decayed": "p.mul_(0.99)",
    "weights_masked": "p[p.abs() < 0.02] = 0.0",
    "first_row_zeroed": "p.data[0].zero_()",
    "weights_assigned": "p.data = p.data * 0.98",
    "weights_where": "p.copy_(torch.where(p > 0.3, 0.3, p))",
}.items():
    _freedom(_name, after="with torch.no_grad():\n    for p in model.parameters():\n        " + _text)
_freedom(
    "weights_by_vector",
    after="""
        vector = nn.utils.parameters_to_vector(model.parameters())
        nn.utils.vector_to_parameters(vector * 0.97, model.parameters())
    """,
)
_freedom(
    "weights_reinitialized",
    after="""
        if index == 1:
            torch.manual_seed(5)
            for p in model.parameters():
                nn.init.normal_(p, std=0.3)
    """,
)
_freedom(
    "weights_read",
    after="""
        for p in model.parameters():
            run.note("mean", p.mean().item())
            run.note("max", float(p.detach().abs().max()))
            run.note("sum", p.detach().square().sum())
    """,
)
_freedom(
    "average_by_lerp",
    setup="ema = copy.deepcopy(model)",
    after="""
        with torch.no_grad():
            for mine, theirs in zip(ema.parameters(), model.parameters()):
                mine.lerp_(theirs, 0.3)
    """,
    end="for p in ema.parameters():\n    run.note('ema', p.mean())",
)
_freedom(
    "average_by_clones",
    setup="shadow = [p.detach().clone() for p in model.parameters()]",
    after="shadow = [0.7 * kept + 0.3 * p.detach() for kept, p in zip(shadow, model.parameters())]",
    end="for kept in shadow:\n    run.note('ema', kept.mean())",
)
# Optimizers, groups, schedules.
_freedom(
    "schedule",
    "lr",
    setup="scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)",
    after="scheduler.step()",
)
_freedom(
    "schedule_cosine",
    "lr",
    setup="scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)",
    after="scheduler.step()",
)
_freedom(
    "group_edits",
    "lr",
    before="for group in optimizer.param_groups:\n    group['lr'] = 0.05 / (index + 1)",
)
_freedom(
    "groups_assigned",
    before="if index == 2:\n    optimizer.param_groups = [{**g, 'lr': 0.01} for g in optimizer.param_groups]",
)
_freedom("state_assigned", before="if index == 2:\n    optimizer.state = defaultdict(dict)")
_freedom(
    "state_round_trip",
    before="if index == 2:\n    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))",
)
_freedom(
    "hooks_of_steps",
    setup="""
        def halve(*_):
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.mul_(0.5)

        optimizer.register_step_pre_hook(halve)
    """,
)
_freedom(
    "late_optimizer",
    setup="late = None",
    before="if index == 2:\n    late = torch.optim.SGD(list(model.parameters())[-2:], lr=0.05)",
    after="if late is not None:\n    late.step()",
)
# The module changes.
_freedom(
    "frozen_first",
    before="list(model.parameters())[0].requires_grad_(index >= 2)",
)
_freedom(
    "head_added",
    before="""
        if index == 2:
            torch.manual_seed(9)
            model.append(nn.Linear(3, 3))
            optimizer.add_param_group({"params": list(model[len(model) - 1].parameters())})
    """,
)
_freedom(
    "hook_of_parameter",
    setup="list(model.parameters())[0].register_hook(lambda g: g * 0.5)",
)
# What goes wrong, and resumption.
_freedom(
    "caught_in_backward",
    "caught",
    loss="""
        output = model(x)
        if index == 1:
            output.register_hook(lambda _: 1 / 0)
        loss = F.mse_loss(output, y)
    """,
    backward="""
        try:
            run.backward(loss, model)
        except ZeroDivisionError:
            optimizer.zero_grad()
            continue
    """,
)
_freedom(
    "skipped_batch",
    before="if index == 1:\n    continue",
)
_freedom(
    "resumed",
    after="""
        if index == 2:
            state = {"model": model, "optimizer": optimizer}
            run.save("middle", state)
            run.load("middle", state)
    """,
)
_freedom(
    "evaluated",
    after="""
        model.eval()
        with torch.no_grad():
            run.note("evaluated", run.mean(F.mse_loss(model(x), y)))
        model.train()
    """,
)
_freedom(
    RESUMED,
    setup="""
        first, kept = 0, {"model": model, "optimizer": optimizer, "index": 0}
        if run.part == 1:
            run.load("cut", kept)
            first = kept["index"] + 1
    """,
    before="if index < first:\n    continue",
    after="""
        if run.part == 0 and index >= 2:
            kept["index"] = index
            run.save("cut", kept)
            return
    """,
    end="""
        if run.part == 0:
            kept["index"] = 99
            run.save("cut", kept)
    """,
)
# Two optimizers, two modules, parameters of no module.
_freedom(
    "two_optimizers",
    made="""
        weights = list(model.parameters())
        second = torch.optim.SGD(weights[2:], lr=0.05, momentum=0.5)
        model, optimizer, second = run.setup(model, make(weights[:2]), second)
    """,
    zero="optimizer.zero_grad()\nsecond.zero_grad()",
    step="optimizer.step()\nsecond.step()",
)
_freedom(
    "optimizers_in_turns",
    made="""
        weights = list(model.parameters())
        second = torch.optim.Adam(weights[2:], lr=0.02, eps=1e-2)
        model, optimizer, second = run.setup(model, make(weights[:2]), second)
    """,
    zero="(optimizer if index % 2 else second).zero_grad()",
    step="(optimizer if index % 2 else second).step()",
)
_freedom(
    "two_modules",
    module="torch.manual_seed(8)\nhead = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))",
    setup="head, second = run.setup(head, torch.optim.SGD(head.parameters(), lr=0.05))",
    zero="optimizer.zero_grad()\nsecond.zero_grad()",
    loss="loss = F.mse_loss(head(model(x)), y)",
    step="optimizer.step()\nsecond.step()",
)
_freedom(
    "two_modules_in_turns",
    module="torch.manual_seed(8)\nhead = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))",
    setup="head, second = run.setup(head, torch.optim.SGD(head.parameters(), lr=0.05))",
    zero="optimizer.zero_grad()\nsecond.zero_grad()",
    backward="""
        if index % 2:
            run.backward(loss, model)
        else:
            run.backward(F.mse_loss(head(model(x).detach()), y), head)
    """,
    step="(optimizer if index % 2 else second).step()",
)
_freedom(
    "parameter_of_no_module",
    setup="scale = nn.Parameter(torch.ones(3))\nof_scale = torch.optim.SGD([scale], lr=0.05)",
    zero="optimizer.zero_grad()\nof_scale.zero_grad()",
    loss="loss = F.mse_loss(model(x) * scale, y)",
    after="of_scale.step()\nrun.note('scale', scale.sum())",
)
_freedom("original_called", module="original = model", loss="loss = F.mse_loss(original(x), y)")
_freedom(
    "gradient_dropped_within_no_sync",
    zero="",
    backward="""
        if index % 2 == 0:
            with run.no_sync(model):
                run.backward(F.mse_loss(model(x), y) / 2, model)
                list(model.parameters())[0].grad = None
            continue
        run.backward(loss / 2, model)
    """,
    after="optimizer.zero_grad()",
)
_freedom(
    "gradient_changed_within_no_sync",
    zero="",
    backward="""
        if index % 2 == 0:
            with run.no_sync(model):
                run.backward(F.mse_loss(model(x), y) / 2, model)
                for p in model.parameters():
                    if p.grad is not None:
                        p.grad.clamp_(-0.02, 0.02)
            continue
        run.backward(loss / 2, model)
    """,
    after="optimizer.zero_grad()",
)
# Buffers.
_freedom(
    "buffer_counts",
    module="model.register_buffer('seen', torch.zeros(()))",
    loss="loss = F.mse_loss(model(x), y) * (1 + 0.1 * model.seen)",
    after="model.seen += 1",
)
_freedom(
    "buffer_of_losses",
    module="model.register_buffer('level', torch.ones(()))",
    loss="loss = F.mse_loss(model(x), y)\nloss = loss / (1 + model.level)",
    after="model.level.lerp_(run.mean(loss.detach()), 0.2)",
)
_freedom(
    "buffer_assigned",
    module="model.register_buffer('level', torch.ones(4))",
    loss="loss = F.mse_loss(model(x), y) * model.level.mean()",
    after="model.level = model.level * 0.9",
)
_freedom(
    "buffer_of_weights",
    module="model.register_buffer('average', torch.zeros(()))",
    after="""
        with torch.no_grad():
            model.average.lerp_(next(model.parameters()).mean(), 0.5)
        run.note("average", model.average)
    """,
)
_freedom(
    "buffer_of_samples",
    module="model.register_buffer('center', torch.zeros(6))",
    loss="loss = F.mse_loss(model(x - 0.1 * model.center), y)",
    after="model.center.lerp_(x.mean(0), 0.2)",
)
_freedom("buffer_not_saved", module="model.register_buffer('mark', torch.ones(2), persistent=False)")

UNSAVED = {
    "average_by_clones",
    "average_by_lerp",
    "buffer_not_saved",
    "head_added",
    "late_optimizer",
    "optimizers_in_turns",
    "parameter_of_no_module",
    "partial_window",
    "schedule",
    "schedule_cosine",
    "two_modules",
    "two_modules_in_turns",
}
"""These keep what the checkpoint of `RESUMED` doesn't have."""

DEFAULTS = {
    "made": "model, optimizer = run.setup(model, make(model.parameters()))",
    "zero": "optimizer.zero_grad()",
    "loss": "loss = F.mse_loss(model(x), y)",
    "backward": "run.backward(loss, model)",
    "step": "optimizer.step()",
}
"""Slots that a freedom replaces; in the others, texts follow each other."""


@dataclass(frozen=True)
class Program:
    """One loop: its freedoms, and how it is set up."""

    seed: int
    freedoms: tuple[str, ...]
    model: str = "mlp"
    optimizer: str = "sgd"
    precision: str = "32-true"
    steps: int = 5
    strategy: str = field(default="ddp", compare=False)
    devices: int = field(default=2, compare=False)

    @property
    def parts(self) -> int:
        """Return in how many processes after each other it is run."""
        return 2 if RESUMED in self.freedoms else 1

    @property
    def source(self) -> str:
        """Return the loop's text: a function `loop(run)`."""
        slots = dict.fromkeys(SLOTS, "")
        # What ends a process stands after all else that a step does, and what skips a step before it.
        for name in sorted(self.freedoms, key=RESUMED.__eq__):
            for slot, text in FREEDOMS[name].slots.items():
                texts = (text, slots[slot]) if (name, slot) == (RESUMED, "before") else (slots[slot], text)
                slots[slot] = text if slot in DEFAULTS else "\n".join(filter(None, texts))
        given = {slot for name in self.freedoms for slot in FREEDOMS[name].slots}
        slots |= {slot: text for slot, text in DEFAULTS.items() if slot not in given}
        body = ["before", "zero", "loss", "backward", "gradients", "step", "after"]
        lines = [
            "torch.manual_seed(3)",
            f"model = {MODELS[self.model]}",
            slots["module"],
            f"make = lambda parameters: {OPTIMIZERS[self.optimizer].format('parameters')}",
            slots["made"],
            slots["setup"],
            f"for index, (x, y) in enumerate(run.batches({self.steps}, seed={self.seed})):",
            textwrap.indent("\n".join(filter(None, (slots[each] for each in body))), "    "),
            slots["end"],
        ]
        return HEAD + "\ndef loop(run):\n" + textwrap.indent("\n".join(filter(None, lines)), "    ") + "\n"

    def without(self, name: str) -> Program:
        """Return the program less one freedom."""
        return replace(self, freedoms=tuple(each for each in self.freedoms if each != name))


def draw(seed: int, strategy: str = "ddp", devices: int = 2) -> Program:
    """Return the program of a seed; the same for each strategy."""
    made = random.Random(seed)
    taken: list[str] = []
    used: set[str] = set()
    names = list(FREEDOMS)
    drawn = made.sample(names, made.choice((1, 2, 2, 3, 3, 4, 5)))
    if made.random() < 0.1:
        drawn.append(RESUMED)
    for name in dict.fromkeys(drawn):
        freedom = FREEDOMS[name]
        words = {freedom.excludes} if freedom.excludes else set()
        # A text that replaces a slot can't stand beside another that does.
        words |= {slot for slot in freedom.slots if slot in DEFAULTS}
        resumes = RESUMED in (*taken, name) and UNSAVED & {*taken, name}
        if not words & used and not resumes:
            taken.append(name)
            used |= words
    return Program(
        seed,
        tuple(taken),
        made.choice(list(MODELS)),
        made.choice(list(OPTIMIZERS)),
        "bf16-mixed" if made.random() < 0.15 else "32-true",
        made.choice((4, 5, 6)),
        strategy,
        devices,
    )
