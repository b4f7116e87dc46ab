"""All that a plugin may import from core in addition to the names of `stratagem` and `stratagem.errors`.

- `tensors`: tensors in batches: moving, taking apart.
- `shards`: in which ways ranks share parameters out, and whether copies are equal.
- `states`: states of modules and optimizers by name, for checkpoints.
- `torch_private`: what torch keeps private of tensors and stores: hooks, counts of writes, a group's store.
- `collectives`: for strategies with their own collectives.
- `axes`: for axes, which a strategy composes on one mesh of ranks.
- `environments`: for environments: the position of a process, and reading it from a launcher's variables.
- `loops`: for training loops: losses, data shared among ranks, random numbers.
- `processes`: for launchers: stores, start methods.
- `lazy`: for the package of a plugin: names that are imported when they are first used.
- `runs`: from a configuration to a run: what the command line and the trainer are built on.
- `selection`: the meaning of a configuration's values, as far as it is known without torch.
- `catalogue`: what the installed distributions offer.

Versioned with `API_VERSION`: docs/sdk.md lists every name with its signature, and a test compares them.
"""
