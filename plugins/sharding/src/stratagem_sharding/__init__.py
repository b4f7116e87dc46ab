"""A library for strategies, in addition to core; its modules are imported one by one.

- `deferring`, `deferred_init`, `filling`: modules that are constructed without memory, and materialized where their
  values are wanted, also as parts.
- `wrap_policy`, `unit_dtypes`: policies that name modules to be wrapped, sharded or recomputed one by one.
- `kept_shards`, `shards`, `local_step`, `module_snapshot`, `used_parameter`: shards of parameters: kept between runs,
  cut out of whole tensors, stepped; modules as they were before.
- `optimizer_trial`, `optimizer_values`, `part_of_optimizer`: whether an optimizer can step shards; what ranks alone
  have of its state; an optimizer of a rank's part of the parameters.
- `chunks`, `part_of_batch`, `batch_size`: a batch in parts: splitting, merging, and what parts log; collectives that
  would miss the other parts; how many samples a batch has.
- `buckets`, `equal_buffers`, `replicated`, `untrained_replica`, `meshes`: many tensors in few messages, buffers that
  are rank 0's, modules without an optimizer.
- `gradient_tracker`, `exchange`: which gradients are averages over ranks; short messages between ranks of which some
  may never come.
- `traffic`: every collective of this process, and its bytes.
- `torch_private`: what torch keeps private and strategies need: a module's own tensors, hooks of tensors.
"""
