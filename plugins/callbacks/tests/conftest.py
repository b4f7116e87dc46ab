import pytest
from fake_trainer import FakeTrainer


@pytest.fixture
def make_trainer(tmp_path):
    """Make a FakeTrainer with these callbacks, in `tmp_path` unless `run_dir` is given."""

    def make(*callbacks, **attributes):
        attributes.setdefault("run_dir", str(tmp_path))
        return FakeTrainer(callbacks=list(callbacks), **attributes)

    return make
