"""Print docs/guides/module-hooks.md: `make hooks` runs this. The source is stratagem_trainer.stage.hooks."""

from __future__ import annotations

from stratagem_trainer.module.hook_names import ELSEWHERE
from stratagem_trainer.stage.hooks import TABLE, Hook

INTRODUCTION = """# Hooks of modules and callbacks

What a `Module` and a `Callback` may override, in the order in which the first call of each comes in a fit (those of a
test and a prediction come in the same places as a validation's). Every hook is called on every rank. At each,
callbacks come first, those with a higher `order` last, and the module after them; only at `on_train_epoch_end` the
module comes first, since callbacks such as `ModelCheckpoint` act on what it logs there. A callback's method gets the
trainer and the module before what is listed. A hook that nobody overrides costs nothing, and a method that takes
other arguments than its hook is called with is refused before the first batch. A test of stratagem-trainer records
every call and holds it against this order.

| hook | gets | of | when |
| --- | --- | --- | --- |
"""

NOTES = """
- `prepare_data` runs in one process per node, while the others wait: leave files on disk, and nothing in the module.
- `setup` and `configure_model` may use `self.trainer`. `teardown` isn't called after an error; `on_exception` is.
- `configure_callbacks` returns callbacks, which go in the place of the trainer's of the same class.
- `on_train_batch_start` may return -1, on all ranks alike, for the first batch of an optimizer step: the epoch ends
  there, with its validation, if it had a batch.
- Of several loaders in an evaluation, steps and hooks of batches get the index as `dataloader_idx`, where they take
  it by this name; a step must, as `validation_step(self, batch, batch_idx, dataloader_idx=0)`.
- `on_before_backward` sees the loss as `training_step` returned it, before it is divided by the accumulated batches.
  A strategy that splits micro-batches (dp, ddp2, pipeline) has no loss of the whole batch there, and says so.
- In `on_before_optimizer_step` gradients are unscaled, reduced over ranks and not clipped yet; under a strategy whose
  engine keeps them (DeepSpeed), or shards them, a rank sees its own part. An optimizer that evaluates the loss itself
  (LBFGS) has none at that moment. With several optimizers each gets its own call.
- `optimizer_step`, `configure_gradient_clipping`, `optimizer_zero_grad` and `lr_scheduler_step` are called in the
  place of what the loop does, and their own versions in `Module` do just that: [modules](modules.md). Strategies
  without the feature `optimizer_hooks` refuse the first three before anything starts; so does manual optimization.
- Batches pass through `on_before_batch_transfer` and its siblings as loaders are read, in every stage.
- In manual optimization `manual_backward`, and `step` and `zero_grad` of `self.optimizers()`, call the hooks around
  them.

## Not here

A module that defines one of these is refused by name, with what does the same:

| method | instead |
| --- | --- |
"""


def page() -> str:
    """Return the page."""
    rows = "".join(
        f"| `{hook.name}` | {_arguments(hook)} | {_OWNERS[hook.owners]} | {hook.when} |\n" for hook in TABLE
    )
    return (
        INTRODUCTION
        + rows
        + NOTES
        + "".join(f"| `{name}` | {instead} |\n" for name, instead in sorted(ELSEWHERE.items()))
    )


_OWNERS = {"both": "both", "module": "modules", "callback": "callbacks"}


def _arguments(hook: Hook) -> str:
    return ", ".join(f"`{name}`" for name in hook.arguments)


if __name__ == "__main__":
    print(page(), end="")
