"""Add the batch's shapes and dtypes to a torch error in a step. They explain most such errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn

from stratagem.errors import StratagemError
from stratagem_trainer.stage.state import STEPS

_MOST_ITEMS = 6
_DEVICE_WORDS = ("same device", "expected device", "device type", "is not on the expected")


def explain(error: BaseException) -> None:
    """Add a sentence to the message of an error that was raised in a step, or in the backward of its loss.

    The error keeps its type and traceback.
    """
    message = error.args[0] if error.args else None
    if isinstance(error, StratagemError) or not isinstance(message, str):
        return
    if not isinstance(error, (RuntimeError, ValueError, TypeError, IndexError)):
        return
    for frame in _frames(error):
        explanation = _of_step(frame, message) or _of_backward(frame)
        if explanation:
            error.args = (f"{message}\n{explanation}", *error.args[1:])
            return


def described(batch: Any) -> str:
    """Return the shapes, dtypes and devices of a batch's tensors, in one line."""
    if isinstance(batch, torch.Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')} {list(batch.shape)} on {batch.device}"
    if is_dataclass(batch) and not isinstance(batch, type):
        batch = {field.name: getattr(batch, field.name) for field in fields(batch)}
    if isinstance(batch, Mapping):
        items = [f"{key!r}: {described(value)}" for key, value in list(batch.items())[:_MOST_ITEMS]]
        return "{" + ", ".join(items) + (", …" if len(batch) > _MOST_ITEMS else "") + "}"
    if isinstance(batch, (list, tuple)):
        items = [described(value) for value in batch[:_MOST_ITEMS]]
        return "(" + ", ".join(items) + (", …" if len(batch) > _MOST_ITEMS else "") + ")"
    return type(batch).__name__


def _frames(error: BaseException) -> Iterator[FrameType]:
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def _of_step(frame: FrameType, message: str) -> str | None:
    code = frame.f_code
    if code.co_name not in STEPS.values() or code.co_argcount < 2:
        return None
    owner, batch, *rest = (frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount])
    if not isinstance(owner, nn.Module):
        return None
    index = f" {rest[0]}" if rest and isinstance(rest[0], int) else ""
    fix = ""
    if any(word in message for word in _DEVICE_WORDS):
        fix = "; make tensors with device=self.device, or register them as buffers"
    return (
        f"{type(owner).__qualname__}.{code.co_name} failed for batch{index}, which is {described(batch)}{fix}"
    )


def _of_backward(frame: FrameType) -> str | None:
    loss = frame.f_locals.get("loss") if frame.f_code.co_name == "backward" else None
    if not isinstance(loss, torch.Tensor):
        return None
    if loss.numel() != 1:
        return (
            f"the loss has the shape {list(loss.shape)}: return its mean from training_step, as loss.mean()"
        )
    if not loss.requires_grad:
        return (
            "the loss has no gradient: training_step detached it, computed it under torch.no_grad, or from nothing "
            "that requires gradients"
        )
    return None
