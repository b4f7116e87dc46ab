"""What `fairscale_private` uses of FairScale is there, in the version that the plugin names."""

from __future__ import annotations

import inspect

import pytest
from stratagem_fairscale.plugin import VERSION

fairscale = pytest.importorskip("fairscale", reason="stratagem-fairscale[engine] brings it")


def test_the_version_is_the_one_that_was_read() -> None:
    assert fairscale.__version__ == VERSION


def test_private_names_are_there() -> None:
    from fairscale.nn import ShardedDataParallel
    from fairscale.nn.pipe.pipeline import Pipeline
    from fairscale.optim import OSS

    used = {
        OSS: (
            "_clear_cache",
            "_param_to_rank",
            "_partition_parameters",
            "_per_device_params",
            "_setup_flat_buffers",
            "buckets",
        ),
        ShardedDataParallel: (
            "_all_params",
            "_bucket_flush_callback_set",
            "_bucket_list",
            "_clear_counters",
            "_detect_train_change",
            "_flush_reduce_calls",
            "_get_reduce_fn",
            "_grad_hooks",
            "_grad_to_be_reduced",
            "_setup_bucket_strategy",
            "_sharded_optimizers",
            "_trainable_params",
        ),
        Pipeline: ("in_queues", "out_queues"),
    }
    for kind, names in used.items():
        source = inspect.getsource(kind)
        assert not [name for name in names if name not in source]


def test_pipe_still_needs_its_threads_ended() -> None:
    from fairscale.nn.pipe.pipeline import Pipeline

    # Where it ends them otherwise, `end_workers` may go.
    assert "join_workers" in inspect.getsource(Pipeline.__del__)
