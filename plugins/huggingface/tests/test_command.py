"""`stratagem fit hf:FOLDER`: a model by its scheme, and what is refused before or after launch."""

import json
import os

import pytest
import torch
import yaml
from hugging_face import config, gpt2
from stratagem_cli.main import main

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and its libraries

QUICK = ["--accelerator", "cpu", "--max-steps", "3", "--set", "trainer.enable_progress_bar=false"]
DATA = ["--data", "hugging_face:SentenceData"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*map(str, __import__("sys").path)]))


def test_fit_of_a_config_exports_and_repeats(tmp_path, capsys):
    config().save_pretrained("config")
    export = "trainer.callbacks=stratagem_huggingface.ExportPretrained"
    command = [
        "fit",
        "hf:config",
        *DATA,
        "--strategy",
        "ddp",
        "--devices",
        "2",
        "--run-dir",
        "run",
        "--set",
        export,
    ]
    assert main([*command, *QUICK, "--set", "model.lr=0.01"]) == 0
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert saved["target"] == f"hf:{tmp_path / 'config'}"
    assert saved["model"]["lr"] == 0.01
    assert "model" not in saved["model"]
    from transformers import AutoModel, AutoModelForCausalLM

    exported = AutoModelForCausalLM.from_pretrained("run/pretrained")
    assert type(AutoModel.from_pretrained("run/pretrained")).__name__ == "GPT2Model"
    assert json.loads((tmp_path / "run/pretrained/config.json").read_text())["architectures"] == [
        "GPT2LMHeadModel"
    ]
    from stratagem_huggingface import HFModule

    kept = HFModule.load_from_checkpoint("run/checkpoints/last")
    for one, other in zip(exported.parameters(), kept.model.parameters(), strict=True):
        assert torch.equal(one, other)
    # The run goes on from its weights, and again from its configuration.
    assert (
        main(["fit", "--model", "hf:run/pretrained", *DATA, *QUICK, "--devices", "1", "--run-dir", "next"])
        == 0
    )
    assert main(["validate", "hf:run/pretrained", *DATA, *QUICK[:2], "--devices", "1"]) == 0
    assert "val_loss" in capsys.readouterr().out


@pytest.mark.long
def test_fsdp_constructs_it_in_shards(tmp_path):
    config().save_pretrained("config")
    assert (
        main(["fit", "hf:config", *DATA, *QUICK, "--strategy", "fsdp", "--devices", "2", "--run-dir", "run"])
        == 0
    )
    assert (tmp_path / "run/checkpoints/last").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hf:"], "'hf:' has nothing after the colon"),
        (["hf:nowhere"], "hf:nowhere has no configuration that transformers can read"),
        (["hf:bare"], "doesn't say which class its model has"),
        (["hf:config", "--set", "model.optimizer=adm"], "optimizer='adm': nearest: "),
        (["hf:config", "--set", "model.schedule=linaer"], "schedule='linaer': nearest: linear"),
        (["hf:config", "--set", "model.model=x"], "sets model.model already"),
        (["hf:config", "--set", "model.lrr=1"], "no setting 'model.lrr'"),
        (["hf:config", "--model", "hf:config"], "are the same setting"),
        (["hf:config", "--max-steps", "-1", "--max-epochs", "-1"], "this fit has no limit"),
    ],
)
def test_refused_in_a_sentence(arguments, message, capfd):
    config().save_pretrained("config")
    bare = config()
    bare.architectures = None
    bare.save_pretrained("bare")
    assert (
        main(["fit", *arguments, *DATA, "--devices", "1", *(QUICK if "-1" not in arguments else QUICK[:2])])
        == 2
    )
    error = capfd.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_missing_plugin_is_named(monkeypatch, capfd):
    monkeypatch.setenv("STRATAGEM_DISABLE_PLUGINS", "stratagem-huggingface")
    assert main(["fit", "hf:config", *DATA, *QUICK]) == 2
    assert "stratagem-huggingface" in capfd.readouterr().err


def test_weights_are_those_of_the_folder():
    from stratagem_huggingface import HFModule

    model = gpt2()
    model.save_pretrained("weights")
    module = HFModule("weights")
    for one, other in zip(model.parameters(), module.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert module.hparams["model"] == "weights"
