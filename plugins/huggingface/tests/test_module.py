"""`HFModule` beside the fit itself: what it exports, generates and refuses."""

import json

import pytest
import torch
from hugging_face import PADDING, SentenceData, Sentences, fitted, gpt2
from stratagem_huggingface import ExportPretrained, HFModule

import stratagem
from stratagem.errors import CheckpointError, ConfigError, DataError, StratagemError

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and its libraries


@pytest.mark.parametrize(
    ("strategy", "devices"),
    [
        ("single", 1),
        ("fsdp", 2),
        ("pipeline", 2),
        pytest.param("ddp", 2, marks=pytest.mark.long),
        pytest.param("deepspeed_stage_3", 2, marks=pytest.mark.long),
    ],
)
def test_exported_folder_is_the_trained_model(tmp_path, strategy, devices):
    from transformers import AutoModelForCausalLM

    path = tmp_path / "out"
    _, module, _ = fitted(
        tmp_path / "run", strategy, devices, callbacks=[ExportPretrained(path)], max_epochs=1
    )
    loaded = AutoModelForCausalLM.from_pretrained(path)
    expected = module.model.state_dict()
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    assert json.loads((path / "config.json").read_text())["architectures"] == ["GPT2LMHeadModel"]
    with pytest.raises(CheckpointError, match="there is something already"):
        fitted(tmp_path / "again", "single", 1, callbacks=[ExportPretrained(path)])


def test_tokenizer_is_in_the_folder(tmp_path):
    from tokenizers import Tokenizer, models
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    words = {"a": 0, "b": 1, "[PAD]": 2}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="a")), pad_token="[PAD]"
    )
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    for index, given in enumerate((tokenizer, tmp_path / "tokenizer")):
        path = tmp_path / f"out-{index}"
        fitted(tmp_path / f"run-{index}", "single", 1, callbacks=[ExportPretrained(path, given)], max_steps=1)
        assert AutoTokenizer.from_pretrained(path).get_vocab() == words


class Continues(HFModule):
    """Logs how many tokens are those of the sentence."""

    def generated_metrics(self, batch, tokens):
        assert tokens.shape[1] <= batch["input_ids"].shape[1] + 4
        new = tokens[:, batch["input_ids"].shape[1] :]
        return {"new": float(new.shape[1]), "sum": new.sum(dim=1).double().mean()}


@pytest.mark.parametrize(
    ("strategy", "devices"), [("fsdp", 2), pytest.param("ddp", 2, marks=pytest.mark.long)]
)
def test_generates_in_evaluations(tmp_path, strategy, devices):
    # Seven sentences: ranks have unequally many, and a sharded model needs all ranks in each forward.
    generate = {"max_new_tokens": 4, "do_sample": False}
    module = Continues(gpt2(), generate=generate)
    alone = stratagem.Trainer(accelerator="cpu", devices=1, enable_progress_bar=False)
    trainer = stratagem.Trainer(
        accelerator="cpu", strategy=strategy, devices=devices, enable_progress_bar=False
    )
    data = SentenceData(batch_size=2)
    (expected,), (found,) = alone.validate(module, datamodule=data), trainer.validate(module, datamodule=data)
    assert found["val_new"] == 4
    assert found["val_sum"] == pytest.approx(expected["val_sum"])
    assert found["val_loss"] == pytest.approx(expected["val_loss"])
    tokens = torch.cat(trainer.predict(module, datamodule=data))
    sentences = [Sentences(7)[index]["input_ids"] for index in range(7)]
    assert tokens[:, :-4].tolist() == sentences
    assert torch.equal(tokens, torch.cat(alone.predict(module, datamodule=data)))


def test_optimizers_and_schedules_by_function(tmp_path):
    seen = []

    def schedule(optimizer, steps):
        seen.append(steps)
        return torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps)

    module = HFModule(gpt2(), lambda parameters: torch.optim.SGD(parameters, 0.1), schedule)
    stratagem.Trainer(accelerator="cpu", devices=1, max_epochs=1, run_dir=str(tmp_path), logger=False).fit(
        module, datamodule=SentenceData()
    )
    assert seen == [10]


@pytest.mark.parametrize("name", ["adamw", "adafactor", "adagrad", "rmsprop", "sgd"])
def test_optimizers_by_name(tmp_path, name):
    before = gpt2().transformer.wte.weight
    module = HFModule(gpt2(), name, schedule="cosine", lr=0.01, warmup_steps=0.5)
    trainer = stratagem.Trainer(
        accelerator="cpu", devices=1, max_steps=2, run_dir=str(tmp_path), logger=False
    )
    trainer.fit(module, datamodule=SentenceData())
    assert not torch.equal(before, module.model.transformer.wte.weight)


class NoLabels(SentenceData):
    def _loader(self, count):
        return torch.utils.data.DataLoader([torch.tensor([1, 2, PADDING])] * 4, 2, collate_fn=as_inputs)


def as_inputs(rows):
    return {"input_ids": torch.stack(rows)}


def test_refusals(tmp_path):
    with pytest.raises(ConfigError, match="model=int: pass a model of transformers"):
        HFModule(3)
    with pytest.raises(ConfigError, match="lr=-1"):
        HFModule(gpt2(), lr=-1)
    trainer = stratagem.Trainer(
        accelerator="cpu", devices=1, max_steps=1, run_dir=str(tmp_path), logger=False
    )
    with pytest.raises(DataError, match="GPT2LMHeadModel returned no loss for a batch with input_ids: it"):
        trainer.fit(HFModule(gpt2()), datamodule=NoLabels())
    with pytest.raises(StratagemError, match="it exports an HFModule"):
        stratagem.Trainer(
            accelerator="cpu",
            devices=1,
            max_steps=1,
            callbacks=[ExportPretrained(tmp_path / "x")],
            logger=False,
        ).fit(Plain(), torch.utils.data.DataLoader(torch.ones(2, 1)))


class Plain(stratagem.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
