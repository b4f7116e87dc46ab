"""A step's loss is the mean over all labels of its batches, also where batches have unequal numbers of them."""

from functools import partial

import pytest
import torch
from hugging_face import PADDING, Sentences, fitted, gpt2
from stratagem_huggingface import HFModule
from stratagem_huggingface.losses import CountedLabels

from stratagem import Trainer
from stratagem.errors import ConfigError, DataError, StratagemError

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and its libraries

SGD_OF_LARGE_STEPS = partial(torch.optim.SGD, lr=1.0)
LABELS = torch.tensor([[5, 6, -100, 7], [-100, -100, 8, -100]])


def batch_of(count, unequal=True):
    samples = Sentences(count, unequal)
    return {
        name: torch.tensor([samples[idx][name] for idx in range(count)])
        for name in ("input_ids", "attention_mask", "labels")
    }


def masked(**batch):
    return {
        name: torch.full_like(value, -100) if name == "labels" else value for name, value in batch.items()
    }


def small_t5():
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(
        T5Config(vocab_size=PADDING + 1, dropout_rate=0.0, decoder_start_token_id=0, **sizes)
    )


def small_bart():
    from transformers import BartConfig, BartForCausalLM

    sizes = {"d_model": 8, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 8}
    return BartForCausalLM(BartConfig(vocab_size=PADDING + 1, max_position_embeddings=16, **sizes))


def small_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return LlamaForCausalLM(LlamaConfig(vocab_size=PADDING + 1, **sizes))


def small_classifier():
    from transformers import BertConfig, BertForTokenClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return BertForTokenClassification(BertConfig(vocab_size=PADDING + 1, num_labels=PADDING, **sizes))


@pytest.mark.parametrize(
    ("model", "count"), [(gpt2, 3), (small_llama, 3), (small_bart, 4), (small_t5, 4), (small_classifier, 4)]
)
def test_labels_that_the_loss_is_the_mean_of(model, count):
    """The mean times the count is the sum: cross entropy over the logits knows which labels are read."""
    model = model().eval()
    assert CountedLabels(model).of({"labels": LABELS}).item() == count
    output = model(input_ids=LABELS.clamp(min=0), labels=LABELS)
    logits, labels = output.logits, LABELS
    if count == 3:
        logits, labels = logits[:, :-1], labels[:, 1:]
    total = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    torch.testing.assert_close(output.loss * count, total)


def test_labels_that_the_collator_shifted_are_counted_as_they_are():
    assert CountedLabels(gpt2()).of({"labels": LABELS, "shift_labels": LABELS}).item() == 4


def test_adapters_change_no_count():
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(gpt2(), peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["c_attn"]))
    assert CountedLabels(adapted).of({"labels": LABELS}).item() == 3


@pytest.mark.parametrize("model", [gpt2, small_t5, small_bart, small_classifier])
def test_a_batch_without_labels_teaches_nothing(model):
    module = HFModule(model(), weigh_losses=True)
    module.log = lambda *args, **settings: None
    loss, weight = module.training_step(masked(**batch_of(2)), 0)
    loss.backward()
    assert (loss.item(), weight.item()) == (0, 0)
    assert all(each.grad is None or not each.grad.any() for each in module.parameters())


def test_every_target_of_a_regression_counts():
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = BertForSequenceClassification(BertConfig(vocab_size=PADDING + 1, num_labels=1, **sizes))
    assert CountedLabels(model).of({"labels": torch.tensor([-100.0, 3.0, 0.5])}).item() == 3


class OwnHead(torch.nn.Module):
    """Returns a loss, and is no model of transformers."""

    def forward(self, input_ids, labels, attention_mask=None):
        return {"loss": labels.float().mean()}


class CountsRows(HFModule):
    def weight_of(self, batch):
        return torch.tensor(len(batch["labels"]))


def segments():
    """Its loss leaves out the pixels of another value than -100."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    return SegformerForSemanticSegmentation(SegformerConfig())


@pytest.mark.parametrize("model", [segments, OwnHead])
def test_models_whose_labels_are_not_known_are_refused(model):
    with pytest.raises(
        ConfigError, match=rf"doesn't know which labels the loss of {model().__class__.__name__} is"
    ):
        HFModule(model(), weigh_losses=True).training_step(batch_of(2), 0)


def test_a_module_says_itself_what_its_loss_is_the_mean_of():
    module = CountsRows(OwnHead(), weigh_losses=True)
    module.log = lambda *args, **settings: None
    batch = batch_of(2)
    loss, weight = module.training_step(batch, 0)
    assert (loss.item(), weight.item()) == (pytest.approx(batch["labels"].float().mean().item() * 2), 2)


@pytest.mark.parametrize("labels", [None, [[1, 2]]], ids=["none", "a list"])
def test_labels_that_cannot_be_counted_are_refused(labels):
    batch = batch_of(2) | {"labels": labels}
    with pytest.raises(DataError, match="weigh_losses=True counts labels, and a batch with input_ids"):
        CountedLabels(gpt2()).of(batch)


def test_two_ranks_train_as_one(tmp_path):
    one, alone, _ = fitted(tmp_path / "one", "single", 1, unequal=True)
    two, shared, _ = fitted(tmp_path / "two", "ddp", 2, unequal=True)
    assert two == pytest.approx(one, rel=0, abs=2e-6)
    for expected, got in zip(alone.parameters(), shared.parameters(), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-6)


def small_mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8, "num_local_experts": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    experts = {"output_router_logits": True, "router_aux_loss_coef": 0.5}
    return MixtralForCausalLM(MixtralConfig(vocab_size=PADDING + 1, **sizes, **heads, **experts))


@pytest.mark.parametrize("weigh", [True, False], ids=["weighed", "means"])
def test_an_auxiliary_loss_counts_as_much_in_a_step_of_two_batches(tmp_path, weigh):
    """transformers' Trainer adds it once for each micro-batch: docs/found."""
    trained = []
    for batches in (1, 2):
        module = HFModule(small_mixtral(), optimizer=SGD_OF_LARGE_STEPS, schedule=None, weigh_losses=weigh)
        settings = {"max_epochs": 1, "accumulate_grad_batches": batches, "logger": False}
        trainer = Trainer(accelerator="cpu", devices=1, run_dir=str(tmp_path / str(batches)), **settings)
        trainer.fit(module, [batch_of(3)] * batches)
        trained.append(torch.cat([each.detach().flatten() for each in module.parameters()]))
    torch.testing.assert_close(trained[0], trained[1], rtol=0, atol=1e-6)


def test_a_strategy_that_cannot_weigh_says_so(tmp_path):
    with pytest.raises(StratagemError, match="weight"):
        fitted(tmp_path, "diloco", 2, unequal=True)
