"""What needs torch_xla, which goes with another torch: `make test-xla` runs it in an environment of its own."""

import os
from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch_xla") else ["test_*.py"]

# Compiling takes most of the time here, and half as much without LLVM's optimizations: what is tried is
# which programs there are, and not how fast they run. `stratagem conformance` compiles as users do.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
