"""What needs torch_xla, which goes with another torch: `make test-xla` runs it in an environment of its own."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch_xla") else ["test_*.py"]
