"""The names that a plugin may import from core, in addition to those of `stratagem` and `stratagem.errors`.

- `tensors`: tensors in batches: moving them, and finding them in containers.
- `shards`: how ranks divide parameters, and whether copies are equal.
- `states`: states of modules and optimizers by name, for checkpoints.
- `torch_private`: private names of torch for tensors and stores: hooks, counts of writes, a group's store.
- `collectives`: for strategies with their own collectives.
- `axes`: for axes, which a strategy composes on one mesh of ranks.
- `environments`: for environments: the position of a process, and reading it from a launcher's variables.
- `loops`: for training loops: losses, data divided among ranks, random numbers.
- `processes`: for launchers: stores, start methods.
- `lazy`: for the package of a plugin: names that are imported when they are first used.
- `runs`: from a configuration to a run: the base of the command line and the trainer.
- `selection`: the meaning of a configuration's values, as far as it is known without torch.
- `catalogue`: the components of the installed distributions.

Versioned with `API_VERSION`: docs/sdk.md lists every name with its signature, and a test compares them.
"""
