"""Folders of several runs: save_dir/name/version_0, version_1 and so on."""

from __future__ import annotations

import os
import re


def versioned(save_dir: str, name: str | None, version: int | str | None) -> tuple[str, int | str]:
    """Return the folder of a run, and its version. For version None, that is the next unused number.

    Args:
        save_dir: folder of all runs.
        name: name of the experiment; None or "" for none.
        version: a number, which becomes version_N, or the folder's name.
    """
    base = os.path.join(os.path.abspath(save_dir), name or "")
    if version is None:
        known = os.listdir(base) if os.path.isdir(base) else []
        numbers = [int(found[1]) for each in known if (found := re.fullmatch(r"version_(\d+)", each))]
        version = max(numbers, default=-1) + 1
    return os.path.join(base, version if isinstance(version, str) else f"version_{version}"), version
