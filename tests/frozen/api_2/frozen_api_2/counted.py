"""An extension that wraps what answers the hook `reduce`."""

from stratagem import CollectivesWrapper, hookimpl


class CountedCollectives(CollectivesWrapper):
    count = 0

    def all_reduce(self, tensor, op="mean"):
        self.count += 1
        return super().all_reduce(tensor, op)

    def close(self, failed=False):
        if self.rank == 0:
            print(f"counted {self.count > 0}", flush=True)
        super().close(failed)


class Counted:
    @hookimpl(wrapper=True)
    def reduce(self, request):
        return CountedCollectives((yield))
