"""`DeepSpeedStrategy`: a module in a DeepSpeed engine, in one process per device."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stratagem_sharding.deferring import DeferringStrategy
from stratagem_sharding.wrap_policy import modules_named, recompute_activations

from stratagem import (
    Capabilities,
    Collectives,
    ConfigError,
    Prepared,
    ReduceRequest,
    SetupRequest,
    hookimpl,
)
from stratagem.sdk.options import ProcessGroupOptions, split_options
from stratagem_deepspeed import builds, keywords, library, output, refusals
from stratagem_deepspeed.collectives import EngineCollectives
from stratagem_deepspeed.configuration import Configuration, merge
from stratagem_deepspeed.sources import given

if TYPE_CHECKING:
    from stratagem_sharding.wrap_policy import Policy

    from stratagem.sdk.runs import Run


class DeepSpeedStrategy(DeferringStrategy):
    """ZeRO on the DeepSpeed engine: shards optimizer states, gradients and parameters over the ranks, by stage.

    Args:
        zero_optimization: False is stage 0.
        stage: 0 shards nothing, 1 optimizer states, 2 also gradients, 3 also parameters.
        remote_device: "cpu" or "nvme": the same as `offload_parameters` with that `offload_params_device`.
        offload_optimizer: keep optimizer states outside of the device, and step on the CPU.
        offload_parameters: at stage 3, keep parameters outside of the device between uses.
        offload_params_device: "cpu" or "nvme".
        nvme_path: an existing, writable folder for data on "nvme".
        params_buffer_count: buffers for parameters from NVMe.
        params_buffer_size: elements of each.
        max_in_cpu: elements of parameters that stay in CPU memory though they are on "nvme".
        offload_optimizer_device: "cpu" or, at stage 3, "nvme".
        optimizer_buffer_count: buffers for optimizer states from NVMe.
        block_size: bytes per NVMe request.
        queue_depth: NVMe requests in flight.
        single_submit: submit NVMe requests one by one.
        overlap_events: submit NVMe requests while others complete.
        thread_count: threads per NVMe request; DeepSpeed calls it aio.intra_op_parallelism now.
        pin_memory: page-locked memory for what is offloaded.
        sub_group_size: elements that stage 3 steps at a time.
        cpu_checkpointing: keep checkpointed activations on the CPU.
        contiguous_gradients: copy gradients into one buffer as they come.
        overlap_comm: reduce gradients while backward continues.
        allgather_partitions: gather stepped parameters by all_gather rather than by broadcasts.
        reduce_scatter: average gradients by reduce_scatter rather than by all_reduce.
        allgather_bucket_size: elements gathered at a time.
        reduce_bucket_size: elements reduced at a time.
        zero_allow_untested_optimizer: accept optimizers that DeepSpeed's authors haven't tested.
        logging_batch_size_per_gpu: samples per micro-batch and rank, for the engine's throughput; "auto"
            takes the loader's.
        config: the engine's own configuration: a dict, or the path of a JSON file; None reads the file that
            STRATAGEM_DEEPSPEED_CONFIG names. It wins over keywords, key by key.
        logging_level: of the engine's logger, whose records go to the run's folder.
        activation_checkpointing_policy: modules whose activations are computed again in backward: classes or
            their names, or a policy of `torch.distributed.fsdp.wrap`; None recomputes nothing.
        engine_checkpoint: a folder that DeepSpeed's own `save_checkpoint` wrote, to begin training from; its
            pickles can run any code.
        positional: not accepted. Programs for other trainers pass a configuration here, and get an error.
        kwargs: options of `ProcessGroupOptions`, and further keys of the sections zero_optimization, fp16 and
            activation_checkpointing.

    Raises:
        ConfigError: a keyword or key doesn't exist, or has another name now; a value is impossible; the
            configuration can't be read; deepspeed is missing or too old.
    """

    optimizer_cuts = ("flat",)

    def __init__(
        self,
        *positional: object,
        zero_optimization: bool = True,
        stage: int = 2,
        remote_device: str | None = None,
        offload_optimizer: bool = False,
        offload_parameters: bool = False,
        offload_params_device: str = "cpu",
        nvme_path: str = "/local_nvme",
        params_buffer_count: int = 5,
        params_buffer_size: int = 100_000_000,
        max_in_cpu: int = 1_000_000_000,
        offload_optimizer_device: str = "cpu",
        optimizer_buffer_count: int = 4,
        block_size: int = 1048576,
        queue_depth: int = 8,
        single_submit: bool = False,
        overlap_events: bool = True,
        thread_count: int = 1,
        pin_memory: bool = False,
        sub_group_size: int | float = 1_000_000_000_000,
        cpu_checkpointing: bool = False,
        contiguous_gradients: bool = True,
        overlap_comm: bool = True,
        allgather_partitions: bool = True,
        reduce_scatter: bool = True,
        allgather_bucket_size: int | float = 200_000_000,
        reduce_bucket_size: int | float = 200_000_000,
        zero_allow_untested_optimizer: bool = True,
        logging_batch_size_per_gpu: int | str = "auto",
        config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        logging_level: int = logging.WARNING,
        activation_checkpointing_policy: Policy = None,
        engine_checkpoint: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        if positional:
            raise ConfigError(
                f"{type(self).__name__}'s options are given by name, the configuration as config='deepspeed.json'"
            )
        shared, kwargs = split_options(ProcessGroupOptions, kwargs)
        super().__init__(**shared)
        self.logging_level = logging_level
        self.engine_checkpoint = None if engine_checkpoint is None else os.fspath(engine_checkpoint)
        self.activation_checkpointing_policy = activation_checkpointing_policy
        said = keywords.tree(
            zero_optimization=zero_optimization,
            stage=stage,
            remote_device=remote_device,
            offload_optimizer=offload_optimizer,
            offload_parameters=offload_parameters,
            offload_params_device=offload_params_device,
            nvme_path=nvme_path,
            params_buffer_count=params_buffer_count,
            params_buffer_size=params_buffer_size,
            max_in_cpu=max_in_cpu,
            offload_optimizer_device=offload_optimizer_device,
            optimizer_buffer_count=optimizer_buffer_count,
            block_size=block_size,
            queue_depth=queue_depth,
            single_submit=single_submit,
            overlap_events=overlap_events,
            thread_count=thread_count,
            pin_memory=pin_memory,
            sub_group_size=sub_group_size,
            cpu_checkpointing=cpu_checkpointing,
            contiguous_gradients=contiguous_gradients,
            overlap_comm=overlap_comm,
            allgather_partitions=allgather_partitions,
            reduce_scatter=reduce_scatter,
            allgather_bucket_size=allgather_bucket_size,
            reduce_bucket_size=reduce_bucket_size,
            zero_allow_untested_optimizer=zero_allow_untested_optimizer,
            logging_batch_size_per_gpu=logging_batch_size_per_gpu,
            further=kwargs,
        )
        own, source = given(config)
        merged, overruled = merge(said, own)
        self.configuration = Configuration(merged, own, source, tuple(overruled))
        refusals.check_values(self.configuration)
        refusals.check_engine_checkpoint(self.engine_checkpoint)
        library.require()

    def refine_capabilities(self, declared: Capabilities) -> Capabilities:
        """Below stage 3, a forward isn't collective; at stage 0, optimizers have full tensors.

        At stage 0, float16 trains wrongly. At stage 3 with 16-mixed, parameters stay in 32 bits, and the engine
        neither scales the loss nor skips a step that overflows.
        """
        stage = self.configuration.stage
        features = declared.features - ({"collective_forward"} if stage < 3 else set())
        features |= {"whole_optimizer"} if stage == 0 else set()
        wrong = {0: ("16-mixed", "16-true"), 3: ("16-mixed",)}.get(stage, ())
        precisions = [name for name in declared.precisions if name not in wrong]
        return replace(declared, features=frozenset(features), precisions=tuple(precisions))

    def check_run(self, run: Run) -> None:
        """Refuse a precision, device or number of ranks that this configuration can't do."""
        refusals.check_run(self.configuration, run.precision, run.accelerator.name, run.world_size)
        builds.check(self.configuration)

    def plan_lines(self) -> Sequence[str]:
        """Return what the engine does, and where each setting of its configuration came from."""
        return self.configuration.lines()

    def module_init_context(self) -> AbstractContextManager[Any] | None:
        """At stage 3, construct on the "meta" device: parameters get their values one layer at a time."""
        return super().module_init_context() if self.configuration.stage == 3 else None

    def can_restore(self, shards: object) -> bool:
        """Whether a stage 3 run left these shards, which `setup` can restore."""
        from stratagem_deepspeed.kept import KeptParts

        return isinstance(shards, KeptParts)

    def open_collectives(self, request: ReduceRequest) -> Collectives:
        """Open the process group; see `ProcessGroupCollectives`."""
        backend = self.process_group_backend or request.accelerator.backend
        return EngineCollectives(request.environment, request.device, backend, self.timeout)

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Return the module in a DeepSpeed engine."""
        from stratagem_deepspeed.prepared import DeepSpeedPrepared

        construction = self.pop_deferred_init(request.original_module)
        if request.loop.training or self.configuration.stage == 3:
            refusals.check_shapes(request.original_module)
        if self.configuration.stage == 3:
            refusals.check_compiled(request.original_module)
        if request.loop.training:
            refusals.check_dtypes(request.original_module, self.configuration.stage, request.precision.name)
        if self.activation_checkpointing_policy is not None:
            recompute_activations(
                modules_named(
                    request.original_module,
                    self.activation_checkpointing_policy,
                    "activation_checkpointing_policy",
                )
            )
        engine = library.load(request.device.type)
        rank = request.collectives.rank
        output.direct(request.config.run_dir, rank, self.logging_level, request.config.log_level)
        builds.make(self.configuration, request.collectives)
        prepared = DeepSpeedPrepared(request, engine, self.configuration, construction)
        if self.engine_checkpoint is not None and request.loop.training:
            prepared.load_engine(self.engine_checkpoint)
        return prepared
