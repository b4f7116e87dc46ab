"""`python -m stratagem_lightning program.py` runs what imports Lightning as it is, in all of its processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

LIBRARY = {
    "shaped/__init__.py": "from shaped.model import Shaped\n",
    "shaped/model.py": """
        import lightning.pytorch as pl
        import torch
        from lightning.pytorch.utilities import rank_zero_only

        class Shaped(pl.LightningModule):
            def __init__(self, width=4):
                super().__init__()
                self.save_hyperparameters()
                self.net = torch.nn.Linear(width, 1)

            def training_step(self, batch, batch_idx):
                return self.net(batch[0]).pow(2).mean()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)
        """,
    "shaped/notes.py": """
        import sys
        import lightning
        from pytorch_lightning.callbacks import Callback

        class Notes(Callback):
            def on_train_start(self, trainer, pl_module):
                assert "lightning" in sys.modules
                with open(f"rank-{trainer.global_rank}", "w") as file:
                    file.write(f"{lightning.__name__} {lightning.pytorch.__spec__.name} {Callback.__module__}")
        """,
    "shaped/cli.py": """
        import sys
        import lightning as L
        import pytorch_lightning as pl
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        from shaped import Shaped
        from shaped.notes import Notes

        def main():
            assert issubclass(Shaped, L.LightningModule) and L.Trainer is pl.Trainer
            trainer = L.Trainer(
                max_epochs=1, accelerator="cpu", devices=int(sys.argv[1]), strategy=sys.argv[2], logger=False,
                enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
                callbacks=[Notes()],
            )
            x = torch.arange(48.0).view(12, 4)
            trainer.fit(Shaped(), DataLoader(TensorDataset(x), batch_size=2))
            print("steps", trainer.global_step, sys.argv)

        if __name__ == "__main__":
            main()
        """,
    "program.py": """
        import os
        from shaped.cli import main
        from lightning import LightningModule

        if __name__ == "__main__":
            main()
            try:
                import lightning.pytorch.serve
            except ModuleNotFoundError as error:
                print(error)
            try:
                import lightning.trainer
            except ModuleNotFoundError as error:
                print(error.name)
        """,
}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-W", "ignore", "-m", "stratagem_lightning", *arguments]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)


def test_a_library_of_lightning_runs_as_it_is_in_all_processes(tmp_path) -> None:
    for name, text in LIBRARY.items():
        path = tmp_path / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    (tmp_path / "elsewhere").mkdir()
    two = run(tmp_path / "elsewhere", "../work/program.py", "2", "ddp")
    assert two.returncode == 0, two.stderr
    assert two.stdout.splitlines() == [
        "steps 3 ['../work/program.py', '2', 'ddp']",
        "lightning.pytorch.serve isn't here: serving isn't part of a trainer",
        "lightning.trainer",
    ]
    for rank in range(2):
        text = (tmp_path / "elsewhere" / f"rank-{rank}").read_text()
        assert text == "stratagem_lightning stratagem_lightning.pytorch stratagem_trainer.callbacks.base"
    module = run(tmp_path / "work", "-m", "shaped.cli", "1", "auto")
    assert module.returncode == 0, module.stderr
    assert module.stdout.startswith("steps 6 [")


def test_a_call_without_a_program_is_refused(tmp_path) -> None:
    none, missing, asked = run(tmp_path), run(tmp_path, "none.py"), run(tmp_path, "--help")
    assert (none.returncode, missing.returncode, asked.returncode) == (2, 2, 0)
    assert none.stderr.startswith("Error: no program was given")
    assert missing.stderr == "Error: there is no program 'none.py': give the path of a file\n"
    assert asked.stdout.startswith("usage: python -m stratagem_lightning PROGRAM.py")


def test_names_that_libraries_use_unofficially_are_there() -> None:
    from stratagem_lightning.fabric.utilities.types import _MAP_LOCATION_TYPE, _PATH
    from stratagem_lightning.pytorch.callbacks import BasePredictionWriter

    assert _PATH  # pytorch-forecasting imports them for annotations
    assert _MAP_LOCATION_TYPE
    both, batch = BasePredictionWriter("batch_and_epoch").interval, BasePredictionWriter("batch").interval
    assert (both.on_batch, both.on_epoch, batch.on_batch, batch.on_epoch) == (True, True, True, False)
    assert batch == "batch"
