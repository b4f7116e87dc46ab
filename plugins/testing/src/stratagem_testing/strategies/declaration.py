"""A strategy's declaration before it is selected, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import importlib_metadata

from stratagem.errors import UsageError
from stratagem.sdk.catalogue import GROUP, load_catalogue
from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.recipe import Recipe
from stratagem_testing.strategies.optimizers import CLOSURE, MANUAL, TWO_OPTIMIZERS
from stratagem_testing.subject import StrategySubject
from stratagem_testing.trained import train

LIGHT_SHARE = 0.3
"""Limit of the CPU time to import a plugin, as a share of that of the core's catalogue in the same process."""
_TRIALS = 3

_PROGRAM = """
import sys, time
began = time.process_time()
import stratagem.installed.catalogue
core_s = time.process_time() - began
known = set(sys.modules)
began = time.process_time()
__import__({module!r})
plugin_s = time.process_time() - began
heavy = {{"torch", "numpy", "pandas", "deepspeed", "fairscale", "horovod"}} & (sys.modules.keys() - known)
print(plugin_s / core_s, *sorted(heavy))
"""


@check(world_sizes=(1,))
def check_light_plugin(subject: StrategySubject) -> None:
    """Importing the module of its entry point is fast, and imports neither torch nor other heavy libraries."""
    if not isinstance(subject.strategy, str):
        raise NotApplicable("it is not from a distribution, so it has no entry point")
    origin = load_catalogue().find("strategy", subject.strategy).origin
    (found,) = importlib_metadata.entry_points(group=GROUP, name=origin.entry_point)
    shares = []
    for _ in range(_TRIALS):  # the first one may compile bytecode
        share, heavy = _imported(found.module)
        expect(
            not heavy,
            f"importing {found.module} imports {', '.join(heavy)}: import it in the strategy's module",
        )
        if share <= LIGHT_SHARE:
            return
        shares.append(share)
    expect(
        False,
        f"importing {found.module} takes {min(shares):.1f} times the CPU time of importing the core, more "
        f"than {LIGHT_SHARE}",
    )


def _imported(module: str) -> tuple[float, list[str]]:
    """Return a module's import time as a share of the core's, and the heavy modules that it imports."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    program = [sys.executable, "-c", _PROGRAM.format(module=module)]
    done = subprocess.run(program, env=environ, capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"importing {module} fails: {done.stderr.strip()[-500:]}")
    share, *heavy = done.stdout.split()
    return float(share), heavy


@check(world_sizes=(1, 2))
def check_refuses_undeclared(subject: StrategySubject) -> None:
    """Undeclared features and precisions, and unknown settings, are refused before training with a reason."""
    for what, refused in subject.run(_try_undeclared)[0]:
        expect(refused is not None, f"{what} isn't declared, but isn't refused")
        assert refused is not None
        kind, message = refused
        expect(
            kind,
            f"{what} is refused by a {message.partition(':')[0]}, which isn't an error for users: {message}",
        )
        expect(len(message) > 20, f"{what} is refused without a reason: {message!r}")


def _try_undeclared(subject: StrategySubject) -> list[tuple[str, tuple[bool, str] | None]]:
    trials: dict[str, dict[str, Any]] = {
        "several_optimizers": {"recipe": TWO_OPTIMIZERS},
        "closure": {"recipe": CLOSURE},
        "manual_backward": {"recipe": MANUAL},
        "norm_clipping": {"recipe": Recipe(max_norm=1.0)},
        "value_clipping": {"recipe": Recipe(max_value=1.0)},
    }
    features = subject.features
    undeclared = {f"the feature {name}": how for name, how in trials.items() if name not in features}
    declared = subject.capabilities.precisions
    if "*" not in declared:
        others = {"32-true", "64-true", "bf16-mixed"} - set(declared)
        undeclared |= {f"precision {name}": {"recipe": Recipe(precision=name)} for name in others}
    refusals = [(what, _refusal(subject, **how)) for what, how in undeclared.items()]
    wrong = {"no_such_setting_anywhere": 1}
    refusals.append(("a setting that doesn't exist", _refusal(replace(subject, options=wrong), Recipe())))
    return refusals


def _refusal(subject: StrategySubject, recipe: Recipe) -> tuple[bool, str] | None:
    """Return whether a run is refused by an error for users, and its message; None if it isn't refused."""
    try:
        train(subject, recipe)
    except UsageError as error:
        return True, str(error)
    except TypeError as error:
        # If the subject has a class, not a name, Python itself refuses unknown keywords.
        return not isinstance(subject.strategy, str), f"TypeError: {error}"
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"
    return None
