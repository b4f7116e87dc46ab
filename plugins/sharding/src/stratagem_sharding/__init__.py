"""Building blocks for sharding strategies, on top of core. Import its modules one by one.

- `deferring`, `deferred_init`, `filling`: construct modules without memory, and materialize their values where they
  are needed, whole or sharded.
- `wrap_policy`, `unit_dtypes`: policies that select the modules to wrap, shard or recompute.
- `kept_shards`, `shards`, `local_step`, `module_snapshot`, `used_parameter`: keep shards of parameters between runs,
  cut them out of whole tensors, step them, and restore modules to what they were before.
- `optimizer_trial`, `optimizer_values`, `part_of_optimizer`: find out whether an optimizer can step shards, share
  optimizer state that only some ranks have, and build an optimizer of one rank's parameters.
- `chunks`, `part_of_batch`, `batch_size`: split a batch into chunks, merge their outputs and logs, refuse collectives
  within a chunk, and count the samples of a batch.
- `buckets`, `equal_buffers`, `replicated`, `untrained_replica`, `meshes`: send many tensors in few messages, give all
  ranks rank 0's buffers, and prepare modules without an optimizer.
- `gradient_tracker`, `exchange`: track which gradients are averaged over ranks, and exchange short messages that some
  ranks may never send.
- `traffic`: observe every collective of this process and its size in bytes.
- `torch_private`: the private parts of torch that strategies need, such as a module's own tensors and tensor hooks.
"""
