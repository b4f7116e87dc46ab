"""`Compile`: the extension `compile`, which wraps the hooks `launch` and `setup` of any run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from stratagem_sharding.own_forwards import OwnForwards, UndonePrepared, blocks_of
from stratagem_sharding.torch_private import is_compiled
from stratagem_sharding.wrap_policy import Policy, callable_children
from torch import nn

from stratagem import ConfigError, hookimpl
from stratagem_compile.compiled_forward import CompiledForward
from stratagem_compile.report import CompileReport
from stratagem_compile.torch_private import limit_of_recompilations

if TYPE_CHECKING:
    from stratagem import Launcher, LaunchRequest, Prepared, SetupRequest

What = Literal["blocks", "model"]
"""What is compiled in one piece."""
COMMON_BACKENDS = ("inductor", "aot_eager", "eager", "cudagraphs")
"""Known without asking torch for all, which takes a second."""
INDUCTOR_DEVICES = ("cpu", "cuda", "xpu", "mps")
"""Types of devices for which torch's own backend generates code."""
COMPILATIONS_PER_KIND = 8
"""At most: for training and evaluation, and for sizes that are fixed and that vary. Torch's default."""


class Compile:
    """Compiles each block, or the whole model, by `torch.compile`, under any strategy.

    Args:
        what: "blocks" compiles each block, and equal blocks once; "model" compiles the whole forward.
        modules: the blocks: module classes, their names, or a policy of `torch.distributed.fsdp.wrap`. None takes the
            elements of each ModuleList, and the elements of each Sequential that are composed themselves.
        backend: of `torch.compile`, by its name or as a function.
        dynamic: of `torch.compile`: None compiles for the first sizes, and once more for any when they change.
        fullgraph: of `torch.compile`: refuse code that it can't compile in one graph.
        mode: of `torch.compile`, such as "max-autotune".

    Raises:
        ConfigError: `what` is not one of these, or there is no such backend. Later, before workers are started: there
            is no compiler that the backend needs. In `setup`: the model has no such module.
    """

    def __init__(
        self,
        what: What = "blocks",
        modules: Policy = None,
        *,
        backend: str | Callable[..., Any] = "inductor",
        dynamic: bool | None = None,
        fullgraph: bool = False,
        mode: str | None = None,
    ) -> None:
        if what not in get_args(What):
            raise ConfigError(f"what={what!r} must be one of {', '.join(get_args(What))}")
        if what == "model" and modules is not None:
            raise ConfigError(
                'modules= names blocks, and what="model" compiles the whole model: leave one out'
            )
        _refuse_unknown_backend(backend)
        self.what, self.modules, self.backend = what, modules, backend
        self.dynamic, self.fullgraph, self.mode = dynamic, fullgraph, mode

    @hookimpl(wrapper=True)
    def launch(self, request: LaunchRequest) -> Generator[None, Launcher, Launcher]:
        """Refuse a machine without a compiler before workers are started."""
        if self.backend == "inductor" and not _found("CXX", _CXX):
            # For a GPU, Triton compiles with a compiler of C. Which devices a run has, its workers know.
            is_of_cpu = torch.accelerator.current_accelerator() is None
            if is_of_cpu or not _found("CC", _C):
                raise ConfigError(_missing_compiler())
        return (yield)

    # Innermost, so that forwards which other extensions replaced are compiled, too.
    @hookimpl(wrapper=True, trylast=True)
    def setup(self, request: SetupRequest) -> Generator[None, Prepared, Prepared]:
        """Compile modules before the strategy sees them, and take that off again at the end."""
        self._refuse_device(request.device.type)
        # What the user has compiled stays as it is.
        targets = {name: module for name, module in self._targets(request).items() if not is_compiled(module)}
        kinds = len({_kind(module) for module in targets.values()})
        report = CompileReport(self._subject(len(targets), kinds), request.collectives.rank == 0)
        own = OwnForwards(targets.values())
        options: dict[str, Any] = {
            "backend": self.backend,
            "dynamic": self.dynamic,
            "fullgraph": self.fullgraph,
        }
        if self.mode is not None:
            options["mode"] = self.mode
        options |= limit_of_recompilations(COMPILATIONS_PER_KIND * max(kinds, 1))
        backend = self._backend_name

        def undo() -> None:
            own.restore()
            report.close()

        try:
            for name, module in targets.items():
                label = f"{name!r}, a {type(module).__name__}," if name else type(module).__name__
                # Inside the module's hooks, so that what gathers parameters stays outside of the graph.
                # `nn.Module.compile` compiles the hooks, too, and nothing at all of torch's own modules, as
                # nn.TransformerEncoderLayer.
                # patch: replaced forwards
                module.forward = CompiledForward(module, label, backend, report, options)
            return UndonePrepared((yield), undo)
        except BaseException:
            # The strategy refuses the module: another may set it up.
            undo()
            raise

    @property
    def _backend_name(self) -> str:
        return (
            self.backend if isinstance(self.backend, str) else getattr(self.backend, "__name__", "a function")
        )

    def _targets(self, request: SetupRequest) -> dict[str, nn.Module]:
        """Return the modules that are compiled, by name; the root's is empty."""
        root = request.original_module
        if self.what == "model":
            found = _called_modules(root, request.steps is not None)
            if not found:
                raise ConfigError(
                    f"{type(root).__name__} has no forward, and no modules with parameters, that could be compiled: "
                    "leave the extension compile out"
                )
        else:
            advice = (
                'name their classes by Compile(modules=[...]), or compile the whole model by Compile("model")'
            )
            found = blocks_of(root, self.modules, advice)
        wanted = set(found)
        return {name: module for name, module in root.named_modules() if module in wanted}

    def _subject(self, count: int, kinds: int) -> str:
        what = f"{count} block{'s' * (count != 1)} of {kinds} kind{'s' * (kinds != 1)}"
        return f"{what if self.what == 'blocks' else 'the model'} by {self._backend_name}"

    def _refuse_device(self, device_type: str) -> None:
        if self.backend != "inductor":
            return
        if device_type not in INDUCTOR_DEVICES:
            raise ConfigError(
                f'backend="inductor" generates no code for devices of type {device_type!r}: choose '
                'backend="aot_eager", or leave the extension compile out'
            )
        if device_type == "cpu" and not _found("CXX", _CXX):
            raise ConfigError(_missing_compiler())


_CXX, _C = ("g++", "c++", "clang++"), ("gcc", "cc", "clang")


def _found(variable: str, names: Sequence[str]) -> bool:
    given = os.environ.get(variable)
    return any(shutil.which(name) is not None for name in ((given,) if given else names))


def _missing_compiler() -> str:
    return (
        'backend="inductor" generates C++ code, and there is no compiler for it '
        f'({os.environ.get("CXX") or ", ".join(_CXX)}): install one, or choose backend="aot_eager"'
    )


def _refuse_unknown_backend(backend: Any) -> None:
    if callable(backend) or backend in COMMON_BACKENDS:
        return
    known = torch.compiler.list_backends(exclude_tags=())
    if backend not in known:
        raise ConfigError(f"backend={backend!r} must be a function, or one of {', '.join(sorted(known))}")


def _called_modules(root: nn.Module, has_steps: bool) -> list[nn.Module]:
    """Return what makes up the whole forward.

    A trainer's step may call the module, or modules in it. Those in a compiled forward are compiled with it.
    """
    if not has_steps:
        return [root]
    own = [] if type(root).forward is nn.Module.forward else [root]
    parts = [child for child in callable_children(root) if next(child.parameters(), None) is not None]
    return [*own, *parts]


def _kind(module: nn.Module) -> tuple[Any, ...]:
    """Return what equal blocks have in common: code that torch compiled for one serves the others."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    classes = tuple(type(each) for each in module.modules())
    return (
        classes,
        tuple((name, str(each.dtype), _shape(each), each.requires_grad) for name, each in tensors),
    )


def _shape(tensor: Any) -> tuple[int, ...] | None:
    """Return its sizes; None before a lazy module's first forward, which decides them."""
    return None if nn.parameter.is_lazy(tensor) else tuple(tensor.shape)
