"""All that a plugin may import from core beside the names of `stratagem` and `stratagem.errors`.

- `tensors`: tensors in batches and in gradients: moving, taking apart, joining.
- `construction`: modules that are constructed without memory, and materialized where their values are wanted.
- `units`: policies that name modules to be wrapped, sharded or recomputed one by one.
- `shards`: shards of parameters: kept between runs, read within a step, cut out of whole tensors.
- `states`: states of modules and optimizers by name, for checkpoints.
- `torch_private`: what torch keeps private and strategies need: a module's own tensors, hooks, counts of writes.
- `collectives`: for strategies with collectives of their own.
- `environments`: for environments: the position of a process, and reading it from a launcher's variables.
- `loops`: for training loops: losses, data shared among ranks, random numbers.
- `processes`: for launchers, and for what outlives a process: stores, states kept for the next attempt.
- `runs`: from a configuration to a run: what the command line and the trainer are built on.
- `selection`: what a configuration's words mean, as far as it can be told without torch.
- `catalogue`: what the installed distributions offer.

Versioned with `API_VERSION`: docs/sdk.md lists every name with its signature, and a test compares them.
"""
