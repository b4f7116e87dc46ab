"""What `make mutate` mutates, and the quick tests that are meant for it."""

from __future__ import annotations

from dataclasses import dataclass

CORE, TRAINER = "core/src/stratagem/", "plugins/trainer/src/stratagem_trainer/"


@dataclass(frozen=True)
class Target:
    """A module, and the tests that are to notice a change in it."""

    name: str
    path: str
    tests: tuple[str, ...]
    """Files and folders, as for pytest; the one that mirrors the module first."""


def _core(module: str, *more: str) -> Target:
    folder, _, name = module.rpartition("/")
    mirror = f"tests/core/{folder}/test_{name}.py"
    return Target(name, f"{CORE}{module}.py", (mirror, *(f"tests/core/{each}.py" for each in more)))


def _trainer(module: str, *more: str) -> Target:
    folder, _, name = module.rpartition("/")
    mirror = f"plugins/trainer/tests/{folder}/test_{name}.py".replace("//", "/")
    return Target(
        name, f"{TRAINER}{module}.py", (mirror, *(f"plugins/trainer/tests/{each}.py" for each in more))
    )


TARGETS = (
    _core("plugin/sealing"),
    _core("installed/catalogue", "installed/test_catalogue_names"),
    _core("resolve/select", "resolve/test_run", "resolve/test_given_parts"),
    _core("resolve/pairing", "resolve/test_run"),
    _trainer(
        "loops/train",
        "loops/test_train_resume",
        "loops/test_train_losses",
        "loops/test_automatic",
        "test_hooks",
        "test_fit",
        "test_windows",
    ),
    _trainer("loops/automatic", "loops/test_train", "loops/test_train_losses"),
    _trainer("metrics/metrics", "test_metrics", "loops/test_train"),
    _trainer("metrics/scope", "test_metrics"),
    _core(
        "data/train",
        "data/test_train_positions",
        "data/test_sharded",
        "data/test_sources",
        "data/test_sources_replayed",
    ),
    _core("data/sampler"),
    _core("data/evaluate"),
    Target(
        "manifest",
        "plugins/checkpoint/src/stratagem_checkpoint/manifest.py",
        ("plugins/checkpoint/tests/test_manifest.py", "plugins/checkpoint/tests/test_opening.py"),
    ),
)

SLOW = (
    "two_ranks or every_rank or persistent_workers or fewer_evaluation_samples_than_ranks "
    "or 2-True or lazy-2 or batches-2"
)
"""Tests that start processes, as `pytest -k` names them: they are left out."""
