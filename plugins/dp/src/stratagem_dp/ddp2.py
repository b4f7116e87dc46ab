"""`DDP2Strategy`: dp within each node, ddp between nodes."""

from __future__ import annotations

from stratagem_ddp import DDPStrategy

from stratagem import Capabilities, Prepared, SetupRequest, hookimpl
from stratagem_dp.strategy import splitting


class DDP2Strategy(DDPStrategy):
    """One process per node, which splits its batches over the node's devices; gradients are averaged over nodes.

    Takes what `DDPStrategy` takes. A batch of the loader is a node's: each of its devices gets a part.
    """

    capabilities = Capabilities(processes="per-node")

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a replica per node that splits what it is called with."""
        prepared: Prepared = super().setup(splitting(request))
        prepared.supports_inference_mode = False  # as SplitPrepared says
        return prepared
