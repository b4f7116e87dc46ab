"""Writes docs/coming-from-lightning.md from the tables of stratagem_lightning: `make coming-from`."""

from __future__ import annotations

from collections.abc import Iterator

from stratagem_lightning.absent import ABSENT, ARGUMENTS, DIFFERENT, MEMBERS
from stratagem_lightning.names import MODULES
from stratagem_trainer.module.hook_names import ELSEWHERE

HEAD = """\
# Coming from Lightning

Run a program written for PyTorch Lightning, unchanged or with new imports:

```bash
pip install stratagem-lightning stratagem-ddp stratagem-cpu
python -m stratagem_lightning train.py --epochs 3      # unchanged
stratagem migrate train.py                             # or rewrite its imports
stratagem run --strategy ddp --devices 2 train.py
```

## Unchanged

`python -m stratagem_lightning` runs a program, and the libraries that it uses, without a changed line:

```bash
python -m stratagem_lightning -m package.module
python -m stratagem_lightning "$(which tool)" train     # a command that a library has installed
```

In the processes of this command, including workers, `lightning`, `pytorch_lightning` and `lightning_fabric`
are `stratagem_lightning`. Nothing else changes, and no other command does this. `__version__` is Stratagem's.
Programs of pytorch-forecasting 1.8 and chemprop 2.1 were run in this way, on one device.

## With new imports

`stratagem migrate` rewrites imports, and lists by line what you must change by hand. `import
stratagem_lightning as L` replaces `import lightning as L`, with the same submodules. Programs with
`pytorch_lightning` import `stratagem_lightning.pytorch`.

Names, arguments and defaults are those of Lightning. `stratagem.Trainer`, `stratagem.Module` and
`stratagem.Runtime` do the work; new programs can use them directly. A name that isn't supported is refused
with the reason when it is imported, passed or overridden. Nothing is ignored.

## Checkpoint files

A program that opens checkpoints itself (`torch.load(checkpoint.best_model_path)`) needs files: pass
`ModelCheckpoint(as_file=True)`, or set `STRATAGEM_CKPT_FILES=1` for a program that stays unchanged, which
also applies to `trainer.save_checkpoint`. Each checkpoint is then a `.ckpt` that Lightning can load and
resume from, with weights, optimizers, hyperparameters and what hooks have added. Its folder,
`NAME.ckpt.folder`, is next to it: `ckpt_path` and `load_from_checkpoint` read the folder when you pass the
file.

## Compare your programs

`make moving DIR=folder` runs a folder of programs under Lightning, and under Stratagem in one and in two
processes, and reports what differs. Every test run does this for the programs of
`plugins/lightning/tests/programs`: the values that they log in each step are equal to Lightning's, bit by
bit.

The tables below are generated from those that are used at run time, and a test compares them with the
installed Lightning.
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
