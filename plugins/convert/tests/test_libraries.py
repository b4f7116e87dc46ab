"""What is converted, in the libraries that people load it with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from stratagem_convert.formats.converting import Writing, read_weights, write_weights

from stratagem import Checkpoint

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning"
)  # of the libraries


@pytest.fixture
def gpt2(tmp_path: Path, checkpointer):
    """A language model with tied embeddings in bfloat16, and a checkpoint of a module that has it as `net`."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config).to(torch.bfloat16).eval()
    tensors = {f"model/net.{name}": tensor for name, tensor in model.state_dict().items()}
    checkpointer.save(str(tmp_path / "run"), Checkpoint(tensors))
    os.mkdir(tmp_path / "config")
    config.save_pretrained(tmp_path / "config")
    return model


@pytest.mark.parametrize("shard_bytes", [20_000, 5 * 10**9])
def test_transformers_loads_a_folder(gpt2, tmp_path: Path, shard_bytes: int) -> None:
    from transformers import AutoModelForCausalLM

    weights = read_weights(str(tmp_path / "run")).renamed(lambda name: name.removeprefix("net."))
    target = tmp_path / "hf"
    write_weights(weights, str(target), "huggingface", Writing(shard_bytes, str(tmp_path / "config")))
    several = os.path.exists(target / "model.safetensors.index.json")
    assert several == (shard_bytes == 20_000)
    loaded, report = AutoModelForCausalLM.from_pretrained(target, dtype="auto", output_loading_info=True)
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for name, tensor in gpt2.state_dict().items():
        found = loaded.state_dict()[name]
        assert found.dtype == tensor.dtype
        assert torch.equal(found.view(torch.int16), tensor.view(torch.int16)), name
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    tokens = torch.arange(10)[None]
    assert torch.equal(loaded(tokens).logits, gpt2(tokens).logits)


def test_a_folder_of_transformers_becomes_a_checkpoint(gpt2, tmp_path: Path, checkpointer) -> None:
    gpt2.save_pretrained(tmp_path / "hf", max_shard_size="20KB")
    weights = read_weights(str(tmp_path / "hf"))
    write_weights(weights, str(tmp_path / "own"), "stratagem", Writing())
    reader = checkpointer.open(str(tmp_path / "own"))
    wanted = {
        name for name in gpt2.state_dict() if name != "lm_head.weight"
    }  # it says nothing of what is tied
    assert {key.removeprefix("model/") for key in reader.tensors} == wanted
    targets = {f"model/{name}": torch.zeros_like(gpt2.state_dict()[name]) for name in wanted}
    reader.read(targets)
    assert all(torch.equal(tensor, gpt2.state_dict()[key[6:]]) for key, tensor in targets.items())


def test_lightning_loads_a_checkpoint(tmp_path: Path, checkpointer) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 2)

    torch.manual_seed(1)
    net = Net()
    checkpointer.save(
        str(tmp_path / "run"), Checkpoint({f"model/{name}": each for name, each in net.state_dict().items()})
    )
    write_weights(read_weights(str(tmp_path / "run")), str(tmp_path / "x.ckpt"), "lightning", Writing())
    loaded = Net.load_from_checkpoint(tmp_path / "x.ckpt", weights_only=True)
    assert torch.equal(loaded.layer.weight, net.layer.weight)


def test_a_checkpoint_of_lightning_is_read(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Net(lightning.LightningModule):
        def __init__(self, width: int = 3) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(width, 2)

        def training_step(self, batch, batch_idx):
            return self.layer(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    net = Net()
    trainer = lightning.Trainer(
        max_steps=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(net, torch.utils.data.DataLoader(torch.randn(8, 3), batch_size=4))
    trainer.save_checkpoint(tmp_path / "x.ckpt")
    weights = read_weights(str(tmp_path / "x.ckpt"))
    assert (weights.format, weights.facts["global_step"]) == ("lightning", "2")
    assert weights.left_out[0].startswith("the run's ")
    write_weights(weights, str(tmp_path / "x.pt"), "torch", Writing())
    assert torch.equal(torch.load(tmp_path / "x.pt")["layer.weight"], net.layer.weight)
