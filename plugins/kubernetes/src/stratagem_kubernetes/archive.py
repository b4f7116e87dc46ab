"""The code of a run, packed so that a ConfigMap holds it."""

from __future__ import annotations

import gzip
import io
import os
import tarfile

from stratagem.errors import UsageError

MOST_BYTES = 1 << 20
"""Largest size of a ConfigMap's data."""


def pack(folder: str) -> bytes:
    """Return a folder as a compressed archive; the same bytes for the same files.

    Links to other folders of this machine, as to data that is no code, are left out.

    Args:
        folder: its files are at the archive's top.

    Raises:
        UsageError: it is larger than a ConfigMap can be.
    """
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(folder, arcname=".", filter=_entry)
    packed = gzip.compress(tar.getvalue(), mtime=0)
    # The API counts what it receives, which is written to the base 64.
    if len(packed) * 4 / 3 > MOST_BYTES - 4096:
        raise UsageError(
            f"the code takes {len(packed) / 1e6:.1f} MB packed ({_largest(folder)} is the largest file), and a "
            "ConfigMap holds 0.7 MB: put it into the image and give --on-set code=image"
        )
    return packed


def _entry(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if entry.issym() and os.path.isabs(entry.linkname):
        return None
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def _largest(folder: str) -> str:
    found = [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names]
    files = [path for path in found if not os.path.islink(path)]
    return os.path.relpath(max(files, key=os.path.getsize), folder) if files else "none"
