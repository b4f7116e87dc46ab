"""Writes docs/coming-from-lightning.md from the tables of stratagem_lightning: `make lightning`."""

from __future__ import annotations

from collections.abc import Iterator

from stratagem_lightning.absent import ABSENT, ARGUMENTS, DIFFERENT, MEMBERS
from stratagem_lightning.names import MODULES
from stratagem_trainer.module.hook_names import ELSEWHERE

HEAD = """\
# Coming from Lightning

```sh
pip install stratagem-lightning stratagem-ddp stratagem-cpu
stratagem migrate train.py            # rewrites imports; lists by line what has to be changed by hand
stratagem run --strategy ddp --devices 2 train.py
```

`import stratagem_lightning as L` takes the place of `import lightning as L`, with the same submodules; programs with
`pytorch_lightning` import `stratagem_lightning.pytorch`. Names, arguments and defaults are Lightning's, and what they
do is done by `stratagem.Trainer`, `stratagem.Module` and `stratagem.Runtime`, which new programs can use directly.
What isn't here is refused by name with the reason, when it is imported, passed or overridden; nothing is ignored.

A library of Lightning, or a program that is to stay as it is, runs without a changed line:

```sh
python -m stratagem_lightning train.py --epochs 3       # or: -m package.module
python -m stratagem_lightning "$(which tool)" train     # a command that a library has installed
```

In that command's processes, workers included, `lightning`, `pytorch_lightning` and `lightning_fabric` are
`stratagem_lightning`; nothing else changes, and no other command does this. `__version__` is Stratagem's.
Programs of pytorch-forecasting 1.8 and chemprop 2.1 were run so, on one device.

Programs that open checkpoints themselves (`torch.load(checkpoint.best_model_path)`) want files:
`ModelCheckpoint(as_file=True)`, or `STRATAGEM_CKPT_FILES=1` in the environment for those that stay as they are, which
also holds for `trainer.save_checkpoint`. Each checkpoint is then a `.ckpt` that Lightning reads and goes on from,
with weights, optimizers, hyperparameters and what hooks have added. Its folder, `NAME.ckpt.folder`, lies beside it:
`ckpt_path` and `load_from_checkpoint` read that here when they are given the file.

`make moving DIR=folder` runs a folder of your own programs under Lightning, and under this in one and in two
processes, and says what differs. The programs of `plugins/lightning/tests/programs` are run that way in every test
run: what they log for each step is equal to Lightning's, bit by bit.

The tables below are generated from those that decide at run time, and a test compares them with the installed
Lightning.
"""


def main() -> None:
    """Print the page."""
    print(HEAD)
    print("## What is different\n")
    print("| | Lightning | here |\n| --- | --- | --- |")
    for what, there, here in DIFFERENT:
        print(f"| {what} | {there} | {here} |")
    print("\n## The same names\n")
    print("| `stratagem_lightning.…` | names |\n| --- | --- |")
    for module, names in MODULES.items():
        if names and not any(
            MODULES[each] is names for each in MODULES if each != module and len(each) < len(module)
        ):
            print(f"| `{module or '(the package)'}` | {', '.join(f'`{name}`' for name in sorted(names))} |")
    print("\nSubmodules such as `pytorch.callbacks.model_checkpoint` have the names of the one above.")
    for title, rows in _absent():
        print(f"\n## {title}\n\n| Lightning | why, or what instead |\n| --- | --- |")
        for name, reason in rows:
            print(f"| `{name}` | {reason} |")


def _absent() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    yield "Absent modules and names", sorted(ABSENT.items())
    yield (
        "Absent members",
        [(f"{c}.{m}", why) for c, members in MEMBERS.items() for m, why in sorted(members.items())],
    )
    yield "Absent arguments", sorted(ARGUMENTS.items())
    yield "Hooks that aren't called", sorted(ELSEWHERE.items())


if __name__ == "__main__":
    main()
