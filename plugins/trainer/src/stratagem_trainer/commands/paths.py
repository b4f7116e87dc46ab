"""Paths given to a command, as far as they can be checked without starting anything."""

from __future__ import annotations

import os

from stratagem.errors import CheckpointError, ConfigError, short

_LONGEST_NAME, _LONGEST_PATH = 255, 4000


def refuse_run_dir(path: object) -> None:
    """Refuse a folder for a run that can't be one; None is none given.

    Raises:
        ConfigError: it is empty, too long, or is or lies below a file.
    """
    if path is None:
        return
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        raise ConfigError(
            f"run_dir={short(path)} is no folder's path: give one, or leave it out for runs/TIME-CLASS"
        )
    if _is_too_long(path):
        raise ConfigError(
            f"run_dir={short(path)} is too long: a name in a path has at most {_LONGEST_NAME} bytes, and the path "
            f"{_LONGEST_PATH}"
        )
    above = os.path.abspath(path)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        where = "is a file" if above == os.path.abspath(path) else f"lies below {above!r}, which is a file"
        raise ConfigError(f"run_dir={path!r} {where}: choose a folder, or move the file away")


def refuse_checkpoint_path(path: str | None) -> None:
    """Refuse a path of a checkpoint that nothing here can open; None is none given.

    Raises:
        CheckpointError: it is empty, too long, or of a scheme that is unknown or lacks its library.
    """
    if path is None:
        return
    if not path.strip() or "\0" in path or _is_too_long(path):
        raise CheckpointError(f"ckpt_path={short(path)} is no checkpoint's path: give the folder of one")
    scheme, separator, _ = path.partition("://")
    if not separator:
        return
    from fsspec import get_filesystem_class  # type: ignore[import-untyped]  # fsspec has no types
    from fsspec.registry import known_implementations  # type: ignore[import-untyped]  # fsspec has no types

    try:
        get_filesystem_class(scheme)
    except ImportError as error:
        hint = known_implementations.get(scheme, {}).get("err", str(error))
        raise CheckpointError(f"ckpt_path={short(path)} needs a library for {scheme}://: {hint}") from error
    except ValueError as error:
        raise CheckpointError(
            f"ckpt_path={short(path)} begins with {scheme}://, which fsspec doesn't know: give a folder's path, or a "
            "URL as s3://bucket/folder"
        ) from error


def _is_too_long(path: str) -> bool:
    names = os.fsencode(path).split(os.fsencode(os.sep))
    return max(map(len, names)) > _LONGEST_NAME or len(os.fsencode(path)) > _LONGEST_PATH
