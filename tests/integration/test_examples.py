"""The examples run with the commands that they document."""

import csv
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent
DDP = ["--strategy", "ddp", "--accelerator", "cpu", "--devices", "2"]


def run(folder, *words, **variables):
    environ = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        **variables,
    }
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_make_demo_reaches_97_percent_and_leaves_its_files(tmp_path):
    recipe = re.search(r"^demo:.*\n\t@\$\(BIN\)/(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    program, *words = recipe.replace("examples/", f"{ROOT}/examples/").split()
    assert "--strategy ddp --accelerator cpu --devices 2" in recipe
    printed = run(tmp_path, BIN / program, *words, "--run-dir", "run")
    assert float(re.search(r"^val_acc +([\d.]+)$", printed, re.MULTILINE)[1]) >= 0.97
    assert "run folder  run" in printed
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert files == {"checkpoints", "config.yaml", "curves.png", "metrics.csv"}
    rows = list(csv.DictReader((tmp_path / "run/metrics.csv").read_text().splitlines()))
    assert max(float(row["val_acc"]) for row in rows if row["val_acc"]) >= 0.97
    assert (tmp_path / "run/curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_raw_loop_under_stratagem_run(tmp_path):
    words = ["run", "--strategy", "ddp", "--accelerator", "cpu", "--devices", "2"]
    script = [str(ROOT / "examples/raw_loop.py"), "--epochs", "3", "--checkpoint", "here"]
    printed = run(tmp_path, BIN / "stratagem", *words, *script)
    assert float(re.search(r"accuracy ([\d.]+)", printed)[1]) >= 0.9
    assert (tmp_path / "here/manifest.json").exists()


@pytest.mark.long
def test_the_raw_loop_as_a_plain_program_and_under_torchrun(tmp_path):
    script = [str(ROOT / "examples/raw_loop.py"), "--epochs", "2"]
    plain = run(tmp_path, sys.executable, *script)
    under = run(tmp_path, BIN / "torchrun", "--standalone", "--nproc-per-node", "2", *script)
    assert re.findall("epoch \\d+", plain) == re.findall("epoch \\d+", under) == ["epoch 0", "epoch 1"]
    assert plain.count("accuracy") == under.count("accuracy") == 1


def fit(folder, target, *words):
    """Run `stratagem fit` of a class in examples/ on the CPU, and return what it logged last, and all it printed."""
    where = [] if "--strategy" in words else ["--devices", "1"]
    flags = ["--accelerator", "cpu", *where, "--run-dir", "run"]
    printed = run(folder, BIN / "stratagem", "fit", EXAMPLES / target, *flags, *words)
    return {
        name: float(value) for name, value in re.findall(r"^(\w+) +([\d.e+-]+)$", printed, re.MULTILINE)
    }, printed


PROGRAMS = sorted([*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.sh")])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_header_says_what_it_is_and_by_which_command_it_runs(program):
    text = program.read_text()
    head = (
        text.split('"""')[1]
        if program.suffix == ".py"
        else "".join(re.findall(r"^#.*\n", text, re.MULTILINE))
    )
    assert re.search(
        rf"^(#  )?\s*(\w+=\S+ )*(stratagem|python|bash|sbatch) .*examples/{program.name}", head, re.MULTILINE
    )
    assert len(text.splitlines()) <= 130


@pytest.mark.long
def test_the_language_model_learns_bytes_under_ddp(tmp_path):
    small = ["--set", "model.width=32", "--set", "model.context=32", "--set", "trainer.val_check_interval=40"]
    logged, _ = fit(tmp_path, "language_model.py:ByteModel", *DDP, "--max-steps", "40", *small)
    assert 3 < logged["val_bits"] < 6  # 8 before the first step


@pytest.mark.long
def test_each_byte_of_unequal_texts_counts_the_same_on_two_ranks(tmp_path):
    small = ["--set", "model.width=32", "--set", "model.context=32", "--set", "trainer.val_check_interval=20"]
    two, _ = fit(tmp_path, "unequal_texts.py:ParagraphModel", *DDP, "--max-steps", "20", *small)
    # In one process, with the same texts in each step.
    once = ["--accelerator", "cpu", "--devices", "1", "--set", "model.batch_size=32"]
    one, _ = fit(tmp_path, "unequal_texts.py:ParagraphModel", *once, "--max-steps", "20", *small)
    assert 4 < two["val_bits"] < 7  # 8 before the first step
    assert two["val_bits"] == pytest.approx(one["val_bits"], rel=1e-5)


@pytest.mark.long
def test_the_gan_draws_digits_from_its_checkpoint(tmp_path):
    logged, _ = fit(tmp_path, "gan.py:GAN", "--max-epochs", "4")
    assert logged["val_distance"] < 2.9  # 3.7 for noise, 3.1 for grey
    words = [
        "--accelerator",
        "cpu",
        "--devices",
        "1",
        "--ckpt-path",
        "run/checkpoints/last",
        "--output",
        "drawn.npz",
    ]
    printed = run(tmp_path, BIN / "stratagem", "predict", EXAMPLES / "gan.py:GAN", *words)
    assert "predictions  float32 64×8×8" in printed


@pytest.mark.long
def test_the_regression_writes_a_table_in_the_order_of_the_data(tmp_path):
    printed = run(tmp_path, sys.executable, EXAMPLES / "regression.py", *DDP, "--max-epochs", "20")
    path = tmp_path / re.search(r"100 predictions in (\S+)", printed)[1]
    if path.suffix == ".csv":
        rows = [
            {k: float(v) for k, v in row.items()} for row in csv.DictReader(path.read_text().splitlines())
        ]
    else:
        import pyarrow.parquet

        rows = pyarrow.parquet.read_table(path).to_pylist()
    assert len(rows) == 100
    # Were they in another order, predictions would explain nothing: the variance of progress is about 1.
    assert sum((row["progress"] - row["predicted"]) ** 2 for row in rows) / 100 < 0.75
    assert all(row["std"] > 0 for row in rows)


@pytest.mark.long
def test_the_cart_learns_in_two_processes(tmp_path):
    script = [EXAMPLES / "reinforcement.py", "--updates", "20"]
    printed = run(tmp_path, BIN / "stratagem", "run", *DDP, *script)
    first, last = (float(ticks) for ticks in re.findall(r"update \d+: (\d+) ticks", printed))
    assert last > first > 15  # a cart that is pushed at random falls after 22


@pytest.mark.long
def test_the_model_of_transformers_under_fsdp(tmp_path):
    small = ["--set", "model.hidden_size=32", "--set", "model.context=32"]
    fsdp = ["--strategy", "fsdp", "--devices", "2"]
    logged, _ = fit(tmp_path, "hugging_face.py:Llama", *fsdp, "--max-steps", "20", *small)
    assert logged["train_loss"] < 5  # 5.5 before the first step


@pytest.mark.long
def test_ranks_keep_a_share_of_the_tensors(tmp_path):
    small = ["--set", "model.width=32", "--set", "model.context=32"]
    split = ["--strategy", "model_parallel", "--devices", "2"]
    _, printed = fit(tmp_path, "tensor_parallel.py:SplitByteModel", *split, "--max-steps", "2", *small)
    kept = [
        [int(n.replace(",", "")) for n in pair] for pair in re.findall(r"keeps ([\d,]+) of ([\d,]+)", printed)
    ]
    assert len(kept) == 2
    assert all(own < 0.75 * total for own, total in kept)


@pytest.mark.long
def test_stages_need_less_memory_and_lose_nothing(tmp_path):
    small = ["--width", "8", "--batch-size", "256", "--max-steps", "1", "--micro-batches", "2"]
    printed = run(tmp_path, sys.executable, EXAMPLES / "pipeline.py", *small, MALLOC_MMAP_THRESHOLD_="65536")
    table = [line for line in printed.splitlines() if " MB" in line]
    assert [line[:22].strip() for line in table] == [
        "one device",
        "equally many layers",
        "balanced",
        "and checkpointing",
    ]
    losses = [float(line.rsplit(maxsplit=1)[1]) for line in table]
    assert losses == pytest.approx([losses[0]] * 4, abs=1e-4)
    peaks = [[int(mb.replace(",", "")) for mb in re.findall(r"([\d,]+) MB", line)] for line in table]
    assert [len(row) for row in peaks] == [1, 2, 2, 2]
    one, equally, balanced, checkpointed = (max(row) for row in peaks)
    assert checkpointed < balanced < equally < one


@pytest.mark.long
def test_the_job_of_torchrun(tmp_path):
    words = ["--accelerator", "cpu", "--max-epochs", "1"]
    printed = run(tmp_path, "bash", EXAMPLES / "torchrun.sh", *words)
    assert float(re.search(r"^val_acc +([\d.]+)$", printed, re.MULTILINE)[1]) > 0.5
    assert (tmp_path / "runs/torchrun/metrics.csv").exists()


SRUN_STAND_IN = """#!/usr/bin/env bash
# Starts tasks on this machine with the variables that srun sets.
for task in $(seq 0 $((SLURM_NTASKS - 1))); do
  SLURM_STEP_ID=0 SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_NODEID=0 "$@" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || exit $?; done
"""


@pytest.mark.long
def test_the_job_of_slurm(tmp_path):
    (tmp_path / "srun").write_text(SRUN_STAND_IN)
    (tmp_path / "srun").chmod(stat.S_IRWXU)
    tasks = {
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_NNODES": "1",
        "SLURM_JOB_ID": str(os.getpid()),
    }
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "localhost"}
    more = {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NPROCS": "2", "SLURM_JOB_NODELIST": "localhost"}
    path = f"{tmp_path}{os.pathsep}{BIN}{os.pathsep}{os.environ['PATH']}"
    job = [EXAMPLES / "slurm.sh", "--max-epochs", "1", "--run-dir", tmp_path / "run"]
    printed = run(ROOT, "bash", *job, **tasks, **step, **more, PATH=path)
    assert printed.count("val_acc     ") == 1
    assert (tmp_path / "run/metrics.csv").exists()
    # The tasks and nodes that Slurm is asked for are those that the run gets.
    text = EXAMPLES.joinpath("slurm.sh").read_text()
    assert re.findall(r"^#SBATCH --(nodes|ntasks-per-node)=2$", text, re.MULTILINE) == [
        "nodes",
        "ntasks-per-node",
    ]


@pytest.mark.long
def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    nbclient = pytest.importorskip(
        "nbclient", reason="needs nbclient and ipykernel: pip install nbclient ipykernel"
    )
    pytest.importorskip("ipykernel", reason="needs ipykernel: pip install ipykernel")
    import nbformat

    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    assert [cell for cell in notebook.cells if cell.get("outputs")] == []  # kept without outputs
    nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [
        out["data"]["text/plain"]
        for cell in notebook.cells
        for out in cell.get("outputs", ())
        if "data" in out
    ]
    assert float(shown[-1].strip("'")) > 0.9
    assert float(shown[-1].strip("'")) == pytest.approx(float(shown[-2]), abs=1e-3)
