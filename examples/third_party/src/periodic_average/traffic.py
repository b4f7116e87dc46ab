"""An extension: wraps the hook `reduce`, whatever strategy answers it."""

from stratagem_sharding.traffic import watch_traffic

from stratagem import CollectivesWrapper, hookimpl


class Traffic:
    """Counts what the run communicates, engines' own reductions too, and prints the sums at its end."""

    @hookimpl(wrapper=True)
    def reduce(self, request):
        collectives = yield
        return CountedCollectives(collectives)


class CountedCollectives(CollectivesWrapper):
    """Hands every call on to `inner`, and counts from its birth to `close`.

    Attributes:
        calls: how many collectives there were, by name.
        size_bytes: the sizes of their messages, by name.
    """

    def __init__(self, inner):
        super().__init__(inner)
        self.calls = {}
        self.size_bytes = {}
        self._stop = watch_traffic(self._count)

    def _count(self, name, size_bytes):
        self.calls[name] = self.calls.get(name, 0) + 1
        self.size_bytes[name] = self.size_bytes.get(name, 0) + size_bytes

    def close(self, failed=False):
        self._stop()
        if self.rank == 0:
            for name, calls in sorted(self.calls.items()):
                print(f"traffic: {calls} {name}, {self.size_bytes[name] / 1024:.1f} KiB", flush=True)
        super().close(failed)
