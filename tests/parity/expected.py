"""Which cells are refused, and with which words. Every other cell has to be equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Refusal:
    """Cells that are refused with one sentence."""

    columns: Sequence[str]
    """Names of columns, or patterns as of a shell."""
    kinds: Sequence[str]
    piece: str
    """Of the sentence."""


FSDP = ("fsdp", "fsdp ×4")
DDP = ("ddp", "ddp ×4", "ddp2", "ddp_sharded", "context_parallel")
SHARDS = (*FSDP, "ddp_fully_sharded", "model_parallel")
PARTS = ("dp", "ddp2")
PROCESSES = (*DDP, "ddp_find_unused_parameters_true", *SHARDS, "pipeline")
EVERY = ("*",)
DEEPSPEED = ("deepspeed_stage_*",)
NO_SEQUENTIAL = "has no nn.Sequential of at least two layers to be the pipeline"

REFUSALS: tuple[Refusal, ...] = (
    # What a strategy doesn't declare.
    Refusal(
        ("ddp_sharded", "pipeline", *DEEPSPEED),
        ("lbfgs", "lbfgs_strong_wolfe"),
        "can't do this: an optimizer that evaluates the loss several times per step",
    ),
    Refusal(
        (*PARTS, "ddp_fully_sharded", "pipeline", *DEEPSPEED),
        ("manual", "manual_two_backwards", "gan", "gan_frozen_critic"),
        "can't do this: manual optimization",
    ),
    Refusal(
        DEEPSPEED, ("sparse_adam", "muon", "several_optimizers"), "can't do this: more than one optimizer"
    ),
    Refusal(DEEPSPEED, ("clip_value",), "can't do this: clipping gradients by value"),
    Refusal(DEEPSPEED, ("double64",), "precision '64-true' doesn't work with this strategy"),
    Refusal(PARTS, ("bf16_mixed",), "precision 'bf16-mixed' doesn't work with this strategy"),
    Refusal(PARTS, ("bf16_true",), "precision 'bf16-true' doesn't work with this strategy"),
    # What torch has no way to do on a CPU, or in several processes.
    Refusal(EVERY, ("sync_batch_norm",), "a SyncBatchNorm, can't be trained on a CPU"),
    Refusal((*PROCESSES, *DEEPSPEED), ("lazy_uninitialized",), "uninitialized, which ranks can't agree on"),
    Refusal(
        (*SHARDS, "pipeline", *DEEPSPEED),
        ("embedding_sparse", "sparse_adam"),
        "can't do this: sparse gradients",
    ),
    Refusal(DEEPSPEED, ("adafactor", "users_global_norm"), "on shards, for it needs whole tensors"),
    Refusal(("ddp_sharded",), ("users_global_norm",), "on shards, for it needs all parameters at once"),
    # What depends on the rank or changes on the way.
    Refusal(
        DDP,
        ("unused_parameters", "unused_in_turn", "moe_top1", "experts_by_rank", "toggled"),
        "choose strategy ddp_find_unused_parameters_true",
    ),
    Refusal((*FSDP, "ddp_fully_sharded"), ("moe_top1",), "all ranks call the same blocks in the same order"),
    Refusal(
        (*FSDP, "ddp_fully_sharded"),
        ("experts_by_rank",),
        "which sharded blocks and parameters were used isn't on rank 1",
    ),
    Refusal(
        ("ddp_fully_sharded",), ("moe_top1",), "which sharded blocks and parameters were used isn't on rank 1"
    ),
    Refusal(
        (*FSDP, "ddp_fully_sharded"),
        ("moe_top1", "experts_by_rank"),
        "all ranks use the same parameters in a step",
    ),
    Refusal(
        (*FSDP, "ddp_fully_sharded"),
        ("complex_parameters",),
        "gradients of one sharded unit travel in one dtype",
    ),
    Refusal(
        (*FSDP, "ddp_fully_sharded"),
        ("none_on_one_rank",),
        "and not on all ranks: under",
    ),
    # What needs a sharded parameter in a gradient of a gradient.
    Refusal(FSDP, ("gradient_penalty",), "outside of their module's own forward"),
    Refusal(("ddp_sharded",), ("complex_parameters",), "ddp_sharded takes one dtype for each optimizer"),
    Refusal(("model_parallel",), ("gradient_penalty",), "with create_graph=True through layers"),
    Refusal(("model_parallel",), ("hook_mask",), "outside of their module's own forward"),
    Refusal(
        DEEPSPEED,
        ("unfrozen_epoch", "unfrozen_batch", "unfrozen_adam"),
        "requires one now, and deepspeed's stage",
    ),
    Refusal(
        ("deepspeed_stage_3",),
        ("moe_top1", "experts_by_rank"),
        "the order in which layers were called isn't on rank 1",
    ),
    Refusal(("deepspeed_stage_3",), ("none_on_one_rank",), "and not on all ranks, and under"),
    Refusal(("deepspeed_stage_3",), ("compiled_whole",), "is made by torch.compile"),
    Refusal(
        ("deepspeed_stage_3",),
        ("weight_penalty", "ema", "target_network", "target_copy", "swa", "clamp_in_step", "clamp_after"),
        "was used outside of its layer's forward, where deepspeed's stage 3 has a part of it",
    ),
    Refusal(
        ("deepspeed_stage_3",),
        ("gradient_penalty",),
        "a backward went through a parameter outside of its layer's own",
    ),
    Refusal(DEEPSPEED, ("complex_parameters",), "is complex64, and deepspeed under"),
    Refusal(DEEPSPEED, ("zero_dim",), "has no dimension, and deepspeed"),
    Refusal(DEEPSPEED, ("added_group",), "after training had begun, and deepspeed decides"),
    # What a strategy can't split or share out.
    Refusal(("ddp_fully_sharded",), ("zero_dim",), "has no dimension along which ddp_fully_sharded"),
    Refusal(
        ("model_parallel",), ("bert",), "are one parameter, and the plan splits it as whole in one place"
    ),
    Refusal(
        ("model_parallel",), ("compiled_blocks", "compiled_whole"), "is compiled, and torch trains compiled"
    ),
    Refusal(
        ("pipeline",),
        (
            "multihead_attention",
            "lstm_packed",
            "gru_packed",
            "parameter_lists",
        ),
        NO_SEQUENTIAL,
    ),
    Refusal(("pipeline",), ("t5",), "has 2 nn.ModuleLists that could be the pipeline"),
    Refusal(("pipeline",), ("llama_gqa",), "with use_cache=False, if it is a cache of keys and values"),
    Refusal(
        ("pipeline",),
        ("unused_in_turn", "moe_all", "moe_top1", "experts_by_rank", "target_network"),
        "nn.Sequentials that could be the pipeline",
    ),
    Refusal(("pipeline",), ("module_twice", "contrastive"), "and the schedule runs it once per step"),
    Refusal(("pipeline",), ("functional_weight",), "that are on another rank: use the output"),
    Refusal(
        ("pipeline",), ("users_global_norm",), "GlobalNorm on shards, for it needs all parameters at once"
    ),
    Refusal(
        ("pipeline",),
        ("none_everywhere", "none_on_one_rank", "none_last", "none_first"),
        "and a pipeline runs its stages in every step: call net once per step",
    ),
    Refusal(
        ("pipeline",), ("variable_lengths",), "for another: give all parts of a batch the same arguments"
    ),
    Refusal(("pipeline",), ("gradient_penalty",), "choose ddp for gradient penalties"),
    Refusal(("pipeline",), ("weight_penalty", "partial_forward"), "that are on another rank: use the output"),
    Refusal(
        ("pipeline",),
        ("offset_loss", "ema", "target_copy", "swa"),
        "nn.Sequentials that could be the pipeline",
    ),
    Refusal(("pipeline",), ("toggled",), "changes requires_grad of 'net.1.0.weight', and a pipeline"),
    Refusal(
        ("pipeline",),
        ("hook_scale", "hook_mask", "hook_nonlinear", "hook_accumulated"),
        "which a pipeline would call once per part of a batch",
    ),
    Refusal(("pipeline",), ("clamp_in_step",), "in place, and a pipeline runs it for each part"),
    Refusal(PARTS, ("contrastive",), "compute it in training_step_end"),
    Refusal(PARTS, ("compiled_whole",), "is made by torch.compile"),
    Refusal(PARTS, ("lazy_uninitialized",), "can't be copied to several devices"),
    Refusal(PARTS, ("toggled",), "changes requires_grad of a parameter"),
)


@dataclass(frozen=True)
class Open:
    """Cells that are neither equal nor refused as listed, and why."""

    columns: Sequence[str]
    """Names of columns, or patterns as of a shell."""
    kinds: Sequence[str]
    reason: str


OPEN: tuple[Open, ...] = ()
"""What is known to be wrong, reported in the page: to be worked off."""


def expected_refusals(kind: str, column: str) -> list[str]:
    """Return parts of the sentences with which a cell may be refused; none where it has to be equal."""
    return [refusal.piece for refusal in REFUSALS if _is_of(refusal, kind, column)]


def why_open(kind: str, column: str) -> str:
    """Return why a cell is known to be neither equal nor refused as listed; "" where it isn't known to be."""
    return next((each.reason for each in OPEN if _is_of(each, kind, column)), "")


def _is_of(cells: Refusal | Open, kind: str, column: str) -> bool:
    return kind in cells.kinds and any(fnmatchcase(column, pattern) for pattern in cells.columns)
