import pytest
from stratagem_trainer.callbacks import ModelCheckpoint


def test_what_a_kill_leaves_between_save_and_delete_goes_with_the_next_run(
    make_trainer, tmp_path, monkeypatch
):
    trainer = make_trainer(ModelCheckpoint())
    trainer.fit({})
    (outdone,) = (path for path in (tmp_path / "checkpoints").iterdir() if not path.is_symlink())
    killed = make_trainer(ModelCheckpoint())
    killed.restore(str(outdone))
    monkeypatch.setattr(killed, "remove_checkpoint", lambda path: (_ for _ in ()).throw(SystemExit(path)))
    killed.current_epoch = 1
    killed.call("on_start", "fit")
    with pytest.raises(SystemExit, match=outdone.name):
        killed.epoch(1)
    assert len([path for path in (tmp_path / "checkpoints").iterdir() if not path.is_symlink()]) == 2
    (tmp_path / "precious").mkdir()
    resumed = make_trainer(ModelCheckpoint())
    resumed.restore(str(tmp_path / "checkpoints" / "last"))
    resumed.call("on_start", "fit")
    assert not outdone.exists()
    assert (tmp_path / "checkpoints" / "last").exists()
    # A checkpoint from elsewhere may name what it likes.
    for elsewhere in (str(tmp_path / "precious"), f"{tmp_path}/checkpoints/../precious", "precious"):
        (foreign := resumed.callbacks[0]).load_state_dict({**foreign.state_dict(), "outdone": [elsewhere]})
        resumed.call("on_start", "fit")
    assert resumed.events == [("removed", outdone.name)]
