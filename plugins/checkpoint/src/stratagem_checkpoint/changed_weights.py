"""Loads weights into a module that has changed since the checkpoint: renamed, missing or unexpected keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from stratagem import CheckpointError, CheckpointReader, UsageError
from stratagem.sdk.states import TensorInfo
from stratagem_checkpoint.initial_weights import InitialWeights, WeightsReport, renamed, some

if TYPE_CHECKING:
    from stratagem import Collectives, Prepared, Runtime

_MODEL = "model/"


def load_weights(runtime: Runtime, weights: InitialWeights) -> WeightsReport:
    """Load a checkpoint's weights into the module of a `Runtime`, even if it has changed since. Collective.

    Raises:
        CheckpointError: as `load_changed`.
        UsageError: nothing was set up, or several modules.
    """
    session = runtime.session
    prepared = [each for each, _ in session.set_up_modules()]
    if len(prepared) != 1:
        raise UsageError(f"load_weights is for the one module that was set up, and there are {len(prepared)}")
    return load_changed(prepared[0], session.open_checkpoint(weights.path), session.collectives, weights)


def load_changed(
    prepared: Prepared, reader: CheckpointReader, collectives: Collectives, weights: InitialWeights
) -> WeightsReport:
    """Load a checkpoint's weights into a module. Collective.

    Raises:
        CheckpointError: shapes differ, or, if `strict`, names differ; says which, and what to do.
    """
    current = prepared.model_tensors()
    own = {key: tuple(tensor.shape) for key, tensor in current.items()}
    shapes = {key: shape for of_rank in collectives.gather_objects(own) for key, shape in of_rank.items()}
    source = _sources(reader, weights.rename)
    is_skipped = {key: key.removeprefix(_MODEL).startswith(tuple(weights.skip)) for key in shapes}
    loaded = [key for key in shapes if key in source and not is_skipped[key]]
    report = WeightsReport(
        reader.path,
        _names(loaded),
        _names(key for key in shapes if key not in source and not is_skipped[key]),
        _names(key for key in source if key not in shapes),
        {
            key.removeprefix(_MODEL): (reader.tensors[source[key]].shape, shapes[key])
            for key in loaded
            if reader.tensors[source[key]].shape != shapes[key]
        },
        _names(key for key in shapes if is_skipped[key]),
    )
    _refuse(report, weights)
    sources = {key: source[key] for key in loaded}
    extra: dict[str, Any] = {}
    if weights.strict:
        saved = dict(dict(reader.state.get("prepared", {})).get("extra", {}))
        extra = {renamed(name, weights.rename): value for name, value in saved.items()}
    kept = {key: TensorInfo(shapes[key], _dtype(current.get(key))) for key in shapes if key not in sources}
    prepared.load(_ChangedReader(reader, sources, current, kept), {"extra": extra}, model_only=True)
    return report


class _ChangedReader(CheckpointReader):
    """Reads each tensor by its name in the checkpoint; for tensors in `kept`, returns their current values."""

    def __init__(
        self,
        reader: CheckpointReader,
        sources: Mapping[str, str],
        current: Mapping[str, torch.Tensor],
        kept: Mapping[str, TensorInfo],
    ) -> None:
        self._reader, self._sources, self._current = reader, sources, current
        self.state, self.world_size, self.path = reader.state, reader.world_size, reader.path
        self.tensors = {**{key: reader.tensors[source] for key, source in sources.items()}, **kept}

    def rank_state(self, rank: int) -> Mapping[str, Any] | None:
        return self._reader.rank_state(rank)

    def read(self, targets: Mapping[str, torch.Tensor]) -> None:
        for key, target in targets.items():
            now = self._current.get(key)
            if key in self._sources or now is None or now is target:
                continue
            # Some strategies pass a copy as target, or the full tensor of a sharded one.
            if hasattr(now, "full_tensor") and not hasattr(target, "full_tensor"):
                now = now.full_tensor()
            with torch.no_grad():
                target.copy_(now)
        self._reader.read({self._sources[key]: each for key, each in targets.items() if key in self._sources})


def _sources(reader: CheckpointReader, rename: Mapping[str, str]) -> dict[str, str]:
    """Return keys of the module → keys of the checkpoint.

    Raises:
        CheckpointError: two keys would get the same name, or a prefix in `rename` matches no key.
    """
    keys = [key for key in reader.tensors if key.startswith(_MODEL)]
    unused = [old for old in rename if not any(key.removeprefix(_MODEL).startswith(old) for key in keys)]
    if unused:
        raise CheckpointError(
            f"no tensor in {reader.path} begins with {unused[0]!r}, which is to be renamed: it has "
            f"{some(_names(keys))}"
        )
    found: dict[str, str] = {}
    for key in keys:
        name = _MODEL + renamed(key.removeprefix(_MODEL), rename)
        if name in found:
            raise CheckpointError(
                f"{some(_names([found[name], key]))} in {reader.path} would both be {name.removeprefix(_MODEL)!r}: "
                "rename them to names that differ"
            )
        found[name] = key
    return found


def _refuse(report: WeightsReport, weights: InitialWeights) -> None:
    if report.mismatched:
        shown = [
            f"{name} is {there} there and {here} here" for name, (there, here) in report.mismatched.items()
        ]
        names = list(report.mismatched)
        raise CheckpointError(
            f"{report.path} doesn't fit this module: {some(shown)}; build it with the sizes that it was saved "
            f"with, or let these keep their values with skip={names[:3]}"
        )
    if not report.loaded:
        raise CheckpointError(
            f"{report.path} and this module have no tensor in common: it has {some(report.unexpected)}, the module "
            f"{some(report.missing)}; map names with rename"
        )
    if weights.strict and (report.missing or report.unexpected):
        raise CheckpointError(
            f"{report.path} doesn't fit this module: missing keys: {some(report.missing)}, "
            f"unexpected keys: {some(report.unexpected)}; map names with rename, leave some out with skip, or say "
            "strict=False"
        )


def _dtype(tensor: torch.Tensor | None) -> torch.dtype:
    return torch.float32 if tensor is None else tensor.dtype


def _names(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(key.removeprefix(_MODEL) for key in keys)
