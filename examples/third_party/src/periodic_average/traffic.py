"""An extension: wraps the hook `reduce`, whatever strategy answers it."""

from stratagem import Collectives, hookimpl


class Traffic:
    """Counts the run's collectives, and prints the sum at its end."""

    @hookimpl(wrapper=True)
    def reduce(self, request):
        collectives = yield
        return CountedCollectives(collectives)


class CountedCollectives(Collectives):
    """Hands every call on to `inner`.

    Attributes:
        calls: how many collectives there were.
        size_bytes: how many bytes of tensors this rank gave to them.
    """

    def __init__(self, inner):
        self.inner = inner
        self.rank, self.local_rank, self.node_rank = inner.rank, inner.local_rank, inner.node_rank
        self.world_size, self.device = inner.world_size, inner.device
        self.calls = 0
        self.size_bytes = 0

    def _count(self, value=None):
        self.calls += 1
        self.size_bytes += getattr(value, "nbytes", 0)

    @property
    def process_group(self):
        return self.inner.process_group

    def all_reduce(self, tensor, op="mean"):
        self._count(tensor)
        return self.inner.all_reduce(tensor, op)

    def all_gather(self, tensor, sync_grads=False):
        self._count(tensor)
        return self.inner.all_gather(tensor, sync_grads)

    def broadcast(self, value, src=0):
        self._count(value)
        return self.inner.broadcast(value, src)

    def gather_objects(self, value):
        self._count()
        return self.inner.gather_objects(value)

    def barrier(self, name=None):
        self._count()
        self.inner.barrier(name)

    def close(self, failed=False):
        if self.rank == 0:
            print(f"traffic: {self.calls} collectives, {self.size_bytes / 1024:.1f} KiB per rank", flush=True)
        self.inner.close(failed)
