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
    after: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Patterns of test files that run on the simulated device, where it is built, by names of modules: for a mutant
    that the other tests didn't notice."""
    on_sim: str = ""
    """Which tests of those files run on the simulated device, as `pytest -k`; then only waits are mutated."""

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

    def tests_after(self, path: str, root: Path = ROOT) -> list[str]:
        """Return the paths of the tests on the simulated device for the module at `path`."""
        return _matching(root, self.after.get(Path(path).stem, ()))


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
    Target(
        "data",
        (f"{CORE}data/*.py",),
        ("tests/core/data/test_*.py",),
        after={
            "batches": ("plugins/sim/tests/test_batches_beside.py",),
            "rng": ("plugins/sim/tests/test_generators.py",),
        },
    ),
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
            *("test_exact_resumption", "test_gradients", "test_own_backwards"),
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


def _on_sim(module: str, only: str, *tests: str) -> Target:
    """One module whose waits are removed, and the tests on sim that are to notice it."""
    name = f"{Path(module).parts[1].replace('src', 'core')}/{Path(module).stem}"
    return Target(name, (module,), tests, starts_processes=True, on_sim=only)


_KIT, _SIM = "plugins/sim/tests/test_conformance.py", "plugins/sim/tests"

WAIT_TARGETS = (
    _on_sim(f"{CORE}data/batches.py", "test_the_next_batch", f"{_SIM}/test_batches_beside.py"),
    _on_sim(f"{CORE}precision/torch_private.py", "TestOffload and precisions", _KIT),
    _on_sim(f"{CORE}strategies/loss_weights.py", "TestWeights", _KIT),
    _on_sim(
        "plugins/activations/src/stratagem_activations/offload.py",
        "test_losses or test_another",
        "plugins/activations/tests/test_offload_on_sim.py",
    ),
    _on_sim(
        "plugins/bagua/src/stratagem_bagua/decentralized.py",
        "test_replicas",
        "plugins/bagua/tests/test_decentralized_on_sim.py",
    ),
    _on_sim(
        "plugins/capsule/src/stratagem_capsule/host_copy.py",
        "test_batches",
        "plugins/capsule/tests/test_replay_on_sim.py",
    ),
    _on_sim(
        "plugins/checkpoint/src/stratagem_checkpoint/snapshot.py",
        "test_a_save and True and 2",
        f"{_SIM}/test_saves.py",
    ),
    _on_sim(
        "plugins/ddp/src/stratagem_ddp/prepared.py",
        "test_a_step",
        "plugins/ddp/tests/test_missing_losses_on_sim.py",
    ),
    _on_sim("plugins/ddp/src/stratagem_ddp/power_sgd.py", "TestFurther and powersgd", _KIT),
    _on_sim(
        "plugins/memory-checkpoint/src/stratagem_memory_checkpoint/exchange.py",
        "test_a_checkpoint",
        "plugins/memory-checkpoint/tests/test_checkpointer_on_sim.py",
    ),
    _on_sim(
        "plugins/model-parallel/src/stratagem_model_parallel/context/ring.py",
        "test_outputs",
        "plugins/model-parallel/tests/test_ring_on_sim.py",
    ),
    _on_sim("plugins/pipeline/src/stratagem_pipeline/measure.py", "TestOthers and parity and pipeline", _KIT),
    _on_sim("plugins/pipeline/src/stratagem_pipeline/route.py", "TestOthers and parity and pipeline", _KIT),
    _on_sim(
        "plugins/report/src/stratagem_report/recording/device.py", "report", f"{_SIM}/test_extensions.py"
    ),
    _on_sim(
        "plugins/sharding/src/stratagem_sharding/mean_exchange.py", "TestOthers and parity and bytegrad", _KIT
    ),
    _on_sim("plugins/sim/src/stratagem_sim/accelerator.py", "TestSim", _KIT),
)
"""Modules that wait for a device. Others are of devices that this machine lacks, and are listed in `ELSEWHERE`."""
ELSEWHERE = {
    "plugins/cuda/src/stratagem_cuda/accelerator.py": "needs a GPU",
    "plugins/fairscale/src/stratagem_fairscale/reducer.py": "fairscale's engine knows the CPU and CUDA",
    "plugins/hpu/src/stratagem_hpu/accelerator.py": "needs Habana's library",
    "plugins/mps/src/stratagem_mps/accelerator.py": "needs a Mac",
    "plugins/report/src/stratagem_report/recording/stragglers.py": "waits for tensors of the CPU",
    "plugins/testing/src/stratagem_testing/parts/accelerator.py": "is a test itself",
    "plugins/torch/src/stratagem_torch/accelerator.py": "the same line as sim's",
}
"""Modules with waits that sim doesn't reach, and why."""

SLOW = (
    "two_ranks or every_rank or persistent_workers or fewer_evaluation_samples_than_ranks "
    "or 2-True or lazy-2 or batches-2"
)
"""Tests that start processes, as `pytest -k` names them: they are left out."""
