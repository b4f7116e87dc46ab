"""Losses and weights are those of transformers' own Trainer over the same data, which needs accelerate."""

import pytest
import torch
from hugging_face import fitted, gpt2, sentences

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and its libraries

TOLERANCE = 2e-6
"""Of losses near 4, of which single precision knows 5e-7."""


def losses_of_hf_trainer(folder, model, accumulate=1, unequal=False):
    pytest.importorskip("accelerate")
    import transformers

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *args):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    arguments = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=4 // accumulate,
        gradient_accumulation_steps=accumulate,
        num_train_epochs=2,
        learning_rate=1e-3,
        weight_decay=0.1,
        warmup_steps=3,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = InOrder(model, arguments, train_dataset=sentences(38, unequal))
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("ddp", 2), ("fsdp", 2)])
def test_losses_and_weights(tmp_path, strategy, devices):
    theirs = gpt2()
    expected = losses_of_hf_trainer(tmp_path / "theirs", theirs)
    losses, module, _ = fitted(tmp_path / "ours", strategy, devices)
    assert losses == pytest.approx(expected, rel=0, abs=TOLERANCE)
    for (name, weight), ours in zip(theirs.named_parameters(), module.model.parameters(), strict=True):
        torch.testing.assert_close(
            ours, weight, rtol=1e-4, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_accumulated(tmp_path):
    expected = losses_of_hf_trainer(tmp_path / "theirs", theirs := gpt2(), accumulate=2)
    _, module, trainer = fitted(tmp_path / "ours", "single", 1, batch_size=2, accumulate_grad_batches=2)
    assert trainer.global_step == len(expected) == 20
    for weight, ours in zip(theirs.parameters(), module.model.parameters(), strict=True):
        torch.testing.assert_close(ours, weight, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("strategy", "devices", "accumulate"), [("single", 1, 2), ("ddp", 2, 1), ("fsdp", 2, 1)]
)
def test_steps_of_batches_with_unequal_numbers_of_labels(tmp_path, strategy, devices, accumulate):
    expected = losses_of_hf_trainer(tmp_path / "theirs", theirs := gpt2(), accumulate, unequal=True)
    losses, module, _ = fitted(
        tmp_path / "ours",
        strategy,
        devices,
        batch_size=4 // accumulate,
        accumulate_grad_batches=accumulate,
        unequal=True,
    )
    if accumulate == 1:  # else one loss for each of our micro-batches, and for each of their steps
        assert losses == pytest.approx(expected, rel=0, abs=TOLERANCE)
    for weight, ours in zip(theirs.parameters(), module.model.parameters(), strict=True):
        torch.testing.assert_close(ours, weight, rtol=1e-4, atol=2e-6)
