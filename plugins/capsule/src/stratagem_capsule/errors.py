"""`CapsuleError`: a step that can't be kept or replayed."""

from __future__ import annotations

from stratagem.errors import UsageError


class CapsuleError(UsageError):
    """A capsule is missing, damaged, or of another run than the one that is to replay it."""
