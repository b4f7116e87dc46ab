"""Turns a module that isn't a Sequential into a sequence of stages: traces it and splits it at submodules.

Each stage forwards the tensors that later stages need, so that stages only send to their neighbours.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from stratagem_sharding.torch_private import own_buffers, own_parameters
from torch import fx, nn

from stratagem import ConfigError
from stratagem_pipeline.nests import Structure, flattened, rebuilt
from stratagem_pipeline.torch_private import forget_split_point, leaves
from stratagem_pipeline.values import form_and_tensors, rows_of


class TracedStage(nn.Module):
    """One stage of a traced module, with a graph each for training and evaluation mode.

    It takes and returns a tuple of the tensors that it or a later stage needs.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.modes = nn.ModuleDict()
        self._steps: dict[str, tuple[list[int], list[tuple[bool, int]]]] = {}
        self._net = (net,)  # in a tuple, so that it isn't registered

    def add(self, mode: str, graph: nn.Module, takes: list[int], gives: list[tuple[bool, int]]) -> None:
        """Set the graph for a mode.

        Args:
            mode: "train" or "eval".
            graph: has the traced module's parameters under the same names.
            takes: positions of the graph's arguments in the stage's inputs.
            gives: for each output of the stage, (True, position in the graph's outputs) or (False, position in
                the stage's inputs).
        """
        self.modes[f"in_{mode}"] = graph
        self._steps[mode] = (takes, gives)

    def forward(self, carried: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Compute the stage in the traced module's mode."""
        mode = "train" if self._net[0].training else "eval"
        takes, gives = self._steps[mode]
        made = self.modes[f"in_{mode}"](*(carried[position] for position in takes))
        made = made if isinstance(made, (tuple, list)) else (made,)
        return tuple(made[position] if is_made else carried[position] for is_made, position in gives)

    def link(self) -> None:
        """Register the traced module's current tensors in the graphs, by name."""
        net = self._net[0]
        named = dict(
            [*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False)]
        )
        for graph in self.modes.values():
            for path, module in graph.named_modules():
                for own in (own_parameters(module), own_buffers(module)):
                    for name in own:
                        full = f"{path}.{name}" if path else name
                        if full in named:
                            own[name] = named[full]


@dataclass(frozen=True)
class Traced:
    """A traced module, split into stages."""

    stages: tuple[TracedStage, ...]
    rows: int
    """Rows of every micro-batch. The graphs only work for this number."""
    entry: Structure
    """Structure of the module's arguments."""
    output: Structure
    """Structure of the module's output."""

    def value(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        """Return the first stage's inputs for a call of the module with these arguments.

        Raises:
            ConfigError: the module was traced with arguments of another structure.
        """
        structure, leaves = flattened((args, kwargs))
        if structure != self.entry:
            raise ConfigError(
                f"{name} is called with {_called(structure)} and was traced with "
                f"{_called(self.entry)}: call it in one way in every step"
            )
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

    def returned(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return the module's output from the last stage's outputs."""
        return rebuilt(self.output, list(tensors))


def traced(
    net: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], split_points: Sequence[str]
) -> Traced:
    """Trace a module and split it into stages.

    Args:
        net: the full module, on the CPU or the device; it isn't changed.
        name: its name, for errors.
        args: positional arguments with which the step calls it for a micro-batch.
        kwargs: keyword arguments of that call.
        split_points: submodules of `net` at which a stage begins.

    Raises:
        ConfigError: a split point doesn't exist, or torch can't trace the module.
    """
    for point in split_points:
        if point not in dict(net.named_modules()):
            raise ConfigError(
                f"split_points names {point!r}, and {name} has no such submodule; it has, for one, "
                f"{next((n for n, _ in net.named_modules() if n), 'none')!r}"
            )
    # Clone, since a tensor passed twice would become a single input.
    structure, leaves = flattened((args, kwargs))
    leaves = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    args, kwargs = rebuilt(structure, leaves)
    stages = [TracedStage(net) for _ in range(len(split_points) + 1)]
    was_training = net.training
    try:
        for mode in ("train", "eval"):
            net.train(mode == "train")
            _add_mode(stages, mode, _graph(net, name, args, kwargs, split_points))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            net.eval()  # buffers stay as they are
            output, results = flattened(net(*args, **kwargs))
    finally:
        net.train(was_training)
    if not all(isinstance(result, torch.Tensor) for result in results):
        raise ConfigError(
            f"{name} returns something else than tensors, which stages can't send to each other"
        )
    _try(stages, net, name, args, kwargs, results)
    _, tensors = form_and_tensors((args, kwargs))
    return Traced(tuple(stages), rows_of(tensors, name), structure, output)


def _try(
    stages: Sequence[TracedStage],
    net: nn.Module,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    expected: Sequence[torch.Tensor],
) -> None:
    """Run the stages once, since torch splits some modules into graphs that fail."""
    was_training = net.training
    _, value = form_and_tensors((args, kwargs))
    try:
        with torch.no_grad():
            net.eval()
            for stage in stages:
                stage.link()
                value = stage(value)
    except Exception as error:
        raise ConfigError(
            f"torch cut {name} ({type(net).__name__}) into stages that don't run: "
            f"{_first_line(error)}; write it as an nn.Sequential, or choose another strategy"
        ) from error
    finally:
        net.train(was_training)
    if [each.shape for each in value] != [each.shape for each in expected]:
        raise ConfigError(
            f"the stages of {name} return tensors of {[tuple(each.shape) for each in value]}, and the whole "
            f"{[tuple(each.shape) for each in expected]}: write it as an nn.Sequential"
        )


def _graph(
    net: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], split_points: Sequence[str]
) -> fx.GraphModule:
    from torch.distributed.pipelining import SplitPoint, pipeline

    spec = dict.fromkeys(split_points, SplitPoint.BEGINNING)
    with _forwards_kept(net, split_points), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about its own graphs
        try:
            pipe = pipeline(net, args, kwargs, split_spec=spec)
        except Exception as error:
            raise ConfigError(
                f"torch can't trace {name} ({type(net).__name__}): {_first_line(error)}; write it as "
                "an nn.Sequential, or choose another strategy"
            ) from error
    if pipe.num_stages != len(split_points) + 1:
        raise ConfigError(
            f"split_points={list(split_points)} cut {name} into {pipe.num_stages} stages, and not "
            f"{len(split_points) + 1}: name submodules that its forward calls once, in the order of the calls"
        )
    return pipe.split_gm


@contextmanager
def _forwards_kept(net: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Restore the forwards of split points, which torch replaces to mark them."""
    modules = [net.get_submodule(name) for name in names]
    before = [module.__dict__.get("forward") for module in modules]
    try:
        yield
    finally:
        for module, forward in zip(modules, before):
            forget_split_point(module)
            module.__dict__.pop("forward", None)
            if forward is not None:
                # patch: pipelined forward
                module.__dict__["forward"] = forward


def _add_mode(stages: Sequence[TracedStage], mode: str, graph: fx.GraphModule) -> None:
    """Turn a graph of stages, whose values may skip stages, into a sequence in which each feeds the next."""
    nodes = list(graph.graph.nodes)
    calls = [node for node in nodes if node.op == "call_module"]
    final = leaves(nodes[-1].args[0])
    carried: list[fx.Node] = [node for node in nodes if node.op == "placeholder"]
    # A placeholder that no stage uses isn't a tensor, or doesn't affect the output.
    for index, (stage, call) in enumerate(zip(stages, calls)):
        later = [node for other in calls[index + 1 :] for node in other.args] + final
        made = {call: 0} | {user: user.args[1] for user in call.users if user.target is operator.getitem}
        wanted = [node for node in dict.fromkeys(later) if node in made or node in carried]
        wanted = final if index == len(stages) - 1 else wanted
        takes = [carried.index(node) for node in call.args]
        gives = [(True, made[node]) if node in made else (False, carried.index(node)) for node in wanted]
        stage.add(mode, graph.get_submodule(str(call.target)), takes, gives)
        carried = wanted


def _called(structure: Structure) -> str:
    assert structure is not None
    positional, named = structure.items
    return f"{len(positional.items)} positional arguments and the keywords {sorted(named.keys) or 'none'}"


def _first_line(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:300]
