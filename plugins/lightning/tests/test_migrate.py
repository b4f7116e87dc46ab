from __future__ import annotations

import pytest
from stratagem_cli.main import main
from stratagem_lightning.migration.python import rewrite, rewrite_text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import lightning as L\n", "import stratagem_lightning as L\n"),
        ("import lightning\n", "import stratagem_lightning as lightning\n"),
        ("import pytorch_lightning as pl, os\n", "import stratagem_lightning.pytorch as pl\nimport os\n"),
        ("import pytorch_lightning\n", "import stratagem_lightning.pytorch as pytorch_lightning\n"),
        (
            "import lightning.pytorch.callbacks\n",
            "import stratagem_lightning.pytorch.callbacks\nimport stratagem_lightning as lightning\n",
        ),
        (
            "if True:\n    from lightning.pytorch import Trainer as T, seed_everything  # a comment\n",
            "if True:\n    from stratagem_lightning.pytorch import Trainer as T, seed_everything  # a comment\n",
        ),
        (
            "from pytorch_lightning.loggers import (\n    CSVLogger,\n    WandbLogger,\n)\n",
            "from stratagem_lightning.pytorch.loggers import CSVLogger, WandbLogger\n",
        ),
        ("x = 'lightning.pytorch.callbacks.Timer'\n", 'x = "stratagem_lightning.pytorch.callbacks.Timer"\n'),
        ("é = 'é'; import lightning as L\n", "é = 'é'; import stratagem_lightning as L\n"),
        ("import lightning_utilities\nx = 'lightning strikes'\n", None),
        ("from .lightning import x\n", None),
    ],
)
def test_imports_are_rewritten_and_nothing_else(before, after) -> None:
    text, lacks = rewrite(before)
    assert text == (before if after is None else after)
    assert lacks == []
    compile(text, "program", "exec")


def test_what_is_not_here_is_listed_by_line_with_the_reason() -> None:
    program = (
        "import lightning as L\n"
        "from lightning.pytorch.demos.boring_classes import BoringModel\n"
        "from lightning.pytorch.callbacks import SpikeDetection, Timer\n"
        "class Net(L.LightningModule):\n"
        "    def training_epoch_end(self, outputs):\n"
        "        self.trainer.fit_loop.epoch_progress\n"
        "L.Trainer(max_epochs=1,\n"
        "          gpus=2)\n"
    )
    _, lacks = rewrite(program)
    assert [(lack.line, lack.what) for lack in lacks] == [
        (2, "lightning.pytorch.demos.boring_classes.BoringModel"),
        (3, "lightning.pytorch.callbacks.SpikeDetection"),
        (5, "Net.training_epoch_end"),
        (6, "trainer.fit_loop"),
        (8, "Trainer(gpus=…)"),
    ]
    assert "on_train_epoch_end" in lacks[2].reason
    assert "devices" in lacks[4].reason


def test_uses_are_found_however_the_program_has_its_names() -> None:
    program = """import torch
import lightning.pytorch as pl
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, TQDMProgressBar
class Base(pl.LightningModule):
    def export(self):
        return self.to_onnx("x")
class Net(Base):
    def backward(self, loss):
        loss.backward()
    def on_validation_model_eval(self):
        pass
class Own(ModelCheckpoint):
    def _save_checkpoint(self, trainer, path):
        pass
class Stops(EarlyStopping):
    def _evaluate_stopping_criteria(self, value):
        pass
class Bar(TQDMProgressBar):
    def init_train_tqdm(self):
        pass
trainer = pl.Trainer(accelerator="ddp", strategy="hivemind", devices=2)
trainer.fit_loop.max_epochs = 3
pl.callbacks.SpikeDetection()
pl.demos.boring_classes.BoringModel
torch.load(trainer.checkpoint_callback.best_model_path)
fabric.load_raw("x")
path = "lightning.pytorch.callbacks.SpikeDetection"
trainer.fit_loop.epoch_progress
"""
    _, lacks = rewrite(program)
    assert [(lack.line, lack.what) for lack in lacks] == [
        (6, "self.to_onnx"),
        (8, "Net.backward"),
        (10, "Net.on_validation_model_eval"),
        (13, "Own._save_checkpoint"),
        (16, "Stops._evaluate_stopping_criteria"),
        (19, "Bar.init_train_tqdm"),
        (21, "Trainer(accelerator=…)"),
        (21, "Trainer(strategy=…)"),
        (23, "lightning.pytorch.callbacks.SpikeDetection"),
        (24, "lightning.pytorch.demos"),
        (25, "torch.load(….best_model_path)"),
        (26, "fabric.load_raw"),
        (27, "lightning.pytorch.callbacks.SpikeDetection"),
        (28, "trainer.fit_loop"),
    ]
    assert all(lack.reason for lack in lacks)


def test_urls_files_and_comments_raise_no_alarm() -> None:
    program = (
        "import lightning as L  # from lightning.pytorch.nothing import X\n"
        "a = 'https://lightning.ai/docs', 'lightning.ai', 'pytorch_lightning.readthedocs.io', 'lightning.log'\n"
        "b = 'see lightning.pytorch.nothing.X'\n"
    )
    text, lacks = rewrite(program)
    assert (text, lacks) == (program.replace("import lightning as", "import stratagem_lightning as"), [])
    configuration = (
        "# lightning.pytorch.nothing.X, and lightning.pytorch.Trainer as it was\n"
        "docs: https://lightning.ai/docs/pytorch, https://pytorch_lightning.readthedocs.io\n"
        "file: logs/lightning.log\n"
        "mail: me@lightning.ai\n"
        "host: lightning.ai  # lightning.pytorch.plugins.X\n"
        "package: pytorch-lightning.git\n"
        "it: 'don''t # lightning.pytorch.Trainer'\n"
    )
    text, lacks = rewrite_text(configuration)
    assert text == configuration.replace("t # lightning", "t # stratagem_lightning")
    assert lacks == []


def test_class_paths_of_configurations() -> None:
    text, lacks = rewrite_text(
        "a: lightning.pytorch.loggers.CSVLogger\nb: lightning.pytorch.plugins.X # no\n"
    )
    assert text == "a: stratagem_lightning.pytorch.loggers.CSVLogger\nb: lightning.pytorch.plugins.X # no\n"
    assert [lack.line for lack in lacks] == [2]


def test_the_command(tmp_path, capsys) -> None:
    program, configuration = tmp_path / "a.py", tmp_path / "sub" / "b.yaml"
    configuration.parent.mkdir()
    program.write_text("import lightning as L\r\nfrom lightning import nothing\r\n", newline="")
    configuration.write_text("x: lightning.pytorch.Trainer\n")
    assert main(["migrate", "--diff", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "+import stratagem_lightning as L" in out
    assert program.read_bytes().startswith(b"import lightning")
    assert main(["migrate", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert f"{program}:2: lightning.nothing: stratagem_lightning has no 'nothing'\n" in out
    assert out.endswith("1 place needs a change by hand\n")
    assert (
        program.read_bytes()
        == b"import stratagem_lightning as L\r\nfrom stratagem_lightning import nothing\r\n"
    )
    assert configuration.read_text() == "x: stratagem_lightning.pytorch.Trainer\n"
    program.write_text("x = 1\n")
    assert main(["migrate", str(program)]) == 0


def test_bad_input_is_one_sentence(tmp_path, capsys) -> None:
    (tmp_path / "a.py").write_text("def\n")
    (tmp_path / "a.txt").write_text("")
    for path, said in {
        "a.py": "isn't Python: line 1",
        "a.txt": "must end with one of .json",
        "b.py": "can't be found",
    }.items():
        assert main(["migrate", str(tmp_path / path)]) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1


def test_files_that_are_no_text_leave_all_as_they_were(tmp_path, capsys) -> None:
    program = "import lightning as L\n"
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    for content, said in (
        (b"name = '\xe9'\n", "isn't text in UTF-8"),
        (b"# -*- coding: nonsense -*-\n", "isn't text in UTF-8"),
        (b"a = 1\0\n", "isn't Python"),
        (b"(" * 100_000, "isn't Python"),
    ):
        first.write_text(program)
        second.write_bytes(content)
        assert main(["migrate", str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert len(error.splitlines()) == 1
        assert first.read_text() == program
    second.write_bytes(b"# -*- coding: latin-1 -*-\nimport lightning as L\nname = '\xe9'\n")
    assert main(["migrate", str(second)]) == 0
    assert b"lightning as" in second.read_bytes()
    assert b"'\xe9'" in second.read_bytes()


def test_names_of_other_libraries_are_listed_with_what_is_here() -> None:
    program = (
        "from transformers import Trainer, TrainingArguments as Arguments\n"
        "import accelerate\n"
        "arguments = Arguments('out',\n"
        "                      bf16=True, my_own=1)\n"
        "trainer = Trainer(model, arguments, train_dataset=data)\n"
        "trainer.train()\n"
        "accelerator = accelerate.Accelerator()\n"
        "accelerator.backward(loss)\n"
        "other.backward(loss)\n"
        "def Accelerator(): ...\n"
    )
    text, lacks = rewrite(program)
    assert text == program
    assert [(lack.line, lack.what) for lack in lacks] == [
        (4, "TrainingArguments(bf16=…)"),
        (5, "Trainer(train_dataset=…)"),
        (6, "Trainer.train"),
        (8, "Accelerator.backward"),
    ]
    assert lacks[0].reason.startswith("here Trainer(precision=…)")
    assert lacks[2].reason == "here Trainer.fit"


def test_a_program_with_a_class_of_its_own_by_such_a_name_is_left_alone() -> None:
    program = "class Trainer: ...\ntrainer = Trainer(train_dataset=1)\ntrainer.train()\n"
    assert rewrite(program) == (program, [])
