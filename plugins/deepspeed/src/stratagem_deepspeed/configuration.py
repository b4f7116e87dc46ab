"""The engine's configuration: strategy keywords, overridden by the user's configuration, completed by the run."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stratagem import ConfigError, PrecisionError
from stratagem_deepspeed.keys import BATCH

if TYPE_CHECKING:
    from stratagem import SetupRequest

AUTO = "auto"
AUTOMATIC = (*BATCH, "gradient_clipping")
"""Keys that the run decides where the user's configuration leaves them out, or says "auto"."""

HALVES = {"bf16-mixed": "bf16", "bf16-true": "bf16", "16-mixed": "fp16", "16-true": "fp16"}
"""Precision → the section of the configuration that enables it."""


@dataclass(frozen=True)
class Configuration:
    """The engine's configuration as far as it is known before a run."""

    tree: Mapping[str, Any]
    """Keywords and the user's configuration, merged key by key."""
    own: Mapping[str, Any]
    """The user's configuration alone."""
    source: str
    """Name of the user's configuration in messages; "" where there is none."""
    overruled: tuple[str, ...]
    """Keys whose values in the user's configuration differ from the keywords."""

    @property
    def stage(self) -> int:
        """ZeRO stage: 0 shards nothing, 3 everything."""
        return int(self.tree["zero_optimization"].get("stage", 0))

    @property
    def offload_optimizer(self) -> str:
        """Where optimizer states are kept: "none", "cpu" or "nvme"."""
        return _device(self.tree, "offload_optimizer")

    @property
    def offload_parameters(self) -> str:
        """Where parameters are kept between uses: "none", "cpu" or "nvme"."""
        return _device(self.tree, "offload_param")

    @property
    def makes_optimizer(self) -> bool:
        """Whether the engine makes the optimizer."""
        return "optimizer" in self.tree

    @property
    def makes_scheduler(self) -> bool:
        """Whether the engine makes, and steps, a learning rate scheduler."""
        return "scheduler" in self.tree

    def lines(self) -> list[str]:
        """Return lines for the printed plan: what the engine does, and where each setting came from."""
        kept = [f"optimizer states on {self.offload_optimizer}"] if self.offload_optimizer != "none" else []
        kept += [f"parameters on {self.offload_parameters}"] if self.offload_parameters != "none" else []
        lines = [f"{'deepspeed':<12}{', '.join([f'ZeRO stage {self.stage}', *kept])}"]
        if self.source:
            said = ", ".join(_leaves(self.own)) or "nothing"
            lines.append(f"{'':<12}from {self.source}: {said}; all else from keywords and the run")
        if self.overruled:
            lines.append(f"{'':<12}{self.source} wins over keywords in {', '.join(self.overruled)}")
        if self.makes_optimizer:
            lines.append(f"{'':<12}configure_optimizers isn't called: {self.source} has an optimizer")
        return lines

    def half(self, precision: str) -> str | None:
        """The section "bf16" or "fp16" that the run's precision enables; None for full precision.

        At stage 0, the engine's own 16-bit mode steps Adam off by one, so the run's precision is used instead.
        """
        return HALVES.get(precision) if self.stage > 0 else None

    def for_run(self, request: SetupRequest) -> dict[str, Any]:
        """Return the complete configuration for the engine.

        Raises:
            ConfigError: the user's configuration contradicts the run.
            PrecisionError: the user's configuration enables another precision than the run's.
        """
        tree = deepcopy(dict(self.tree))
        for key in AUTOMATIC:
            if tree.get(key) == AUTO:
                del tree[key]
        self._decide_batch(tree, request)
        self._decide_clipping(tree, request)
        self._decide_precision(tree, request)
        return tree

    def _decide_batch(self, tree: dict[str, Any], request: SetupRequest) -> None:
        world_size = request.collectives.data.world_size
        micro = self._agree(
            tree, "train_micro_batch_size_per_gpu", request.loop.micro_batch_size, "the loader's batches have"
        )
        steps = self._agree(
            tree, "gradient_accumulation_steps", request.loop.accumulate, "accumulate_grad_batches is"
        )
        total = tree.pop("train_batch_size", None)
        steps = steps or 1
        if micro is None:
            micro = total // (steps * world_size) if total else 1
        if total is not None and total != micro * steps * world_size:
            raise ConfigError(
                f"{self.source} has train_batch_size={total}, and this run's is {micro * steps * world_size}: "
                f"{micro} samples, {steps} micro-batches, {world_size} ranks: leave it out, or change one of these"
            )
        tree["train_micro_batch_size_per_gpu"] = micro
        tree["gradient_accumulation_steps"] = steps

    def _agree(self, tree: dict[str, Any], key: str, runs: int | None, clause: str) -> int | None:
        said = tree.get(key)
        if said is None:
            return runs
        if runs is not None and said != runs:
            raise ConfigError(
                f"{self.source or 'logging_batch_size_per_gpu'} says {key}={said}, and {clause} {runs}: leave it "
                "out, or make them equal"
            )
        return int(said)

    def _decide_clipping(self, tree: dict[str, Any], request: SetupRequest) -> None:
        clipping = request.loop.clipping
        if clipping.max_norm is not None and clipping.norm_type != 2.0:
            raise ConfigError(
                f"deepspeed clips by the Euclidean norm, and norm_type={clipping.norm_type:g} was asked for: choose "
                "2.0, or strategy fsdp"
            )
        said = tree.get("gradient_clipping")
        if said is not None and clipping.max_norm is not None and said != clipping.max_norm:
            raise ConfigError(
                f"{self.source} has gradient_clipping={said}, and the run's gradient_clip_val is {clipping.max_norm}"
                ": give one of the two"
            )
        # Without this key, the engine would silently clip at 1.0.
        tree["gradient_clipping"] = float(said if said is not None else clipping.max_norm or 0.0)

    def _decide_precision(self, tree: dict[str, Any], request: SetupRequest) -> None:
        name = request.precision.name
        wanted = self.half(name)
        for section in ("bf16", "fp16"):
            said = tree.setdefault(section, {}).get("enabled")
            if said not in (None, AUTO, section == wanted):
                way = {"bf16": "bf16-mixed", "fp16": "16-mixed"}[section] if said else "32-true"
                raise PrecisionError(
                    f"{self.source} has {section}.enabled={said}, and the run's precision is {name!r}: choose "
                    f"precision={way!r}, or leave {section}.enabled out"
                )
            tree[section]["enabled"] = section == wanted
        if wanted == "bf16":
            # A bfloat16 sum over many micro-batches would lose the last ones to rounding.
            tree.setdefault("data_types", {}).setdefault("grad_accum_dtype", "fp32")


def merge(
    keywords: Mapping[str, Any], own: Mapping[str, Any], path: tuple[str, ...] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Put `own` over `keywords`, key by key; return the result, and the keys where the two differ."""
    merged, overruled = deepcopy(dict(keywords)), []
    for key, value in own.items():
        name = ".".join((*path, key))
        before = merged.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            merged[key], inner = merge(before, value, (*path, key))
            overruled += inner
            continue
        if key in merged and before != value and value != AUTO:
            overruled.append(name)
        if not (value == AUTO and key in merged):
            merged[key] = deepcopy(value)
    return merged, overruled


def _leaves(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[str]:
    names: list[str] = []
    for key, value in tree.items():
        inner = isinstance(value, Mapping) and value and key != "params"
        names += _leaves(value, (*path, key)) if inner else [".".join((*path, key))]
    return names


def _device(tree: Mapping[str, Any], section: str) -> str:
    return str((tree["zero_optimization"].get(section) or {}).get("device", "none"))
