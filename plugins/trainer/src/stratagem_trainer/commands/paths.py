"""Check the paths that a command got, before anything is started."""

from __future__ import annotations

import os

from stratagem.errors import CheckpointError, ConfigError, short

_LONGEST_NAME, _LONGEST_PATH = 255, 4000


def refuse_run_dir(path: object) -> None:
    """Refuse a path that can't be a run's folder; None is allowed.

    Raises:
        ConfigError: it is empty or too long, or it or one of its parents is a file.
    """
    if path is None:
        return
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        raise ConfigError(
            f"run_dir={short(path)} is not a folder's path: pass one, or leave it out for runs/TIME-CLASS"
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
    """Refuse a path that can't be a checkpoint's; None is allowed.

    Raises:
        CheckpointError: it is empty or too long, or fsspec doesn't know its scheme or lacks a library for it.
    """
    if path is None:
        return
    if not path.strip() or "\0" in path or _is_too_long(path):
        raise CheckpointError(
            f"ckpt_path={short(path)} is not a checkpoint's path: pass a checkpoint's folder"
        )
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
            f"ckpt_path={short(path)} begins with {scheme}://, which fsspec doesn't know: pass a folder's path, or a "
            "URL such as s3://bucket/folder"
        ) from error


def _is_too_long(path: str) -> bool:
    names = os.fsencode(path).split(os.fsencode(os.sep))
    return max(map(len, names)) > _LONGEST_NAME or len(os.fsencode(path)) > _LONGEST_PATH
