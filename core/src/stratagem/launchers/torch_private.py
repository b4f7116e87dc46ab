"""What core's launchers use of torch that torch keeps private: all of it, with the reason. Imports no torch.

tests/core/launchers/test_torch_private.py fails when torch changes it, or has a public way.
"""

COMPILER = "torch._dynamo"
"""The first step of an optimizer imports it, for seconds, and torch.compiler, which is public, doesn't."""
