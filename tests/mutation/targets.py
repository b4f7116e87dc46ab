"""What `make mutate` mutates, and the quick tests that are meant for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE, PLUGINS = "core/src/stratagem/", "plugins/"


@dataclass(frozen=True)
class Target:
    """Modules that are sampled together, and the tests that are to notice a change in them."""

    name: str
    modules: tuple[str, ...]
    """Patterns of paths below the repository's root, so that a module can be moved within its folder."""
    tests: tuple[str, ...]
    """Patterns of test files."""
    starts_processes: bool = False
    """Whether tests that start processes are run, too: they take tens of seconds per mutant."""
    further: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Patterns of further test files that are run for some modules alone, by the modules' names."""

    def paths(self, root: Path = ROOT) -> list[str]:
        """Return the modules' paths."""
        return _matching(root, self.modules)

    def all_tests(self, root: Path = ROOT) -> list[str]:
        """Return the paths of the tests for any of the modules."""
        return _matching(root, (*self.tests, *(test for tests in self.further.values() for test in tests)))

    def tests_for(self, path: str, root: Path = ROOT) -> list[str]:
        """Return the paths of the tests for the module at `path`, those for it alone first."""
        name = Path(path).stem
        first = {f"test_{name}.py", *(Path(pattern).name for pattern in self.further.get(name, ()))}
        tests = _matching(root, (*self.tests, *self.further.get(name, ())))
        return sorted(tests, key=lambda test: Path(test).name not in first)


def _matching(root: Path, patterns: Sequence[str]) -> list[str]:
    found = [path for pattern in patterns for path in sorted(root.glob(pattern))]
    return [str(path.relative_to(root)) for path in dict.fromkeys(found) if path.name != "__init__.py"]


def _core(module: str, *more: str) -> Target:
    folder, _, name = module.rpartition("/")
    tests = (f"{folder}/test_{name}", *more)
    return Target(name, (f"{CORE}{module}.py",), tuple(f"tests/core/{each}.py" for each in tests))


def _plugin(
    name: str,
    plugin: str,
    modules: Sequence[str],
    tests: Sequence[str],
    further: Mapping[str, Sequence[str]] | None = None,
    **how: bool,
) -> Target:
    source, tested = f"{PLUGINS}{plugin}/src/stratagem_{plugin}/", f"{PLUGINS}{plugin}/tests/"
    return Target(
        name,
        tuple(f"{source}{each}.py" for each in modules),
        tuple(f"{tested}{each}.py" for each in tests),
        further={
            module: [f"{tested}{each}.py" for each in names] for module, names in (further or {}).items()
        },
        **how,
    )


_FITS = (
    *("loops/test_*", "test_hooks", "test_fit", "test_windows", "test_optimizer_hooks", "test_schedulers"),
    *("test_optimizers", "test_loss_watch", "test_several_loaders", "test_stopped_evaluations"),
)
_OF_LOOPS = {
    "stopping": ("test_trainer_settings",),
    "evaluate": ("test_trainer_settings", "test_metric_objects"),
    **dict.fromkeys(("validations", "validation_times"), ("test_resume_validation",)),
    **dict.fromkeys(("closure", "steps", "loop_optimizer"), ("test_weighted_losses",)),
}
"""Tests of the trainer that are of single modules of its loops."""
_IN_ONE_PROCESS = (
    *("agreement", "ch*", "commit", "directory", "growing_file", "initial_weights", "local_filesystem"),
    *("manifest", "memory_copies", "node_folders", "opening", "publication", "regular_files", "s*", "ti*"),
)
_IN_PROCESSES = {
    **dict.fromkeys(("background", "writer", "writer_process", "snapshot"), ("test_background",)),
    **dict.fromkeys(("saving", "safetensors_storage", "draft"), ("test_ranks",)),
    "filesystem": ("test_remote_stores",),
}
"""Tests of checkpoints that start processes, and what they are of."""

TARGETS = (
    _core("plugin/sealing"),
    _core("installed/catalogue", "installed/test_catalogue_names"),
    _core("resolve/select", "resolve/test_run", "resolve/test_given_parts"),
    _core("resolve/pairing", "resolve/test_run"),
    Target("data", (f"{CORE}data/*.py",), ("tests/core/data/test_*.py",)),
    _plugin("checkpoint", "checkpoint", ["*"], [f"test_{each}" for each in _IN_ONE_PROCESS], _IN_PROCESSES),
    _plugin("loops", "trainer", ["loops/*"], _FITS, _OF_LOOPS),
    _plugin("metrics", "trainer", ["metrics/metrics", "metrics/scope"], ["metrics/test_*", "test_metrics"]),
    _plugin(
        "supervision",
        "launch",
        [
            "supervision",
            "worker",
            "worker_ends",
            "elastic",
            "guard",
            "preemption",
            "stop_*",
            "restart_states",
        ],
        [
            *("test_preemption", "test_stop_*", "test_guard", "test_restart_states", "test_signal_watch"),
            *("test_log_dir", "test_slurm_job", "test_signals", "hangs/test_*", "test_failures"),
        ],
        starts_processes=True,
    ),
    _plugin(
        "ddp",
        "ddp",
        ["prepared", "tracked"],
        [
            *("test_prepared", "test_tracked", "test_missing_losses", "test_step_refusals", "test_refusals"),
            *("test_changing_parameters", "test_preset_checkpoints", "test_preset_refusals", "test_presets"),
            *("test_exact_resumption", "test_gradients"),
        ],
        starts_processes=True,
    ),
    _plugin(
        "fsdp",
        "fsdp",
        ["prepared"],
        ["test_prepared", "test_manual", "test_own_loops", "test_fidelity"],
        starts_processes=True,
    ),
    _plugin(
        "sharded",
        "sharded",
        ["prepared", "fully_prepared"],
        ["test_prepared", "test_fully_prepared", "test_own_loops", "test_fidelity", "test_sharded"],
        starts_processes=True,
    ),
)

SLOW = (
    "two_ranks or every_rank or persistent_workers or fewer_evaluation_samples_than_ranks "
    "or 2-True or lazy-2 or batches-2"
)
"""Tests that start processes, as `pytest -k` names them: they are left out."""
