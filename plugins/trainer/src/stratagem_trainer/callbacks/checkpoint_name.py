"""Names of checkpoints, made from the epoch, the step and metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stratagem.errors import ConfigError

_FIELD = re.compile(r"\{([^{}:]+)(?::([^{}]*))?\}")
_POSITION = ("epoch", "step")


class CheckpointName:
    """A name with fields in braces, such as "epoch={epoch}-val_loss={val_loss:.3f}".

    Unlike with `str.format`, a field's name is the whole text up to the colon, so that metrics named "val/loss" or
    "loss.train" work.

    Args:
        template: its fields are "epoch", "step" and names of metrics, each with an optional format.
        auto_insert: write each field's name before its value, as in "epoch=3-val_loss=0.1"; a "/" in it becomes "_".
        ending: appended to all names, also to `last`.

    Raises:
        ConfigError: the template is empty, or has a path separator, an unpaired brace or an invalid format.
    """

    def __init__(self, template: str, auto_insert: bool = False, ending: str = "") -> None:
        if not isinstance(template, str) or not template.strip() or template in (".", "..", "last"):
            raise ConfigError(
                f'ModelCheckpoint got filename={template!r}; pass a name such as "step={{step}}"'
                ' ("last" is the name of the newest checkpoint)'
            )
        literal = _FIELD.sub("", template)
        if "/" in literal or "\\" in literal:
            raise ConfigError(
                f"ModelCheckpoint got filename={template!r} with a path separator; name folders in dirpath"
            )
        if "{" in literal or "}" in literal:
            raise ConfigError(f"ModelCheckpoint got filename={template!r}, with a brace that has no pair")
        for name, spec in _FIELD.findall(template):
            try:
                format(1 if name in _POSITION else 1.0, spec)
            except ValueError as error:
                raise ConfigError(
                    f"ModelCheckpoint got filename={template!r}: {spec!r} is not a format for {name}: {error}"
                ) from error
        self.template = template
        self.fields = tuple(name for name, _ in _FIELD.findall(template))
        self._auto_insert, self.ending = auto_insert, ending

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the fields that are metrics."""
        return tuple(name for name in self.fields if name not in _POSITION)

    def fill(self, epoch: int, step: int, metrics: Mapping[str, float]) -> str:
        """Return the name without its ending. A metric that isn't in `metrics` becomes nan."""
        values: dict[str, float] = {**metrics, "epoch": epoch, "step": step}

        def write(field: re.Match[str]) -> str:
            name = f"{field[1].replace('/', '_')}=" if self._auto_insert else ""
            return name + format(values.get(field[1], float("nan")), field[2] or "")

        return _FIELD.sub(write, self.template)
