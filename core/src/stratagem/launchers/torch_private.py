"""Private names of torch that core's launchers need, each with the reason. Importing this doesn't import torch.

tests/core/launchers/test_torch_private.py fails when torch changes it, or has a public way.
"""

COMPILER = "torch._dynamo"
"""The first step of an optimizer imports it, which takes seconds. The public torch.compiler doesn't import it."""
