"""An extension: wraps the hook `reduce`, whatever strategy answers it."""

from stratagem import CollectivesWrapper, hookimpl


class Traffic:
    """Counts the run's collectives, and prints the sum at its end."""

    @hookimpl(wrapper=True)
    def reduce(self, request):
        collectives = yield
        return CountedCollectives(collectives)


class CountedCollectives(CollectivesWrapper):
    """Hands every call on to `inner`.

    Attributes:
        calls: how many collectives there were.
        size_bytes: how many bytes of tensors this rank gave to them.
    """

    def __init__(self, inner):
        super().__init__(inner)
        self.calls = 0
        self.size_bytes = 0

    def _count(self, value=None):
        self.calls += 1
        self.size_bytes += getattr(value, "nbytes", 0)

    def all_reduce(self, tensor, op="mean"):
        self._count(tensor)
        return super().all_reduce(tensor, op)

    def all_gather(self, tensor, sync_grads=False):
        self._count(tensor)
        return super().all_gather(tensor, sync_grads)

    def broadcast(self, value, src=0):
        self._count(value)
        return super().broadcast(value, src)

    def gather_objects(self, value):
        self._count()
        return super().gather_objects(value)

    def barrier(self, name=None):
        self._count()
        super().barrier(name)

    def close(self, failed=False):
        if self.rank == 0:
            print(f"traffic: {self.calls} collectives, {self.size_bytes / 1024:.1f} KiB per rank", flush=True)
        super().close(failed)
