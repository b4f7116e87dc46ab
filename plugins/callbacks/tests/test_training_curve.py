import importlib.util
import struct

import pytest
from stratagem_callbacks import TrainingCurve, training_curve
from stratagem_trainer.loggers import CSVLogger, Row

from stratagem.errors import ConfigError, UsageError

HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
needs_matplotlib = pytest.mark.skipif(not HAS_MATPLOTLIB, reason="matplotlib isn't installed")


@pytest.fixture
def without_matplotlib(monkeypatch):
    monkeypatch.setattr(training_curve, "find_spec", lambda name: None)


def log(folder, *rows):
    logger = CSVLogger()
    logger.open(str(folder), {})
    logger.write([Row(step, 0, values) for step, values in rows])
    return logger


def size(picture):
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


@needs_matplotlib
def test_it_draws_what_was_logged_also_what_is_still_buffered(make_trainer, tmp_path):
    rows = [(step, {"train_loss": 1 / step}) for step in range(1, 101)]
    logger = log(tmp_path, *rows, (100, {"val_loss": 0.1}), (101, {"val_acc": 0.9, "lr": 0.1}))
    trainer = make_trainer(TrainingCurve(), loggers=[logger])
    trainer.call("on_end", "fit")
    three = size(tmp_path / "curves.png")
    logger.close()
    (tmp_path / "one").mkdir()
    log(tmp_path / "one", (1, {"acc": 0.5}), (2, {"acc": float("nan")})).close()
    make_trainer(TrainingCurve("a.png"), run_dir=str(tmp_path / "one")).call("on_end", "fit")
    # A panel for losses, one for accuracy, one for the learning rate.
    assert three[0] == 3 * size(tmp_path / "one" / "a.png")[0]


@needs_matplotlib
def test_panels_go_by_what_is_measured():
    from stratagem_callbacks.curves import _arrange

    names = ["lr", "val_loss", "train_loss", "val/acc", "train/acc", "loss_aux"]
    panels = _arrange(dict.fromkeys(names))
    assert panels == {
        "loss": ["loss_aux", "train_loss", "val_loss"],
        "acc": ["train/acc", "val/acc"],
        "lr": ["lr"],
    }
    many = _arrange(dict.fromkeys([*"abcdefg", "loss"]))
    assert list(many) == ["loss", "a", "b", "other metrics"]
    assert many["other metrics"] == list("cdefg")


@needs_matplotlib
@pytest.mark.parametrize("content", ["", "step,epoch\n", "step,epoch,loss\n1,0,nan\n"])
def test_nothing_to_draw_makes_no_picture(make_trainer, tmp_path, content):
    (tmp_path / "metrics.csv").write_text(content)
    make_trainer(TrainingCurve()).call("on_end", "fit")
    assert not (tmp_path / "curves.png").exists()


@needs_matplotlib
def test_only_rank_0_draws_and_only_after_a_fit(make_trainer, tmp_path):
    log(tmp_path, (1, {"loss": 1.0})).close()
    trainer = make_trainer(TrainingCurve())
    trainer.call("on_end", "validate")
    trainer.collectives.rank = 1
    trainer.call("on_end", "fit")
    make_trainer(TrainingCurve(), run_dir=None).call("on_end", "fit")
    assert not (tmp_path / "curves.png").exists()


def test_without_matplotlib_it_is_refused_when_asked_for(without_matplotlib):
    with pytest.raises(UsageError, match=r"pip install .*\[plot\]"):
        TrainingCurve()


def test_without_matplotlib_a_default_one_says_so_in_a_line(
    without_matplotlib, make_trainer, tmp_path, capsys
):
    log(tmp_path, (1, {"loss": 1.0})).close()
    make_trainer(TrainingCurve(required=False)).call("on_end", "fit")
    assert not (tmp_path / "curves.png").exists()
    said = capsys.readouterr().err
    assert "matplotlib isn't installed" in said
    assert said.count("\n") == 1


def test_nonsense_is_refused():
    with pytest.raises(ConfigError, match=r"'a/b\.png'"):
        TrainingCurve("a/b.png", required=False)
