"""A cache of component records between processes, so that 200 plugins don't cost 200 imports per command.

The cache is valid as long as its sources don't change: the distributions in the folders on `sys.path`, their metadata
files, and the sources of the plugins' modules. A plugin whose records may depend on anything else (see
`record_sources`) is imported every time.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any
from zlib import crc32

from stratagem.plugin import component as component_module
from stratagem.plugin.component import Capabilities, Component
from stratagem.plugin.origin import Origin

SETTLED_S = 2.0
"""Nothing is cached if a file is younger than this: it may change again and keep the same modification time."""
MOST_FILES = 32
"""Maximum number of cache files, one per Python and `sys.path`. The oldest are deleted first."""

_METADATA = (".dist-info", ".egg-info", "EGG-INFO")
_METADATA_FILES = ("entry_points.txt", "METADATA", "PKG-INFO")
_PATH_FINDERS = ("_frozen_importlib_external", "importlib._bootstrap_external", "importlib_metadata")
_PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Entry:
    """An entry point and its records."""

    origin: Origin
    value: str
    """The entry point's value, which names its module."""
    components: tuple[Component, ...] | None
    """None if they aren't cached, so that the module must be imported."""
    has_commands: bool


class RecordCache:
    """The cache of this Python with this `sys.path`. Create it before anything is read from plugins.

    If its folder or its file has a problem, there is no cache, and no error. STRATAGEM_NO_CACHE turns it off.
    """

    def __init__(self) -> None:
        self._began = time.time()
        self._newest = 0.0
        self._path = None if os.environ.get("STRATAGEM_NO_CACHE") or _other_finders() else _path()

    def read(self) -> list[Entry] | None:
        """Return the cached entries, or None if there are none or their sources have changed."""
        import json

        if self._path is None:
            return None
        try:
            checksum, _, text = _trusted_text(self._path).partition("\n")
            if int(checksum) != crc32(text.encode()):
                return None
            content = json.loads(text)
            if content["sources"] != self._sources(content["sources"]):
                return None
            if content["installed"] != self._installed(content["packages"]):
                return None
            return [_entry(row) for row in content["entries"]]
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def write(self, entries: Sequence[Entry]) -> None:
        """Cache all entries, which were read just now."""
        import json

        if self._path is None:
            return
        packages = sorted({entry.value.partition(":")[0].partition(".")[0].strip() for entry in entries})
        try:
            installed = self._installed(packages)
            if not self._is_settled():
                return
            rows, files = _rows(entries)
            sources = self._sources({component_module.__file__, *files})
            if self._is_settled():
                content = {"packages": packages, "installed": installed, "sources": sources, "entries": rows}
                text = json.dumps(content)
                _replace(self._path, f"{crc32(text.encode())}\n{text}")
        except OSError:
            return

    def _is_settled(self) -> bool:
        return self._newest < self._began - SETTLED_S

    def _installed(self, packages: Iterable[str]) -> list[Any]:
        """Return the names of distributions, and of modules named like a plugin's package, that are on `sys.path`."""
        wanted = frozenset(packages)
        listed: list[str] = []
        files: list[str] = []
        for folder in sys.path:
            folder = os.path.abspath(folder)
            try:
                names = sorted(os.listdir(folder))
            except OSError:
                # A zip file, or nothing: the state of the file covers its content.
                files.append(folder)
                continue
            for name in names:
                if name.endswith(_METADATA):
                    listed.append(name)
                    files += [os.path.join(folder, name, file) for file in _METADATA_FILES]
                elif name.partition(".")[0] in wanted:
                    listed.append(name)
        return [listed, self._states(files)]

    def _sources(self, files: Iterable[str]) -> dict[str, Any]:
        files = sorted(files)
        return dict(zip(files, self._states(files)))

    def _states(self, files: Iterable[str]) -> list[list[int] | None]:
        """Return the times, size and inode of each file, which change with its content; None for a missing file."""
        states: list[list[int] | None] = []
        for file in files:
            try:
                found = os.stat(file)
            except OSError:
                states.append(None)
                continue
            self._newest = max(self._newest, found.st_mtime, found.st_ctime)
            states.append([found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino])
        return states


def _other_finders() -> bool:
    """Whether distributions may come from other places than the folders on `sys.path`."""
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_distributions")]
    return any(
        getattr(finder, "__module__", type(finder).__module__) not in _PATH_FINDERS for finder in finders
    )


def _path() -> str | None:
    from hashlib import sha256

    from stratagem import __version__

    home = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    folder = os.path.expanduser(os.path.join(home, "stratagem"))
    if not os.path.isabs(folder):
        return None
    core = component_module.__file__
    key = repr((sys.executable, sys.version, list(map(os.path.abspath, sys.path)), __version__, core))
    return os.path.join(folder, f"plugins-{sha256(key.encode()).hexdigest()[:16]}.json")


def _trusted_text(path: str) -> str:
    """Read a file that no other user can have written.

    Raises:
        OSError: there is no such file, or another user could have written or placed it.
    """
    _refuse_foreign(os.lstat(os.path.dirname(path)))
    with open(path, encoding="utf-8") as file:
        # Check the open file, because another file may have replaced it at the path.
        _refuse_foreign(os.fstat(file.fileno()))
        return file.read()


def _refuse_foreign(state: os.stat_result) -> None:
    if hasattr(os, "geteuid") and (state.st_uid != os.geteuid() or state.st_mode & 0o022):
        raise PermissionError("others can write it")


def _replace(path: str, text: str) -> None:
    import tempfile

    folder = os.path.dirname(path)
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        _refuse_foreign(os.lstat(folder))
    handle, temporary = tempfile.mkstemp(dir=folder, prefix="plugins-", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    kept = [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("plugins-")]
    for old in sorted(kept, key=os.path.getmtime)[:-MOST_FILES]:
        os.unlink(old)


def _rows(entries: Sequence[Entry]) -> tuple[list[dict[str, Any]], set[str]]:
    """Return the JSON rows of all entry points, and the files on which they depend."""
    from stratagem.installed.record_sources import sources_of  # only needed to write a cache

    rows, files = [], set()
    for entry in entries:
        row = _row(entry)
        sources = sources_of(entry.value) if row["components"] is not None else None
        rows.append(row if sources is not None else {**row, "components": None})
        files |= sources or set()
    return rows, files


def _row(entry: Entry) -> dict[str, Any]:
    import json

    components: list[Any] | None = None
    if entry.components is not None and all(map(_is_plain, entry.components)):
        components = json.loads(json.dumps([_plain_fields(each) for each in entry.components]))
        if [_component(row, entry.origin) for row in components] != list(entry.components):
            components = None  # such as tuples in presets, or numbers that JSON doesn't have
    return {
        "origin": list(vars(entry.origin).values()),
        "value": entry.value,
        "components": components,
        "has_commands": entry.has_commands,
    }


def _plain_fields(component: Component) -> dict[str, Any]:
    capabilities = {**vars(component.capabilities), "features": sorted(component.capabilities.features)}
    said = {each.name: getattr(component, each.name) for each in fields(component) if each.compare}
    return {**said, "capabilities": capabilities}


def _is_plain(value: Any) -> bool:
    """Whether a value consists of types that a round trip through JSON can restore."""
    if type(value) in (Component, Capabilities):
        return all(_is_plain(getattr(value, each.name)) for each in fields(value) if each.compare)
    if type(value) is dict:
        return all(type(key) is str and _is_plain(item) for key, item in value.items())
    if type(value) in (tuple, frozenset, list):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


def _entry(row: dict[str, Any]) -> Entry:
    origin = Origin(*row["origin"])
    components = row["components"]
    made = None if components is None else tuple(_component(each, origin) for each in components)
    return Entry(origin, row["value"], made, row["has_commands"])


def _component(row: dict[str, Any], origin: Origin) -> Component:
    capabilities = dict(row["capabilities"])
    features = frozenset(capabilities.pop("features"))
    given = {**row, "capabilities": Capabilities(**_tuples(capabilities), features=features)}
    return Component(**_tuples(given), origin=origin)


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if type(value) is list else value for name, value in values.items()}
