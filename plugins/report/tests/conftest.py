import pytest
from chromium import browser  # noqa: F401
from command_line import folder, net, refused  # noqa: F401
from records import write_rank


@pytest.fixture
def rank_file():
    return write_rank
