"""The lock file: which plugins are installed, their origins, and hashes of their files.

All of it is read from metadata and files. No plugin is imported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from stratagem.errors import LockError
from stratagem.installed.entry_points import GROUP, LIBRARY_GROUPS, plugin_entry_points
from stratagem.names.facade import GROUP as NAMES_GROUP

if TYPE_CHECKING:
    from importlib_metadata import Distribution

LOCK_FILE = "stratagem.lock"
"""The lock file's default name."""
LOCKED_VARIABLE = "STRATAGEM_LOCKED"
"""Environment variable with the path of the lock file to check; "1" is `LOCK_FILE` in the working directory."""
_FORMAT = 1

Lock = dict[str, dict[str, str]]
"""Distribution → its version, its origin and the SHA-256 of its files."""


def lock_path() -> str | None:
    """Return the absolute path of the lock file to check in this process, or None."""
    given = os.environ.get(LOCKED_VARIABLE)
    return os.path.abspath(LOCK_FILE if given == "1" else given) if given else None


def require_locked() -> None:
    """Compare installed plugins with the lock file of STRATAGEM_LOCKED, if it is set.

    Raises:
        LockError: as `refuse_unlocked`.
    """
    path = lock_path()
    if path is not None:
        refuse_unlocked(path)


def write_lock(path: str) -> list[str]:
    """Write a lock file of the installed plugins, and return the distributions' names.

    Raises:
        LockError: the file can't be written.
    """
    lock = _installed()
    text = json.dumps({"format": _FORMAT, "plugins": lock}, indent=2, sort_keys=True, ensure_ascii=False)
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except (OSError, ValueError) as error:
        raise LockError(f"the lock file {path!r} can't be written: {error}") from error
    return sorted(lock)


@lru_cache(maxsize=8)
def refuse_unlocked(path: str, strict: bool = False) -> None:
    """Compare installed plugins with a lock file. Success is cached until `forget_installed`.

    Args:
        path: of the lock file.
        strict: whether a plugin that is in the file and not installed is a difference, too.

    Raises:
        LockError: a plugin isn't in it, or has another version or other files; or the file can't be read.
    """
    wanted, installed = _read(path), _installed()
    file = os.path.basename(path)
    found = [_difference(name, installed[name], wanted.get(name), file) for name in sorted(installed)]
    missing = sorted(set(wanted) - set(installed)) if strict else []
    found += [f"{name} {wanted[name]['version']} of {file} isn't installed" for name in missing]
    differences = [difference for difference in found if difference]
    if differences:
        raise LockError(
            f"{'; '.join(differences)}: install what is locked, or look at what is new and run "
            "`stratagem plugins lock`"
        )


def _difference(name: str, installed: dict[str, str], wanted: dict[str, str] | None, file: str) -> str:
    version = installed["version"]
    if wanted is None:
        return f"the plugin {name} {version} ({installed['origin']}) isn't in {file}"
    if wanted["version"] != version:
        return f"the plugin {name} {version} is locked at {wanted['version']} in {file}"
    if wanted["sha256"] != installed["sha256"]:
        return f"the files of the plugin {name} {version} aren't those that are locked in {file}"
    return ""


def _read(path: str) -> Lock:
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise LockError(
                f"the lock file {path!r} isn't a regular file; `stratagem plugins lock` writes one"
            )
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise LockError(
            f"the lock file {path!r} can't be read: {error.strerror or error}; `stratagem plugins lock` writes one"
        ) from error
    except (ValueError, RecursionError) as error:
        raise LockError(f"the lock file {path!r} isn't JSON that can be read: {error}") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise LockError(
            f"the lock file {path!r} isn't of format {_FORMAT}: write it again by `stratagem plugins lock`"
        )
    plugins = content.get("plugins")
    if not isinstance(plugins, dict) or not all(map(_is_entry, plugins.values())):
        raise LockError(f"the lock file {path!r} is damaged: write it again by `stratagem plugins lock`")
    return plugins


def _is_entry(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("version", "sha256"))


def _installed() -> Lock:
    distributions: dict[str, Distribution] = {}
    modules: dict[str, set[str]] = {}
    for group in (GROUP, *LIBRARY_GROUPS, NAMES_GROUP):
        for entry_point, name, _ in plugin_entry_points(group):
            if entry_point.dist is not None:
                distributions[name] = cast("Distribution", entry_point.dist)
                # Names of `stratagem` are in modules of other distributions.
                modules.setdefault(name, set()).update([entry_point.module] if group != NAMES_GROUP else [])
    return {
        name: {
            "version": distribution.version,
            "origin": _origin(distribution),
            "sha256": _digest(distribution, modules[name]),
        }
        for name, distribution in distributions.items()
    }


def _direct_url(distribution: Distribution) -> dict[str, dict[str, str]]:
    """Return the origin of a distribution that wasn't installed from an index (PEP 610)."""
    try:
        found = json.loads(distribution.read_text("direct_url.json") or "{}")
    except (ValueError, RecursionError):
        return {}
    parts = (
        [found, *(found.get(key, {}) for key in ("vcs_info", "dir_info"))]
        if isinstance(found, dict)
        else [found]
    )
    return cast("dict[str, dict[str, str]]", found) if all(isinstance(part, dict) for part in parts) else {}


def _origin(distribution: Distribution) -> str:
    found = _direct_url(distribution)
    commit = found.get("vcs_info", {}).get("commit_id", "")
    editable = " (editable)" if found.get("dir_info", {}).get("editable") else ""
    return f"{found.get('url', 'an index')}{'@' if commit else ''}{commit}{editable}"


def _digest(distribution: Distribution, modules: set[str]) -> str:
    """Return a SHA-256 of the names and contents of all files that may be imported, and of the entry points."""
    files = {name: path for module in sorted(modules) for name, path in _package_files(module)}
    if not _direct_url(distribution).get("dir_info", {}).get("editable"):
        for name, path in _recorded_files(distribution):
            files.setdefault(name, path)
    total = sha256((distribution.read_text("entry_points.txt") or "").encode())
    for name in sorted(files):
        total.update(f"\n{name} {_content_digest(files[name])}".encode())
    return total.hexdigest()


def _content_digest(path: Path) -> str:
    try:
        # Reading a FIFO or a device may never end.
        return sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"
    except OSError:
        return "missing"


def _package_files(module: str) -> Iterator[tuple[str, Path]]:
    """Yield name and path of every file in the package that has `module`; only the module's if it has no package."""
    first, *rest = module.split(".")
    spec, depth = _spec(first), [first]
    while (
        spec is not None and spec.origin is None and rest
    ):  # a namespace, which other distributions may share
        depth.append(rest.pop(0))
        spec = PathFinder.find_spec(".".join(depth), list(spec.submodule_search_locations or ()))
    if spec is None or spec.origin is None or not os.path.isfile(spec.origin):
        return
    origin = Path(spec.origin)
    if spec.submodule_search_locations is None:
        yield "/".join([*depth[:-1], origin.name]), origin
        return
    for path in _files_below(origin.parent, ()):
        yield "/".join([*depth, path.relative_to(origin.parent).as_posix()]), path


def _files_below(folder: Path, above: tuple[str, ...]) -> Iterator[Path]:
    """Yield files that may be imported. Links to folders are followed, except to folders above, which would not end.

    Args:
        folder: the folder to search.
        above: the real paths of the folders above it.
    """
    real = os.path.realpath(folder)
    if real in above:
        return
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        path = folder / name
        if name.startswith(".") or name == "__pycache__":
            continue
        if path.is_dir():
            yield from _files_below(path, (*above, real))
        else:
            yield path


def _spec(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except (ImportError, ValueError):
        return None


def _recorded_files(distribution: Distribution) -> Iterator[tuple[str, Path]]:
    """Yield the files in RECORD, without metadata, scripts and compiled files, which depend on the installer."""
    for file in distribution.files or ():
        name = file.as_posix()
        inner = name.partition("/")[0].endswith((".dist-info", ".egg-info"))
        if not inner and not name.startswith(("..", "/")) and "__pycache__" not in name:
            yield name, Path(str(distribution.locate_file(file)))
