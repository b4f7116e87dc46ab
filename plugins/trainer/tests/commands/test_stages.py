"""fit, validate, test and predict, and what they refuse before anything is written."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from forged import rewrite_manifest, rewrite_state
from stratagem_cli.main import main

HERE = ["--accelerator", "cpu", "--devices", "1"]
QUIET = ["--set", "trainer.enable_progress_bar=false"]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fitted(net, capfd):
    """A finished fit's folder, and what it printed."""
    assert main(["fit", "net.py:Net", *HERE, *QUIET, "--max-epochs", "2", "--run-dir", "out"]) == 0
    return net.parent / "out", capfd.readouterr().out


def checkpoint_in(run_dir: Path) -> Path:
    return next(path for path in sorted((run_dir / "checkpoints").iterdir()) if path.name != "last")


def test_fit_prints_metrics_and_the_folder(fitted):
    _, out = fitted
    lines = out.splitlines()
    assert lines[-1] == "run folder  out"
    values = dict(line.split() for line in lines[:-1])
    assert {"train_loss", "val_loss"} <= set(values)
    assert all(float(value) >= 0 for value in values.values())


def test_the_saved_configuration_has_everything(fitted, net):
    run_dir, _ = fitted
    content = yaml.safe_load((run_dir / "config.yaml").read_text())
    assert content["target"] == f"{net}:Net"
    assert content["strategy"] == {"name": "auto"}
    assert (content["accelerator"], content["devices"], content["seed"]) == ("cpu", "1", 0)
    assert content["model"] == {"hidden": 4, "lr": 0.1, "name": "net"}
    assert content["trainer"]["max_epochs"] == 2
    assert content["trainer"]["enable_progress_bar"] is False
    assert content["trainer"]["accumulate_grad_batches"] == 1
    assert "run_dir" not in content


def test_printed_settings_are_those_that_a_fit_saves_and_nothing_runs(fitted, net, capfd):
    run_dir, _ = fitted
    assert main(["fit", "net.py:Net", *HERE, *QUIET, "--max-epochs", "2", "--print-config"]) == 0
    printed = capfd.readouterr().out
    assert printed == (run_dir / "config.yaml").read_text().partition("\n")[2]
    assert main(["test", "net.py:Net", "--set", "model.hiden=2", "--print-config"]) == 2
    assert "nearest: hidden" in capfd.readouterr().err
    assert not (net.parent / "runs").exists()


@pytest.mark.parametrize(
    ("flags", "extensions"),
    [
        (["--compile", "blocks"], ["hello", "activations_full", "compile_blocks"]),
        (["--activations", "offload"], ["hello", "activations_offload"]),
        (["--compile", "model", "--activations", "none"], ["hello", "compile_model"]),
        ([], ["hello", "activations_full"]),
    ],
)
def test_flags_of_blocks_replace_what_a_file_says(net, folder, flags, extensions, capsys):
    (folder / "some.yaml").write_text("extensions: [hello, activations_full]\n")
    assert main(["fit", "net.py:Net", "--config", "some.yaml", *flags, "--print-config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["extensions"] == extensions


def test_the_saved_configuration_of_a_run_that_went_on_begins_a_new_one(net, folder):
    words = [*HERE, *QUIET, "--max-steps", "1"]
    assert main(["fit", "net.py:Net", *words, "--ckpt-path", "auto", "--run-dir", "first"]) == 0
    assert main(["fit", "--config", "first/config.yaml", "--run-dir", "second"]) == 0
    assert (folder / "second" / "config.yaml").is_file()


def test_the_saved_configuration_repeats_the_run(net, folder, capfd):
    sets = [
        "model.hidden=5",
        "model.name=12",
        "trainer.log_every_n_steps=1",
        "strategy.precision_plugin=null",
    ]
    words = ["fit", "net.py:Net", *HERE, *QUIET, "--strategy", "single", "--seed", "3", "--max-steps", "3"]
    assert main([*words, *(word for text in sets for word in ("--set", text)), "--run-dir", "first"]) == 0
    first = capfd.readouterr().out
    os.chdir("..")  # wherever it is called from
    assert (
        main(["fit", "--config", str(folder / "first" / "config.yaml"), "--run-dir", str(folder / "second")])
        == 0
    )
    second = capfd.readouterr().out
    assert first.splitlines()[:-1] == second.splitlines()[:-1]
    saved = [(folder / name / "config.yaml").read_text() for name in ("first", "second")]
    assert saved[0] == saved[1]
    assert yaml.safe_load(saved[0])["model"] == {"hidden": 5, "lr": 0.1, "name": "12"}


def test_validate_and_test_print_their_metrics(fitted, capfd):
    run_dir, out = fitted
    words = ["net.py:Net", *HERE, *QUIET, "--ckpt-path", str(checkpoint_in(run_dir))]
    assert main(["validate", *words]) == 0
    assert capfd.readouterr().out.split()[0] == "val_loss"
    assert main(["test", *words]) == 0
    name, value = capfd.readouterr().out.split()
    assert name == "test_loss"
    assert float(value) == pytest.approx(
        float(dict(line.split() for line in out.splitlines()[:-1])["val_loss"])
    )


def test_predict_keeps_arrays(net, folder, capfd):
    assert main(["predict", "net.py:Net", *HERE, *QUIET, "--output", "out.npz"]) == 0
    assert "predictions  float32 8×4\nwritten to out.npz\n" in capfd.readouterr().out
    with np.load(folder / "out.npz") as read:
        assert read["predictions"].shape == (8, 4)


FAKE_DEVICES = """
    import stratagem

    class pair(stratagem.Accelerator):
        name, count = "pair", 2

        def availability(self):
            return stratagem.Availability(self.count > 0, "2 devices" if self.count else "no driver")

        def device_count(self):
            return self.count

        def device(self, index):
            raise AssertionError("a refused run asks for no device")

    class none(pair):
        name, count = "none", 0
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit"], "TARGET is missing"),
        (["fit", "net.py:Nett"], "has no class 'Nett'; nearest: Net"),
        (["fit", "net.py:Plain", *HERE], "not from stratagem.Module"),
        (["fit", "net.py:Net", "--strategy", "dpp"], "no strategy is called 'dpp'; nearest: d"),
        (["fit", "net.py:Net", "--strategy", "horovod_x"], "no strategy is called 'horovod_x'"),
        (["fit", "net.py:Net", "--accelerator", "gpuu"], "no accelerator is called 'gpuu'"),
        (["fit", "net.py:Net", "--accelerator", "ddp"], "is now called strategy='ddp'"),
        (["fit", "net.py:Net", "--gpus", "2"], "gpus='2' is now called accelerator='cuda', devices='2'"),
        (
            ["fit", "net.py:Net", "--accelerator", "cpu", "--devices", "many"],
            "devices='many' can't be understood",
        ),
        (["fit", "net.py:Net", *HERE, "--strategy", "single", "--devices", "2"], "uses one device"),
        (
            ["fit", "net.py:Net", "--accelerator", "pair", "--devices", "3"],
            "but this machine has 2",
        ),
        (["fit", "net.py:Net", "--accelerator", "none"], "is not available here: no driver"),
        (["fit", "net.py:Net", *HERE, "--precision", "12"], "'12'"),
        (
            ["fit", "net.py:Net", *HERE, "--environment", "slrm"],
            "no environment is called 'slrm'; nearest: slurm",
        ),
        (["fit", "net.py:Net", *HERE, "--use", "no.such:Thing"], "can't be imported"),
        (
            ["fit", "net.py:Net", *HERE, "--set", "model.hiden=3"],
            "has no setting 'model.hiden'; nearest: hidden",
        ),
        (["fit", "net.py:Net", *HERE, "--set", "model.hidden=x"], "model.hidden='x' is of the wrong type"),
        (["fit", "net.py:Net", *HERE, "--set", "trainer.max_epoch=3"], "nearest: max_epochs"),
        (["fit", "net.py:Net", *HERE, "--set", "trainer.max_epochs=few"], "is of the wrong type"),
        (["fit", "net.py:Net", *HERE, "--set", "trainer.gradient_clip_val=-1"], "gradient_clip_val=-1"),
        (["fit", "net.py:Net", "--strategy", "ddp", "--set", "strategy.timeuot_s=3"], "'strategy.timeuot_s'"),
        (["fit", "net.py:Net", "--strategy", "ddp", "--set", "strategy.timeout_s=x"], "is of the wrong type"),
        (["fit", "net.py:Net", "--config", "none.yaml"], "can't be read"),
        (["fit", "net.py:Net", *HERE, "--ckpt-path", "none"], "no checkpoint at none"),
        (["fit", "net.py:Net", *HERE, "--ckpt-path", "."], "is not a checkpoint"),
        (["predict", "net.py:Net", *HERE, "--output", "x.csv"], "must end in .npz"),
    ],
)
def test_refused_with_one_sentence_and_nothing_written(net, folder, site, refused, words, message):
    site.offer("fake", *(f'"accelerator", "{name}", "fake_devices:{name}", ""' for name in ("pair", "none")))
    site.write("fake_devices", FAKE_DEVICES)
    assert message in refused(*words)
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["net.py"]


def test_a_target_that_doesnt_import_keeps_its_traceback(folder, refused):
    (folder / "failing.py").write_text("class Net: pass\nimport no_such_module\n")
    message = refused("fit", "failing.py:Net", *HERE)
    assert "can't be imported: ModuleNotFoundError: No module named 'no_such_module'" in message
    assert refused.everything.count("Traceback") == 1
    assert 'failing.py", line 2' in refused.everything


def test_callbacks_of_a_configuration(net, folder, capfd):
    (folder / "run.yaml").write_text(
        "trainer:\n  callbacks:\n  - class_path: stratagem.EarlyStopping\n    init_args: {monitor: val_loss}\n"
    )
    assert main(["fit", "net.py:Net", "--config", "run.yaml", *HERE, *QUIET, "--run-dir", "out"]) == 0
    saved = yaml.safe_load((folder / "out" / "config.yaml").read_text())["trainer"]["callbacks"]
    assert saved == [{"class_path": "stratagem.EarlyStopping", "init_args": {"monitor": "val_loss"}}]
    wrong = ["--set", "trainer.callbacks=[{class_path: stratagem.EarlyStopping, init_args: {monitr: x}}]"]
    assert main(["fit", "net.py:Net", *HERE, *wrong]) == 2
    assert "trainer.callbacks=" in capfd.readouterr().err


def damaged(checkpoint, how):
    if how == "truncated":
        largest = max(checkpoint.rglob("*.safetensors"), key=lambda path: path.stat().st_size)
        with largest.open("r+b") as file:
            file.truncate(largest.stat().st_size // 2)
        return
    if how == "flipped":
        file = checkpoint / "tensors-00000.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 64
        file.write_bytes(content)
    elif how == "state":
        rewrite_state(checkpoint, lambda state: state["progress"].update(epoch=1e300))
    else:
        number = {
            "newer": {"format_version": 999},
            "no ranks": {"world_size": -3},
            "nothing": {"files": None},
        }[how]
        rewrite_manifest(checkpoint, lambda manifest: manifest.update(number))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("truncated", "bytes"),
        ("newer", "999"),
        ("flipped", "aren't what was written"),
        ("state", "progress.epoch"),
        ("no ranks", "world_size"),
        ("nothing", "files"),
    ],
)
def test_a_damaged_checkpoint_is_refused(fitted, refused, how, said):
    checkpoint = checkpoint_in(fitted[0])
    damaged(checkpoint, how)
    message = refused(
        "fit", "net.py:Net", *HERE, *QUIET, "--ckpt-path", str(checkpoint), "--run-dir", "again"
    )
    assert checkpoint.name in message
    assert said in message
    assert not Path("again").exists()


def stratagem(*words, **environ):
    command = [
        sys.executable,
        "-c",
        "import sys; from stratagem_cli.main import main; sys.exit(main())",
        *words,
    ]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=240, env={**os.environ, **environ}
    )


TWO = ["--strategy", "ddp", "--accelerator", "cpu", "--devices", "2"]


def test_two_processes(net, folder):
    done = stratagem("fit", "net.py:Net", *TWO, "--run-dir", "out", "--set", "strategy.timeout_s=60")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "run folder  out"
    content = yaml.safe_load((folder / "out" / "config.yaml").read_text())
    options = {"timeout_s": 60.0, "start_method": "forkserver", "buffers": "equal"}
    assert content["strategy"] == {"name": "ddp", **options}
    assert "ddp" in done.stderr


def test_two_processes_refuse_in_one_sentence(net, folder):
    done = stratagem("fit", "net.py:Net", *TWO, "--set", "model.hiden=3")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("Error: Net has no setting 'model.hiden'")
    assert "Traceback" not in done.stderr
    assert not (folder / "runs").exists()


def test_a_failing_rank_is_named_after_its_traceback(net):
    net.write_text(
        net.read_text().replace(
            "loss = self._loss(batch)\n        self",
            "assert self.global_rank == 0, 'rank 1 gives up'\n        loss = self._loss(batch)\n        self",
        )
    )
    done = stratagem("fit", "net.py:Net", *TWO)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Error: rank 1 on ")
    assert "AssertionError: rank 1 gives up" in done.stderr
    assert 'net.py", line' in done.stderr
