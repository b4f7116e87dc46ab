import importlib.util

import pytest
from stratagem_trainer.loggers import Row, TensorBoardLogger, library

from stratagem.errors import UsageError

HAS_TENSORBOARD = importlib.util.find_spec("tensorboard") is not None


def test_without_the_package_it_is_refused_with_what_to_type(monkeypatch):
    monkeypatch.setattr(library, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install tensorboard"):
        TensorBoardLogger()


@pytest.mark.skipif(not HAS_TENSORBOARD, reason="tensorboard isn't installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_what_was_written_less_what_a_killed_run_left(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for resumed_step, steps in ((0, (1, 2, 3)), (2, (3,))):
        logger = TensorBoardLogger()
        logger.open(str(tmp_path), {"model": {"hidden": 8}}, resumed_step)
        logger.write([Row(step, 0, {"loss": step + resumed_step / 10}) for step in steps])
        logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    read = [(event.step, round(event.value, 3)) for event in events.Scalars("loss")]
    assert read == [(1, 1.0), (2, 2.0), (3, 3.2)]
    assert "epoch" in events.Tags()["scalars"]
