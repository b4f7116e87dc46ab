"""`HFData`: datasets of Hugging Face; they are in make test-libraries."""

import pytest
import torch
from hugging_face import PADDING, config, gpt2, sentences

import stratagem
from stratagem.errors import ConfigError, DataError

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore")  # of datasets and its libraries


@pytest.fixture
def data(tmp_path):
    """Sentences of unequal lengths with their texts, in three splits."""
    rows = [{**each, "text": "words"} for each in sentences(26)]
    for index, row in enumerate(rows):
        for name in ("input_ids", "attention_mask", "labels"):
            row[name] = row[name][: 4 + index % 5]
    found = datasets.DatasetDict(
        train=datasets.Dataset.from_list(rows[:14]),
        validation=datasets.Dataset.from_list(rows[14:21]),
        test=datasets.Dataset.from_list(rows[21:]),
    )
    found.save_to_disk(tmp_path / "data")
    return found


@pytest.fixture
def tokenizer(tmp_path):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {str(number): number for number in range(PADDING + 1)}
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="0")), pad_token=str(PADDING)
    )
    made.save_pretrained(tmp_path / "tokenizer")
    return made


def test_command_with_a_folder_and_a_collator(tmp_path, monkeypatch, data, tokenizer, capsys):
    from stratagem_cli.main import main

    monkeypatch.chdir(tmp_path)
    config().save_pretrained("config")
    collator = ["--set", "data.collator=DataCollatorForSeq2Seq", "--set", "data.tokenizer=tokenizer"]
    quick = ["--accelerator", "cpu", "--devices", "2", "--strategy", "ddp"]
    fit = [
        "fit",
        "hf:config",
        "--data",
        "hf:data",
        *collator,
        *quick,
        "--max-epochs",
        "1",
        "--run-dir",
        "run",
    ]
    assert main([*fit, "--set", "data.batch_size=2"]) == 0
    assert "val_loss" in capsys.readouterr().out


def test_each_sample_is_evaluated_once(data, tokenizer):
    from stratagem_huggingface import HFData, HFModule

    module = HFModule(gpt2())
    given = HFData(data, batch_size=2, collator="DataCollatorForSeq2Seq", tokenizer=tokenizer)
    trainer = stratagem.Trainer(accelerator="cpu", strategy="ddp", devices=2, enable_progress_bar=False)
    logits = trainer.predict(module, datamodule=given)
    assert sum(len(batch) for batch in logits) == 5
    batch = next(iter(given.train_dataloader()))
    assert sorted(batch) == ["attention_mask", "input_ids", "labels"]
    assert isinstance(batch["labels"], torch.Tensor)


def test_streams_are_read(data):
    from stratagem_huggingface import HFData

    equal = datasets.Dataset.from_list(sentences(6)).to_iterable_dataset()
    given = HFData({"train": equal}, batch_size=4)
    assert [len(batch["labels"]) for batch in given.train_dataloader()] == [4, 2]
    assert given.val_dataloader() is None


def test_refusals(tmp_path, data):
    from stratagem_huggingface import HFData

    with pytest.raises(
        ConfigError, match="collator='DataCollatorWithPading': nearest: DataCollatorWithPadding"
    ):
        HFData(data, collator="DataCollatorWithPading")
    with pytest.raises(ConfigError, match="can't make collator='DataCollatorWithPadding'"):
        HFData(data, collator="DataCollatorWithPadding")
    with pytest.raises(DataError, match="can't be read as a dataset"):
        HFData(tmp_path)
    with pytest.raises(DataError, match="got the splits other: one must be called train"):
        HFData({"other": data["train"]})
    with pytest.raises(ConfigError, match="dataset=list: pass a Dataset"):
        HFData([1])
