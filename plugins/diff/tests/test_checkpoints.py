"""`stratagem diff` of two checkpoints: of real runs under strategies, of other formats, and with planted faults."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from diff_command import Captured, compared, refusal
from safetensors.torch import save_file
from stratagem_cli.main import main
from stratagem_diff import record
from stratagem_diff.run import ACCUMULATION
from torch import Tensor, nn

NET = f"{Path(__file__).with_name('trained.py')}:Net"
Fitted = Callable[..., Path]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    """Train some steps on the batches of four ranks, and return the run's folder."""
    made: dict[tuple[object, ...], Path] = {}

    def fit(strategy: str, devices: int, *settings: str, steps: int = 3) -> Path:
        key = (strategy, devices, steps, *settings)
        if key not in made:
            run = tmp_path_factory.mktemp("fitted") / "run"
            sets = [f"{ACCUMULATION}={4 // devices}", *settings]
            words = [word for each in sets for word in ("--set", each)]
            command = ["fit", NET, "--strategy", strategy, "--devices", str(devices), "--accelerator", "cpu"]
            assert main([*command, *words, "--max-steps", str(steps), "--run-dir", str(run)]) == 0
            made[key] = run
        return made[key]

    return fit


# Runs under strategies --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "devices"),
    [("ddp", 2), ("fsdp", 2), pytest.param("fsdp", 4, marks=pytest.mark.long)],
)
def test_strategies_and_numbers_of_ranks_agree(
    fitted: Fitted, strategy: str, devices: int, capsys: Captured
) -> None:
    found = compared(capsys, fitted("single", 1), fitted(strategy, devices), code=0)
    assert found["sentence"].startswith("The checkpoints agree within rounding: ")
    assert found["b"].endswith(f"checkpoints/last, step 3, strategy {strategy}, ranks {devices}")
    # 4 parameters, each with `step`, `exp_avg` and `exp_avg_sq`.
    assert (found["compared"], found["same"], found["differences"]) == (16, True, [])
    assert found["equal_to_the_bit"] + found["within_rounding"] == 16
    assert found["within_rounding"] > 0


def test_exact_counts_what_is_within_rounding(fitted: Fitted, capsys: Captured) -> None:
    found = compared(capsys, fitted("single", 1), fitted("ddp", 2), "--exact")
    assert "the first of 16 tensors that isn't equal to the bit" in found["sentence"]
    assert compared(capsys, fitted("ddp", 2), fitted("ddp", 2) / "checkpoints/last", "--exact", code=0)[
        "sentence"
    ] == ("The checkpoints are equal to the bit: 16 tensors.")


def test_another_moment_and_other_settings_are_said(fitted: Fitted, capsys: Captured, tmp_path: Path) -> None:
    found = compared(capsys, fitted("single", 1), fitted("single", 1, steps=2), "--html", tmp_path / "page")
    assert found["sentence"].startswith("Parameter 'body.0.weight' is the first of 16 tensors that differs")
    assert found["causes"][0] == "other moments of a training: A is of step 3 and B of step 2"
    assert "after it differ 3 parameters, 12 optimizer states" in found["downstream"]
    page = (tmp_path / "page").read_text()
    assert "other moments of a training" in page
    assert "← first difference" in page
    found = compared(capsys, fitted("single", 1), fitted("single", 1, "model.lr=0.02"))
    assert "lr of parameter group 0 is 0.01 in A and 0.02 in B" in found["notes"]


# Faults that are planted in state dicts -------------------------------------------------------------------

Tensors = dict[str, Tensor]


def tensors() -> Tensors:
    torch.manual_seed(0)
    shapes = {
        "a.weight": (6, 4),
        "a.bias": (6,),
        "b.weight": (6, 6),
        "c.weight": (6, 4),
        "norm.running_mean": (4,),
    }
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def swap(found: Tensors) -> None:
    found["a.weight"], found["c.weight"] = found["c.weight"], found["a.weight"]


def replace(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Tensors], None]:
    return lambda found: found.update({name: change(found[name])})


def rename(found: Tensors) -> None:
    found["b.kernel"] = found.pop("b.weight")


def prefix(found: Tensors) -> None:
    for name in list(found):
        found[f"module.{name}"] = found.pop(name)


def with_nan(value: Tensor) -> Tensor:
    value[1, 2] = float("nan")
    return value


@pytest.mark.parametrize(
    ("damage", "sentence", "cause"),
    [
        (
            replace("a.bias", lambda value: value * 2),
            "Parameter 'a.bias' is the first of 5 tensors that differs beyond rounding: B's is 2 times A's.",
            "scale by 2",
        ),
        (
            replace("norm.running_mean", torch.zeros_like),
            "Buffer 'norm.running_mean' is the first of 5 tensors",
            None,
        ),
        (replace("b.weight", lambda value: value.T.contiguous()), "Parameter 'b.weight' is", "transposed"),
        (
            replace("a.weight", lambda value: value.T.contiguous()),
            "its shape is [6, 4] in A and [4, 6] in B",
            "transposed",
        ),
        (
            replace("b.weight", lambda value: torch.cat([value[3:], value[:3]])),
            "Parameter 'b.weight' is",
            "shard order swapped: the 2 parts along dim 0 come in the order [1, 0]",
        ),
        (swap, "Parameter 'a.weight' is", "exchanged: B's is A's 'c.weight'"),
        (rename, "beyond rounding: B has no such tensor.", "renamed: B has the same values as 'b.kernel'"),
        (prefix, "B has no such tensor", "renamed: B's names begin with 'module.'"),
        (
            replace("b.weight", with_nan),
            "some values of one run aren't finite",
            "B has values that aren't finite",
        ),
        (
            replace("a.weight", lambda value: value.bfloat16() * 3),
            "Parameter 'a.weight' is",
            "the dtype was changed: float32 in A and bfloat16 in B",
        ),
    ],
)
@pytest.mark.parametrize("form", ["pt", "safetensors"])
def test_a_planted_fault(
    damage: Callable[[Tensors], None],
    sentence: str,
    cause: str | None,
    form: str,
    tmp_path: Path,
    capsys: Captured,
) -> None:
    right, wrong = tensors(), tensors()
    damage(wrong)
    save: Callable[..., object] = torch.save if form == "pt" else save_file
    for name, content in (("right", right), ("wrong", wrong)):
        save(content, tmp_path / f"{name}.{form}")
    found = compared(capsys, tmp_path / f"right.{form}", tmp_path / f"wrong.{form}")
    assert sentence in found["sentence"]
    assert any(cause in each for each in found["causes"]) if cause else not found["causes"]


def test_a_coarser_dtype_is_within_its_rounding(tmp_path: Path, capsys: Captured) -> None:
    right = tensors()
    torch.save(right, tmp_path / "right.pt")
    save_file({name: value.bfloat16() for name, value in right.items()}, tmp_path / "coarse.safetensors")
    found = compared(capsys, tmp_path / "right.pt", tmp_path / "coarse.safetensors", code=0)
    assert found["within_rounding"] == 5
    assert found["notes"] == [
        "'a.weight' is float32 in A and bfloat16 in B, and 4 more tensors differ in dtype"
    ]
    assert main(["diff", str(tmp_path / "right.pt"), str(tmp_path / "coarse.safetensors"), "--exact"]) == 1


def test_a_broken_tie_is_a_likely_cause(tmp_path: Path, capsys: Captured) -> None:
    right = tensors()
    right["head.weight"] = right["a.weight"]
    torch.save(right, tmp_path / "right.pt")
    torch.save({**right, "head.weight": right["a.weight"] + 1}, tmp_path / "wrong.pt")
    found = compared(capsys, tmp_path / "right.pt", tmp_path / "wrong.pt")
    assert "Parameter 'head.weight' is the first" in found["sentence"]
    assert "tie broken: 'head.weight' and 'a.weight' are one tensor, and in B they are two" in found["causes"]


def trained_file(path: Path, step: int, change: Callable[[nn.Linear, torch.optim.AdamW], None]) -> Path:
    """Save a trained layer and its optimizer, after a change."""
    torch.manual_seed(0)
    net = nn.Linear(40, 30)
    optimizer = torch.optim.AdamW(net.named_parameters())
    net(torch.randn(4, 40)).square().sum().backward()
    optimizer.step()
    with torch.no_grad():
        change(net, optimizer)
    state = {
        "state_dict": net.state_dict(),
        "optimizer_states": [optimizer.state_dict()],
        "global_step": step,
    }
    torch.save(state, path)
    return path


@pytest.mark.parametrize(
    ("units", "step", "code"), [(3, 1, 0), (12, 1, 1), (12, 100, 0), (80, 100, 1), (10**6, 10**12, 1)]
)
def test_rounding_grows_with_steps(
    units: int, step: int, code: int, tmp_path: Path, capsys: Captured
) -> None:
    def shift(net: nn.Linear, optimizer: torch.optim.AdamW) -> None:
        net.weight.mul_(1 + units * torch.finfo(torch.float32).eps)

    right = trained_file(tmp_path / "right.pt", step, lambda *_: None)
    found = compared(capsys, right, trained_file(tmp_path / "wrong.pt", step, shift), code=code)
    assert found["within_rounding"] == (code == 0)


def test_states_of_optimizers_are_less_exact_than_weights(tmp_path: Path, capsys: Captured) -> None:
    def shift(net: nn.Linear, optimizer: torch.optim.AdamW) -> None:
        optimizer.state[net.weight]["exp_avg"].mul_(1 + 12 * torch.finfo(torch.float32).eps)

    right = trained_file(tmp_path / "right.pt", 1, lambda *_: None)
    compared(capsys, right, trained_file(tmp_path / "wrong.pt", 1, shift), code=0)


def test_what_rounding_alone_decides_under_adam_is_left_out(tmp_path: Path, capsys: Captured) -> None:
    """As a key's bias in attention: it has no gradient but rounding, and Adam moves it by its learning rate."""

    def without_gradient(net: nn.Linear, optimizer: torch.optim.AdamW) -> None:
        optimizer.state[net.bias]["exp_avg_sq"][:10] = 1e-20

    def moved(net: nn.Linear, optimizer: torch.optim.AdamW) -> None:
        without_gradient(net, optimizer)
        net.bias[:10] += 1e-3

    def moved_with_gradient(net: nn.Linear, optimizer: torch.optim.AdamW) -> None:
        without_gradient(net, optimizer)
        net.bias[5:15] += 1e-3

    right = trained_file(tmp_path / "right.pt", 1, without_gradient)
    found = compared(capsys, right, trained_file(tmp_path / "moved.pt", 1, moved), code=0)
    assert "elements of 1 parameter, first 'bias', weren't compared" in found["notes"][0]
    found = compared(capsys, right, trained_file(tmp_path / "wrong.pt", 1, moved_with_gradient))
    assert found["sentence"].startswith("Parameter 'bias' is the first of 8 tensors")


def test_a_state_of_the_optimizer_is_named(tmp_path: Path, capsys: Captured) -> None:
    net = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(net.named_parameters())
    net(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    for name in ("right", "wrong"):
        state = {
            "state_dict": net.state_dict(),
            "optimizer_states": [optimizer.state_dict()],
            "global_step": 1,
        }
        torch.save(state, tmp_path / f"{name}.pt")
        optimizer.state[net.bias]["exp_avg"].mul_(2)
    found = compared(capsys, tmp_path / "right.pt", tmp_path / "wrong.pt")
    assert found["sentence"].startswith("The optimizer's 'exp_avg' of 'bias' is the first of 8 tensors")
    assert found["downstream"] == "7 tensors are equal to the bit; it is the only one that differs."
    torch.save(net.state_dict(), tmp_path / "weights.pt")
    found = compared(capsys, tmp_path / "right.pt", tmp_path / "weights.pt", code=0)
    assert found["notes"] == ["B has no optimizer states: those of the other weren't compared"]


# Bad input ----------------------------------------------------------------------------------------


class Harmful:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_bad_input_gets_one_sentence(fitted: Fitted, tmp_path: Path, capsys: Captured) -> None:
    weights, recorded = tmp_path / "weights.pt", tmp_path / "recorded"
    torch.save(tensors(), weights)
    with record(nn.Linear(2, 2), None, recorded):
        pass
    said = refusal(capsys, weights, recorded)
    assert "weights.pt is a checkpoint and" in said
    assert "recorded is a record of a training: give two checkpoints, or two records" in said
    assert f"there is nothing at {tmp_path}/gone" in refusal(capsys, tmp_path / "gone", weights)
    assert "--devices is for runs, and A and B are checkpoints" in refusal(
        capsys, weights, weights, "--devices", "2"
    )
    assert "--exact is for checkpoints" in refusal(capsys, recorded, recorded, "--exact")
    (tmp_path / "empty/checkpoints").mkdir(parents=True)
    assert "empty/checkpoints has no checkpoint" in refusal(capsys, tmp_path / "empty", weights)
    torch.save({"other": torch.ones(2)}, tmp_path / "other.pt")
    assert "have no tensor in common: A's first is 'a.weight' and B's 'other'" in refusal(
        capsys, weights, tmp_path / "other.pt"
    )
    harmful = tmp_path / "harmful.pt"
    harmful.write_bytes(pickle.dumps(Harmful(tmp_path / "harmed"), protocol=2))
    assert "harmful.pt" in refusal(capsys, weights, harmful)
    assert not (tmp_path / "harmed").exists()


def test_a_damaged_checkpoint_is_refused(fitted: Fitted, tmp_path: Path, capsys: Captured) -> None:
    right = fitted("single", 1)
    wrong = tmp_path / "wrong"
    shutil.copytree(right / "checkpoints/last", wrong)
    file = next(wrong.glob("tensors-*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    assert "aren't what was written" in refusal(capsys, right, wrong)
    file.unlink()
    assert "wrong" in refusal(capsys, right, wrong)
