"""Programs written for Lightning, under it and under stratagem_lightning, in one process and in two."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugins.lightning.tests import moving

pytest.importorskip("lightning", reason="lightning, under which programs are run, too, isn't installed")
pytest.importorskip("torchmetrics", reason="torchmetrics, which some programs use, isn't installed")

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


def test_one_process_logs_what_lightning_logs(tmp_path) -> None:
    folders = {True: [tmp_path / "ours" / each.stem for each in PROGRAMS]}
    folders[False] = [tmp_path / "theirs" / each.stem for each in PROGRAMS]
    for is_ours, them in folders.items():
        for program, folder in zip(PROGRAMS, them, strict=True):
            assert moving.prepare(program, folder, imports=is_ours) == []
        moving.run_together(them)
    compared = 0
    for program, mine, theirs in zip(PROGRAMS, folders[True], folders[False], strict=True):
        ours, lightnings = moving.outcome(mine), moving.outcome(theirs)
        assert lightnings.error is None, f"{program.name} under Lightning: {lightnings.error}"
        assert ours.error is None, f"{program.name}: {ours.error}"
        assert moving.difference(ours, lightnings) is None, program.name
        compared += sum(map(len, lightnings.logged.values())) + len(lightnings.printed)
    assert compared > 500


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_two_processes(program, tmp_path) -> None:
    moving.prepare(program, tmp_path / "run", imports=True, processes=2)
    moving.run_alone(tmp_path / "run")
    assert moving.outcome(tmp_path / "run").error is None


def test_a_value_that_differs_is_reported() -> None:
    theirs = moving.Outcome(logged={("x", "loss"): [(0, 1.0), (1, 0.5)], ("x", "mean"): [(1, 0.75)]})
    same = moving.Outcome(logged={("x", "loss"): [(1, 1.0), (2, 0.5)], ("x", "mean"): [(2, 0.7500001)]})
    assert moving.difference(same, theirs) is None
    other = moving.Outcome(logged={("x", "loss"): [(1, 1.0), (2, 0.50000001)], ("x", "mean"): [(2, 0.75)]})
    assert moving.difference(other, theirs) == "loss of step 2 (x) is 0.50000001, and 0.5 under Lightning"
    fewer = moving.Outcome(logged={("x", "loss"): [(1, 1.0)], ("x", "mean"): [(2, 0.75)]})
    assert "is logged 1 times, and 2 times" in str(moving.difference(fewer, theirs))
    none = moving.Outcome(logged={("x", "loss"): theirs.logged["x", "loss"]})
    assert "mean isn't logged" in str(moving.difference(none, theirs))


@pytest.mark.long
def test_two_processes_equal_plain_torch_with_a_distributed_sampler(tmp_path) -> None:
    """Each rank's loss is that of torch's DistributedSampler; both ranks' gradients are averaged."""
    import torch
    from torch.utils.data import DataLoader, DistributedSampler

    program = Path(__file__).parent / "programs" / "regression.py"
    moving.prepare(program, tmp_path / "run", imports=True, processes=2)
    moving.run_alone(tmp_path / "run")
    logged = [value for _, value in moving.outcome(tmp_path / "run").logged["regression", "train_loss"]]

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 6, generator=generator)
    dataset = torch.utils.data.TensorDataset(
        x, x.sum(1, keepdim=True) + 0.1 * torch.randn(64, 1, generator=generator)
    )
    torch.manual_seed(7)
    layer = torch.nn.Linear(6, 1)
    samplers = [DistributedSampler(dataset, 2, rank, shuffle=False) for rank in range(2)]
    expected = []
    for _epoch in range(3):
        loaders = [DataLoader(dataset, batch_size=8, sampler=sampler) for sampler in samplers]
        for batches in zip(*loaders, strict=True):
            losses = [torch.nn.functional.mse_loss(layer(a), b) for a, b in batches]
            layer.zero_grad()
            (sum(losses) / 2).backward()
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter -= 0.1 * parameter.grad
            expected.append(losses[0].item())
    assert logged == pytest.approx(expected, rel=1e-6)
