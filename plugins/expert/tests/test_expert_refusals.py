"""Which modules are mixtures, and what is refused."""

from __future__ import annotations

import pytest
import torch
from stratagem_expert.conformance import SmallExperts, SmallMixture
from stratagem_expert.mixtures import mixtures_of, refuse_compiled
from torch import Tensor, nn

from stratagem import ConfigError, RunConfig, Runtime
from stratagem.resolve.run import assemble


class Own(SmallExperts):
    """Its name says nothing."""


class HiddenExperts(nn.Module):
    """A name alone: forward takes the tokens sorted by expert, as Llama 4's."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.ones(4, 6, 6))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden


class UnequalExperts(SmallExperts):
    def __init__(self) -> None:
        super().__init__(4, 6)
        self.scale = nn.Parameter(torch.ones(6))


class NestedExperts(SmallExperts):
    def __init__(self) -> None:
        super().__init__(4, 6)
        self.norm = nn.LayerNorm(6)


class CountingExperts(SmallExperts):
    def __init__(self) -> None:
        super().__init__(4, 6)
        self.register_buffer("used", torch.zeros(4))


def test_recognised_by_the_name_of_its_class() -> None:
    root = nn.ModuleDict({"a": SmallMixture(6), "b": HiddenExperts(), "c": nn.Linear(2, 2)})
    (found,) = mixtures_of(root)
    assert (found.name, found.experts, found.arguments) == ("a.experts", 4, ("hidden", "index", "weights"))
    assert found.module is root["a"].experts


def test_named_by_the_user() -> None:
    root = nn.ModuleDict({"a": SmallMixture(6), "own": Own(2, 6)})
    root["a"].experts = Own(4, 6)
    with pytest.raises(ConfigError, match=r"found no experts in ModuleDict: name the modules that hold them"):
        mixtures_of(root)
    assert [each.name for each in mixtures_of(root, ["Own"])] == ["a.experts", "own"]
    assert [each.name for each in mixtures_of(root, {Own})] == ["a.experts", "own"]
    with pytest.raises(ConfigError, match="modules names 'Owm', and this model has none: it has Linear, Own"):
        mixtures_of(root, ["Owm"])


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (HiddenExperts, "its forward doesn't take three arguments"),
        (UnequalExperts, "its parameters have no first dimension in common"),
        (NestedExperts, "modules in it have parameters"),
        (CountingExperts, "it has buffers"),
        (nn.Identity, "its parameters have no first dimension in common"),
    ],
)
def test_named_and_can_not_be_split(made: type[nn.Module], why: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"'it', a {made.__name__}, can't be split along axis 'expert': {why}"
    ):
        mixtures_of(nn.ModuleDict({"it": made()}), [made.__name__])


def test_experts_that_two_modules_share() -> None:
    root = nn.ModuleList([Own(4, 6), Own(4, 6)])
    root[1].up = root[0].up
    with pytest.raises(
        ConfigError, match=r"'0', a Own, can't be split .*: other modules have its parameters, too"
    ):
        mixtures_of(root, ["Own"])


@pytest.mark.parametrize("compiled", ["", "0", "0.0"])
def test_compiled_experts(compiled: str) -> None:
    root = nn.Sequential(nn.Sequential(Own(4, 6)), nn.Linear(4, 4))
    mixtures = mixtures_of(root, ["Own"])
    root[1].compile(backend="eager")
    refuse_compiled(root, mixtures)
    root.get_submodule(compiled).compile(backend="eager")
    with pytest.raises(
        ConfigError,
        match=rf"'{compiled or 'Sequential'}' is compiled, and under axis .* \('0.0'\) get differs",
    ):
        refuse_compiled(root, mixtures)


def three_experts(runtime: Runtime) -> None:
    runtime.setup(SmallMixture(6, experts=3))


def no_experts(runtime: Runtime) -> None:
    runtime.setup(nn.Linear(2, 2))


class Batched(SmallExperts):
    """Called with (batch, length, width)."""


class CalledOtherwise(SmallMixture):
    def __init__(self) -> None:
        super().__init__(6)
        self.experts = Batched(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.experts(x[None], torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1))


def called_otherwise(runtime: Runtime) -> None:
    runtime.setup(CalledOtherwise())(torch.ones(2, 6))


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (
            three_experts,
            {},
            r"'experts' has 3 experts, which 2 ranks along axis 'expert' can't have equally many of: give it a size "
            "that divides 3",
        ),
        (no_experts, {}, "axis 'expert' found no experts in Linear"),
        (
            called_otherwise,
            {"modules": ["Batched"]},
            r"'experts' was called with \(1, 2, 6\) of torch.float32, \(1, 1\) of torch.int64, \(1, 1\) of "
            r"torch.float32, and axis 'expert' takes hidden states of shape \(tokens, width\)",
        ),
    ],
)
def test_refused_on_all_ranks(function: object, options: dict[str, object], message: str) -> None:
    runtime = Runtime(
        strategy="expert=2",
        strategy_options={"timeout_s": 60, "axis_options": {"expert": options}},
        accelerator="cpu",
        devices=2,
    )
    with pytest.raises(ConfigError, match=message):
        runtime.launch(function, quiet=True)


def test_the_plan_names_the_mesh() -> None:
    run = assemble(RunConfig(strategy="replicate=2+expert=2", accelerator="cpu", devices=4))
    lines = "\n".join(run.strategy.describe_run(run))
    assert "mesh: replicate 2 × expert 2, outermost first" in lines
    assert "data: 4 parts, one for each rank" in lines
    assert "expert: ranks {0, 1} {2, 3} send tokens to the ranks of their experts" in lines
