"""Print docs/guides/module-hooks.md: `make hooks` runs this. The source is stratagem_trainer.stage.hooks."""

from __future__ import annotations

from stratagem_trainer.module.hook_names import ELSEWHERE
from stratagem_trainer.stage.hooks import TABLE, Hook

INTRODUCTION = """# Hooks of modules and callbacks

Override a hook in your `Module` or `Callback`:

```py
class Net(stratagem.Module):
    def on_train_epoch_end(self):
        self.print(f"epoch {self.current_epoch} is done")
```

The table lists all hooks in the order of their first calls in a fit. Hooks of a test and a prediction come in
the same places as those of a validation.

- Every hook is called on every rank.
- Callbacks are called first, in increasing `order`, then the module. At `on_train_epoch_end`, the module is
  called first, because callbacks such as `ModelCheckpoint` use what it logs there.
- A callback's method gets the trainer and the module before the listed arguments.
- A hook that isn't overridden costs nothing. A method with other arguments than its hook is refused before
  the first batch.

A test of stratagem-trainer records every call and compares it with this order.

| hook | arguments | of | when |
| --- | --- | --- | --- |
"""

NOTES = """
- `prepare_data` runs in one process per node, while the others wait: write files to disk, and store nothing
  in the module.
- `setup` and `configure_model` may use `self.trainer`. `teardown` isn't called after an error; `on_exception`
  is.
- `configure_callbacks` returns callbacks, which replace those of the trainer of the same class.
- `on_train_batch_start` may return -1 for the first batch of an optimizer step, on all ranks: the epoch then
  ends there, with its validation if it had a batch.
- With several loaders in an evaluation, steps and batch hooks get the index of the loader if they have a
  parameter `dataloader_idx`. A step must have it, as in `validation_step(self, batch, batch_idx,
  dataloader_idx=0)`.
- `on_before_backward` gets the loss as `training_step` returned it, before it is divided by the number of
  accumulated batches. A strategy that splits micro-batches (dp, ddp2, pipeline) has no loss of the whole
  batch there, and reports that.
- In `on_before_optimizer_step`, gradients are unscaled, reduced over ranks and not clipped yet. Under a
  strategy whose engine keeps them (DeepSpeed), or shards them, a rank sees its own shard. With an optimizer
  that evaluates the loss itself (LBFGS), there are no gradients yet. With several optimizers, there is one
  call for each.
- `optimizer_step`, `configure_gradient_clipping`, `optimizer_zero_grad` and `lr_scheduler_step` replace what
  the loop does; the versions in `Module` do the same as the loop: [modules](modules.md). Strategies without
  the feature `optimizer_hooks` refuse the first three before the run starts; so does manual optimization.
- Batches pass through `on_before_batch_transfer` and the other transfer hooks when loaders are read, in every
  stage.
- In manual optimization, `manual_backward`, and `step` and `zero_grad` of `self.optimizers()`, call the hooks
  around them.

## Unsupported hooks

A module that defines one of these is refused, with the replacement:

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
