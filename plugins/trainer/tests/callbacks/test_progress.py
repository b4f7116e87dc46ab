import io
import pickle
import re

import pytest
from rich.console import Console
from stratagem_trainer.callbacks import ProgressBar
from stratagem_trainer.callbacks.live_bars import Rate
from stratagem_trainer.callbacks.progress_text import duration_text

from stratagem.errors import ConfigError

ALWAYS = 1e9


def terminal(width=100):
    return Console(file=io.StringIO(), force_terminal=True, width=width, _environ={"TERM": "xterm"})


def plain(text):
    """What a terminal gets, less its control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def untimed(text):
    return re.sub(r"\b[\d.]+ s\b", "T", text)


def test_a_terminal_shows_epoch_batches_rate_metrics_and_validation(make_trainer):
    console = terminal()
    trainer = make_trainer(ProgressBar(ALWAYS, console), max_epochs=2)
    trainer.fit(
        {"train_loss": 0.5, "val_loss": 0.25, "hidden": 7.0}, {"train_loss": 0.125, "val_loss": 0.0625}
    )
    shown = plain(console.file.getvalue())
    assert "epoch 1/2" in shown
    assert re.search(r"2/2 [\d.]+ it/s .*train_loss 0.5", shown)
    assert re.search(r"validate .* 1/1", shown)
    assert re.search(r"epoch 1/2  step 2  [\d.]+ s  train_loss 0.5  val_loss 0.25\n", shown)
    assert re.search(r"epoch 2/2  step 4  [\d.]+ s  train_loss 0.125  val_loss 0.0625\n", shown)
    assert "hidden" not in shown


def test_the_terminal_is_given_back_after_an_end_and_after_an_exception(make_trainer, capsys):
    for ending in ("on_end", "on_exception"):
        console = terminal()
        bar = ProgressBar(ALWAYS, console)
        trainer = make_trainer(bar)
        trainer.call("on_start", "fit")
        trainer.epoch(0, {"train_loss": 0.5})
        print("said in between")
        trainer.call(ending, "fit" if ending == "on_end" else KeyboardInterrupt())
        shown = console.file.getvalue()
        # What was printed meanwhile came out above the bar.
        assert "said in between" in shown
        assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")
        print("afterwards")
        assert capsys.readouterr().out == "afterwards\n"
        # A bar that an exception ended stays to be seen.
        last = shown[shown.rfind("epoch 1/10") :]
        assert "2/2" in plain(last)
        assert ("\x1b[2K" in last) == (ending == "on_end")
        # And nothing more is drawn.
        trainer.call("on_train_batch_end", None, None, 0)
        assert console.file.getvalue() == shown


def test_the_cursor_is_visible_all_the_while_so_that_a_kill_leaves_it(make_trainer):
    console = terminal()
    trainer = make_trainer(ProgressBar(ALWAYS, console))
    trainer.call("on_start", "fit")
    trainer.epoch(0)
    shown = console.file.getvalue()
    trainer.call("on_end", "fit")
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")


def test_no_line_is_wider_than_a_narrow_terminal(make_trainer):
    console = terminal(width=40)
    trainer = make_trainer(ProgressBar(ALWAYS, console), max_epochs=None, num_train_batches=50)
    trainer.call("on_start", "fit")
    trainer.current_epoch = 0
    trainer.call("on_train_epoch_start")
    trainer.callback_metrics["train_loss"] = 0.123456
    for index in range(3):
        trainer.call("on_train_batch_end", None, None, index)
    for line in plain(console.file.getvalue()).replace("\r", "\n").splitlines():
        assert len(line) <= 40
    trainer.call("on_end", "fit")


def test_an_unknown_length_and_steps_as_the_goal(make_trainer):
    console = terminal()
    trainer = make_trainer(ProgressBar(ALWAYS, console), max_epochs=None, max_steps=9)
    trainer.call("on_start", "fit")
    trainer.call("on_train_epoch_start")
    trainer.num_train_batches, trainer.global_step = None, 3
    trainer.call("on_train_batch_end", None, None, 6)
    shown = plain(console.file.getvalue())
    trainer.call("on_end", "fit")
    assert re.search(r"epoch 1, step 3/9 .* 7 ", shown)


def test_a_file_gets_one_plain_line_per_epoch(make_trainer):
    file = io.StringIO()
    trainer = make_trainer(ProgressBar(ALWAYS, Console(file=file, width=20)), max_epochs=2)
    trainer.fit({"train_loss": 0.5, "val_loss": 0.25}, {"train_loss": 0.125, "val_loss": 1e-7})
    assert untimed(file.getvalue()) == (
        "epoch 1/2  step 2  T  train_loss 0.5  val_loss 0.25\n"
        "epoch 2/2  step 4  T  train_loss 0.125  val_loss 1e-07\n"
    )


def test_a_fit_that_stops_within_an_epoch_has_its_line_too(make_trainer):
    file = io.StringIO()
    trainer = make_trainer(ProgressBar(ALWAYS, Console(file=file)), max_steps=1)
    trainer.call("on_start", "fit")
    trainer.call("on_train_epoch_start")
    trainer.global_step = 1
    trainer.callback_metrics = {"train_loss": 0.5}
    trainer.call("on_train_batch_end", None, None, 0)
    trainer.call("on_end", "fit")
    assert untimed(file.getvalue()) == "epoch 1/10  step 1  T  train_loss 0.5\n"


def test_an_evaluation_on_its_own_writes_one_line(make_trainer):
    file = io.StringIO()
    trainer = make_trainer(ProgressBar(ALWAYS, Console(file=file)), shown=())
    trainer.call("on_start", "validate")
    trainer.validate({"val_acc": 0.975})
    trainer.call("on_end", "validate")
    assert untimed(file.getvalue()) == "validate  1 batch  T  val_acc 0.975\n"


def test_standard_output_without_a_terminal(make_trainer, capsys):
    make_trainer(ProgressBar()).fit({"train_loss": 0.5})
    assert untimed(capsys.readouterr().out) == "epoch 1/10  step 2  T  train_loss 0.5\n"


def test_other_ranks_show_nothing_and_import_nothing(make_trainer, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "rich.console", None)
    trainer = make_trainer(bar := ProgressBar(ALWAYS))
    trainer.collectives.rank = 1
    trainer.fit({"train_loss": 0.5, "val_loss": 1.0})
    assert bar._screen is None


def test_metrics_are_asked_for_only_when_something_is_drawn(make_trainer, monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr("stratagem_trainer.callbacks.progress.perf_counter", lambda: now_s[0])
    trainer = make_trainer(ProgressBar(4.0, terminal()), num_train_batches=100_000)
    asked = []
    trainer.progress_metrics = lambda: asked.append(1) or {}
    trainer.call("on_start", "fit")
    trainer.call("on_train_epoch_start")
    (bar,) = trainer.callbacks
    for index in range(1000):
        bar.on_train_batch_end(trainer, None, None, None, index)
        now_s[0] += 2**-7
    # 1000 batches of 1/128 s take 7.8 s, in which four redrawings per second are due 32 times.
    assert len(asked) == 32
    trainer.call("on_end", "fit")


def test_epochs_that_fly_by_do_not_flood_a_terminal(make_trainer):
    console = terminal()
    make_trainer(ProgressBar(0.001, console), max_epochs=50).fit(*({"train_loss": 0.5} for _ in range(50)))
    assert re.findall(r"epoch (\d+)/50  step", plain(console.file.getvalue())) == ["1", "50"]


def test_it_travels_to_workers(make_trainer):
    bar = ProgressBar(ALWAYS, terminal())
    trainer = make_trainer(bar)
    trainer.call("on_start", "fit")
    copy = pickle.loads(pickle.dumps(bar))
    trainer.call("on_end", "fit")
    copy.on_train_batch_end(trainer, None, None, None, 0)


def test_the_rate_is_a_recent_one():
    rate = Rate(looks=3)
    assert rate.look(0.0, 0) is None
    assert rate.look(1.0, 10) == 10.0
    assert rate.look(2.0, 30) == 15.0
    assert rate.look(3.0, 60) == 25.0
    rate.restart(100.0, 60)
    assert rate.look(101.0, 65) == 5.0


def test_durations():
    assert [duration_text(seconds) for seconds in (0.04, 59.94, 187, 3725)] == [
        "0.0 s",
        "59.9 s",
        "3:07",
        "1:02:05",
    ]


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_nonsense_is_refused(rate):
    with pytest.raises(ConfigError, match="refresh_per_s"):
        ProgressBar(rate)
