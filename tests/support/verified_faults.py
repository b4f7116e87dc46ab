"""Modules with one fault each that `verify` finds, by the question that tells of it, and words of the reason."""

from __future__ import annotations

import copy
import random

import torch
from averaging import AveragedPrepared, Averaging
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset
from verified_models import BATCH, SAMPLES, Classifier, LanguageModel, vectors


class SumLoss(Classifier):
    def loss(self, batch):
        return F.cross_entropy(self.net(batch[0]), batch[1], reduction="sum")


class TokenCount(LanguageModel):
    """Divides by the number of tokens that this rank's batch has."""

    def make_net(self):
        return nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))

    def loss(self, batch):
        (tokens,) = batch
        targets = tokens[:, 1:].where(tokens[:, 1:] > 4, torch.tensor(-100))
        return F.cross_entropy(self.scores(tokens[:, :-1]).flatten(0, 1), targets.flatten())


class UnusedOnOneRank(Classifier):
    def __init__(self):
        super().__init__()
        self.extra = nn.Linear(3, 3)

    def training_step(self, batch, batch_idx):
        scores = self.net(batch[0])
        return F.cross_entropy(self.extra(scores) if self.global_rank else scores, batch[1])


class OwnBuffer(Classifier):
    """Centres its inputs by an average of what this rank has seen."""

    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(6))

    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            self.centre.lerp_(batch[0].mean(0), 0.5)
        return self.loss(batch)


class ForgottenState(Classifier):
    """Weighs its loss by a count that no checkpoint keeps."""

    steps_seen = 0

    def training_step(self, batch, batch_idx):
        self.steps_seen += 1
        return self.loss(batch) * (1 + 0.1 * self.steps_seen)


class _OwnOrder(Dataset):
    def __init__(self):
        self.data = vectors()
        self.order = random.Random().sample(range(SAMPLES), SAMPLES)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.data[self.order[index]]


class ShufflesItself(Classifier):
    def train_dataloader(self):
        return DataLoader(_OwnOrder(), BATCH)


class _AlwaysAll(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(vectors())


class SameBatches(Classifier):
    def train_dataloader(self):
        return DataLoader(_AlwaysAll(), BATCH)


class TrainsInValidation(Classifier):
    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        with torch.no_grad():
            self.net[2].bias.add_(0.01)


class CountsInValidation(Classifier):
    """Weighs its loss by how often it was validated."""

    def __init__(self):
        super().__init__()
        self.holder = Holder([0])

    def loss(self, batch):
        return super().loss(batch) * (1 + 0.1 * self.holder.counts[0])

    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        self.holder.counts[0] += 1


class Holder:
    """Something that a module keeps and that can't be inspected."""

    def __init__(self, counts):
        self.counts = counts


class OwnMetric(Classifier):
    """Logs what its own rank has."""

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch), sync_dist=False)


class StepsCopies(Classifier):
    def configure_optimizers(self):
        return torch.optim.SGD([nn.Parameter(p.detach().clone()) for p in self.parameters()], lr=0.1)


class StepsAnotherNet(Classifier):
    """Its optimizer has the parameters of a copy."""

    def __init__(self):
        super().__init__()
        self.copy = copy.deepcopy(self.net)

    def training_step(self, batch, batch_idx):
        return self.loss(batch) + 0 * self.copy(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.copy.parameters(), lr=0.1)


class ByRank(Classifier):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + self.global_rank)


class HidesGradients(Classifier):
    """Divides the gradient, and not the loss, by the samples of its own batch."""

    def loss(self, batch):
        loss = super().loss(batch)
        return loss + (loss * len(batch[0]) - (loss * len(batch[0])).detach())


class ForgetsGenerator(Classifier):
    """Its data draw from a generator of their own."""

    def train_dataloader(self):
        return DataLoader(_Augmented(), BATCH)


class _Augmented(TensorDataset):
    def __init__(self):
        super().__init__(*vectors().tensors)
        self.generator = torch.Generator().manual_seed(1)

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + torch.randn(6, generator=self.generator), y


FAULTS = {
    SumLoss: ("loss", "a sum over the batch"),
    TokenCount: ("loss", "divided by a count"),
    UnusedOnOneRank: ("run", "find_unused_parameters"),
    OwnBuffer: ("run", "'centre' differs between ranks"),
    StepsAnotherNet: ("optimizers", "no parameter changes"),
    ForgottenState: ("resume", "'steps_seen' was 3 at the checkpoint, and is 0 after loading"),
    ShufflesItself: ("data", "shuffles itself"),
    SameBatches: ("data", "read the same batches"),
    TrainsInValidation: ("validation", "changes 'net.2.bias'"),
    CountsInValidation: ("validation", "changes the training"),
    OwnMetric: ("evaluation", "val_loss is"),
    StepsCopies: ("run", "aren't parameters of the module"),
    ByRank: ("loss", "depends on its rank"),
    HidesGradients: ("gradients", "aren't those of one process"),
    ForgetsGenerator: ("resume", "has its own generator"),
}


class ProjectedGradients(Classifier):
    """PCGrad on parts of a batch, beside dropout: gradients by `autograd.grad`, which no strategy averages."""

    automatic_optimization = False

    def make_net(self):
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))

    def training_step(self, batch, batch_idx):
        loss, params = self.loss(batch), list(self.net.parameters())
        for parameter, grad in zip(params, torch.autograd.grad(loss, params)):
            parameter.grad = grad
        self.optimizers().step()
        return {"loss": loss.detach()}


# Strategies -----------------------------------------------------------------------------------------------


class _Quiet(AveragedPrepared):
    def replicas(self):
        return iter(())  # or a run would be ended before it could be compared

    def complete_gradients(self, index):
        pass  # or what backward leaves wrong would be averaged before the step


class _Sums(_Quiet):
    def average(self):
        super().average()
        for parameter in self.original_module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(self.world_size)


class Sums(Averaging):
    prepared = _Sums


class _TrainsApart(_Quiet):
    def average(self):
        pass


class TrainsApart(Averaging):
    prepared = _TrainsApart


class _WritesRounded(_Quiet):
    def model_tensors(self):
        return {name: value.bfloat16().to(value.dtype) for name, value in super().model_tensors().items()}

    def load(self, reader, state, *, model_only=False):
        own = {f"model/{name}": value for name, value in self.original_module.state_dict().items()}
        reader.read(own)
        if not model_only:
            self.load_optimizer(0, reader, state.get("optimizers", []))


class WritesRounded(Averaging):
    prepared = _WritesRounded


class _ForgetsOptimizer(_Quiet):
    def load_optimizer(self, index, reader, saved):
        pass


class ForgetsOptimizer(Averaging):
    prepared = _ForgetsOptimizer


class _SharesSteps(_Quiet):
    """Each parameter is stepped on one rank, and sent to the others: replicas are equal, whatever their gradients."""

    def step(self, index, closure=None):
        loss = super().step(index, closure)
        for number, parameter in enumerate(self.original_module.parameters()):
            torch.distributed.broadcast(parameter.detach(), number % self.world_size)
        return loss


class SharesSteps(Averaging):
    prepared = _SharesSteps


class _WrongLate(_Quiet):
    """Gradients are this rank's own from the tenth step."""

    done = 0

    def average(self):
        self.done += 1
        if self.done < 10:
            super().average()


class WrongLate(Averaging):
    prepared = _WrongLate


WRONG_STRATEGIES = {
    WrongLate: ("training", "after 20 steps"),
    Sums: ("gradients", "2 times as much: gradients are summed over ranks"),
    TrainsApart: ("gradients", "in one process"),
    WritesRounded: ("resume", "the loss of micro-batch 4"),
    ForgetsOptimizer: ("resume", "the loss of micro-batch 5"),
}
