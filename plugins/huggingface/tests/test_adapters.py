"""Adapters of PEFT train and are saved alike under each strategy; PEFT is in make test-libraries."""

import pytest
import torch
from hugging_face import LORA, SentenceData, fitted, gpt2
from stratagem_huggingface import ExportPretrained, HFModule

import stratagem
from stratagem.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and its libraries


def adapters_of(folder, strategy, devices):
    """Train; return the losses, and a model with what was exported."""
    from peft import PeftModel

    losses, module, _ = fitted(folder, strategy, devices, peft=LORA, callbacks=[ExportPretrained()])
    for one, other in zip(gpt2().parameters(), module.model.get_base_model().parameters(), strict=False):
        assert one.shape != other.shape or torch.equal(one, other) or other.requires_grad
    return losses, PeftModel.from_pretrained(gpt2(), str(folder / "pretrained")), module


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "deepspeed_stage_2", "deepspeed_stage_3"])
def test_same_under_each_strategy(tmp_path, strategy):
    pytest.importorskip("peft")
    expected, alone, _ = adapters_of(tmp_path / "alone", "single", 1)
    losses, loaded, module = adapters_of(tmp_path / "ranks", strategy, 2)
    assert losses == pytest.approx(expected, abs=2e-6)
    trained = {name: value for name, value in module.model.state_dict().items() if "lora_" in name}
    found = loaded.state_dict()
    assert trained
    assert any("lora_B" in name and value.any() for name, value in trained.items())
    for name, value in trained.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)
        torch.testing.assert_close(found[name], alone.state_dict()[name], rtol=1e-3, atol=1e-5)


def test_resumes_under_another_strategy(tmp_path):
    pytest.importorskip("peft")
    from safetensors.torch import load_file

    fitted(tmp_path / "first", "ddp", 2, peft=LORA, callbacks=[ExportPretrained()], max_epochs=1)
    trainer = stratagem.Trainer(
        accelerator="cpu",
        strategy="fsdp",
        devices=2,
        max_steps=10,
        callbacks=[ExportPretrained()],
        run_dir=str(tmp_path / "next"),
    )
    # Its adapters are drawn otherwise, and the steps are done: what is exported is what the checkpoint has.
    module = HFModule(gpt2(), peft=LORA)
    trainer.fit(
        module, datamodule=SentenceData(batch_size=2), ckpt_path=str(tmp_path / "first/checkpoints/last")
    )
    assert trainer.global_step == 10
    expected, found = (
        load_file(tmp_path / run / "pretrained/adapter_model.safetensors") for run in ("first", "next")
    )
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_refusals(monkeypatch):
    pytest.importorskip("peft")
    with pytest.raises(ConfigError, match="which PEFT refuses"):
        HFModule(gpt2(), peft={"peft_type": "LORAA"})
    with pytest.raises(ConfigError, match=r"pass a peft\.PeftConfig"):
        HFModule(gpt2(), peft=8)
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(ConfigError, match="needs PEFT, which isn't installed"):
        HFModule(gpt2(), peft=LORA)
