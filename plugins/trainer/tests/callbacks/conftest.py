import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("fake_trainer", Path(__file__).with_name("fake_trainer.py"))
_fake_trainer = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_fake_trainer)


@pytest.fixture
def make_trainer(tmp_path):
    """Make a FakeTrainer with these callbacks, in `tmp_path` unless told otherwise."""

    def make(*callbacks, **attributes):
        attributes.setdefault("run_dir", str(tmp_path))
        return _fake_trainer.FakeTrainer(callbacks=list(callbacks), **attributes)

    return make
