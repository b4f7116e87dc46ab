"""Context parallelism: each rank of a group computes its shard of the sequence, and attention sees all of it."""
