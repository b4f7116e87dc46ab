"""`Route`: stages for micro-batches of one shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from stratagem.sdk.loops import forked_rng
from stratagem_pipeline.stage_module import StageModule
from stratagem_pipeline.values import Form

if TYPE_CHECKING:
    from stratagem import Collectives, Precision
    from stratagem_pipeline.schedules import Schedule


def unchanged(value: Any) -> Any:
    """Return the value itself."""
    return value


@dataclass(frozen=True)
class Line:
    """A pipeline: which rank of the copy has which layers."""

    pipe: Collectives
    """The ranks that share a copy of the model."""
    device: torch.device
    stage_ranks: tuple[int, ...]
    """Stage → rank in `pipe`."""
    layers: tuple[tuple[nn.Module, ...], ...]
    """Stage → its layers; layers of other ranks are on "meta"."""
    precision: Precision
    recompute: bool
    schedule: Schedule
    call_layer: Callable[[nn.Module, Any], Any]
    """Calls a layer with its input."""
    outer: tuple[nn.Parameter, ...] = ()
    """Parameters outside of the layers, which the user's step may use for its loss."""
    hand_over: Callable[[Any], Any] = unchanged
    """Converts a nested input or output of a stage so that its tensors can be sent."""
    complete: Callable[[Any], Any] = unchanged
    """Converts the output of a step to full tensors."""

    @property
    def own(self) -> list[int]:
        """This rank's stages."""
        return [stage for stage, rank in enumerate(self.stage_ranks) if rank == self.pipe.rank]

    @property
    def has_first(self) -> bool:
        """Whether batches enter on this rank."""
        return self.stage_ranks[0] == self.pipe.rank

    @property
    def has_last(self) -> bool:
        """Whether outputs come out on this rank."""
        return self.stage_ranks[-1] == self.pipe.rank


class Route:
    """Stages for micro-batches of one shape. Construction is collective among the ranks of a copy.

    Torch's stages receive into preallocated memory, so another shape needs other stages.

    Args:
        line: the pipeline.
        entry: form of a padded micro-batch; only the rank with the first stage knows it.
        rows: of each micro-batch without padding; only the rank with the first stage knows them.
    """

    def __init__(self, line: Line, entry: Form | None, rows: Sequence[int] | None) -> None:
        self.line = line
        first = line.stage_ranks[0]
        entry, agreed = line.pipe.broadcast((entry, rows), first)
        self.rows: tuple[int, ...] = tuple(agreed)
        self._padded = int(entry.shapes[0][0][0])
        self.forms: list[Form] = [entry]
        """Forms of each stage's input, and of the last stage's output."""
        self.modules: dict[int, StageModule] = {}
        last = len(line.stage_ranks) - 1
        with forked_rng(line.device):
            for stage, rank in enumerate(line.stage_ranks):
                form: Form | None = None
                if rank == line.pipe.rank:
                    module = StageModule(
                        line.layers[stage],
                        self.forms[stage],
                        is_last=stage == last,
                        precision=line.precision,
                        recompute=line.recompute,
                        outer=line.outer if stage == last else (),
                        hand_over=line.hand_over,
                        call_layer=line.call_layer,
                        shows_layers=line.schedule.splits_backward,
                    )
                    with module.without_trace():
                        module(*self.forms[stage].zeros(line.device))
                    self.modules[stage], form = module, module.exit
                self.forms.append(line.pipe.broadcast(form, rank))

    @property
    def padded_rows(self) -> int:
        """Padded rows of every micro-batch."""
        return self._padded

    def schedule(self, loss: Callable[..., torch.Tensor]) -> Any:
        """Return torch's schedule for this rank's stages; its `step` runs forward and backward of a batch.

        Args:
            loss: function of (outputs of the last stage, number of the micro-batch).
        """
        from torch.distributed.pipelining import PipelineStage

        line = self.line
        stages = [
            PipelineStage(
                module,
                stage,
                len(line.stage_ranks),
                line.device,
                input_args=_described(self.forms[stage]),
                output_args=_described(self.forms[stage + 1]),
                group=line.pipe.process_group,
            )
            for stage, module in self.modules.items()
        ]
        kind = line.schedule.torch_class()
        how = {"loss_fn": loss, "scale_grads": False}
        return kind(stages if line.schedule.several else stages[0], len(self.rows), **how)

    def forward(self, micro_batches: Sequence[Sequence[torch.Tensor]]) -> list[tuple[torch.Tensor, ...]]:
        """Run all micro-batches through all stages, without backward. Collective in the copy.

        Args:
            micro_batches: padded; ignored except on the rank with the first stage.

        Returns:
            On the rank with the last stage, the outputs of every micro-batch; elsewhere none.
        """
        line, outputs = self.line, []
        handed: dict[tuple[int, int], tuple[torch.Tensor, ...]] = {}
        sent: list[tuple[Any, Any]] = []
        for stage, module in self.modules.items():
            for index in range(len(self.rows)):
                if stage == 0:
                    given: Sequence[torch.Tensor] = micro_batches[index]
                elif (stage, index) in handed:
                    given = handed.pop((stage, index))
                else:
                    given = self._received(stage)
                results = module(*given)
                if stage == len(line.stage_ranks) - 1:
                    outputs.append(results)
                elif line.stage_ranks[stage + 1] == line.pipe.rank:
                    handed[stage + 1, index] = results
                else:
                    sent += self._sent(results, line.stage_ranks[stage + 1])
        for work, _ in sent:
            work.wait()
        return outputs

    def _received(self, stage: int) -> tuple[torch.Tensor, ...]:
        tensors = self.forms[stage].empty(self.line.device)
        source = self._global(self.line.stage_ranks[stage - 1])
        for tensor in tensors:
            dist.recv(tensor, source, group=self.line.pipe.process_group)
        return tensors

    def _sent(self, tensors: Sequence[torch.Tensor], rank: int) -> list[tuple[Any, Any]]:
        # Returned with their work, so that the tensors stay alive until they are sent.
        group, target = self.line.pipe.process_group, self._global(rank)
        return [(dist.isend(tensor, target, group=group), tensor) for tensor in tensors]

    def _global(self, rank: int) -> int:
        return dist.get_global_rank(self.line.pipe.process_group, rank)


def keeps_no_outputs(schedule: Any) -> dict[str, Any]:
    """Return keywords that make a schedule's `step` return no outputs, if this version of torch has them."""
    return {"return_outputs": False} if "return_outputs" in signature(schedule.step).parameters else {}


def _described(form: Form) -> tuple[torch.Tensor, ...]:
    """Return "meta" tensors that describe to torch what is sent. All floating-point ones require gradients."""
    return tuple(
        torch.empty(shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)
        for shape, dtype in form.shapes
    )
