import pytest
import torch
from command_line import folder, refused  # noqa: F401
from forked_ranks import fork_host, ranks  # noqa: F401
from stratagem_checkpoint import DirectoryCheckpointer

from stratagem import LocalCollectives


@pytest.fixture
def checkpointer():
    """A checkpointer of one process."""
    return DirectoryCheckpointer(LocalCollectives(torch.device("cpu")))
