"""`stratagem diff`: the first place where two runs or checkpoints differ."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup
from stratagem_cli.listing import print_json

from stratagem.errors import UsageError

if TYPE_CHECKING:
    from stratagem_diff.comparison import Comparison
    from stratagem_diff.run import Run
    from stratagem_diff.sentences import Said

_RUNS = cloup.OptionGroup("Runs", help="Flags of both sides; `--against` changes them for B.")
_RECORDS = cloup.OptionGroup("Recording")
_STEP = cloup.OptionGroup("A kept step")
_CHECKPOINTS = cloup.OptionGroup("Checkpoints")
_OUTPUT = cloup.OptionGroup("Output")
_ONLY_RUNS = (
    "strategy",
    "devices",
    "accelerator",
    "precision",
    "seed",
    "data",
    "config",
    "sets",
    "python",
    "cwd",
)


@cloup.command(
    epilog="\b\n"
    "Examples:\n"
    "  stratagem diff digits.py:Digits --strategy ddp --devices 2 --against fsdp\n"
    "  stratagem diff record-a record-b\n"
    "  stratagem diff runs/one runs/two/checkpoints/last\n"
    "  stratagem diff runs/one --step 1042",
)
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@cloup.option(
    "--against",
    group=_RUNS,
    multiple=True,
    metavar="CHANGE",
    help="What B has instead: the name of a strategy, KEY=VALUE such as devices=4, precision=bf16-mixed, "
    "python=FILE, cwd=FOLDER, target=TARGET or model.hidden=64, or compile (repeatable).",
)
@cloup.option("--strategy", group=_RUNS, metavar="NAME", help="As ddp; single if not given.")
@cloup.option("--devices", group=_RUNS, metavar="N", help="Number of devices; 1 if not given.")
@cloup.option("--accelerator", group=_RUNS, metavar="NAME", help="As cpu or cuda; the best one if not given.")
@cloup.option("--precision", group=_RUNS, metavar="NAME", help="As 32-true, bf16-mixed or 16-mixed.")
@cloup.option("--seed", group=_RUNS, type=click.IntRange(0), help="For every random number generator.")
@cloup.option("--data", group=_RUNS, metavar="TARGET", help="A DataModule, as for fit.")
@cloup.option("--config", group=_RUNS, multiple=True, metavar="FILE", help="As for fit (repeatable).")
@cloup.option(
    "--set", "sets", group=_RUNS, multiple=True, metavar="KEY=VALUE", help="As for fit (repeatable)."
)
@cloup.option("--python", group=_RUNS, metavar="FILE", help="Another interpreter.")
@cloup.option("--cwd", group=_RUNS, metavar="FOLDER", help="Another working directory.")
@cloup.option(
    "--steps", group=_RECORDS, type=click.IntRange(1), default=3, show_default=True, help="Optimizer steps."
)
@cloup.option("--no-dropout", group=_RECORDS, is_flag=True, help="Set the probability of dropout to 0.")
@cloup.option("--keep", group=_RECORDS, metavar="FOLDER", help="Keep the records of the runs there.")
@cloup.option(
    "--rounding",
    group=_RECORDS,
    multiple=True,
    metavar="RECORD",
    help="For two records: a record of A with another rounding, and one of B if its precision differs.",
)
@cloup.option(
    "--estimate",
    group=_RECORDS,
    is_flag=True,
    help="Estimate rounding instead of measuring it by a further run.",
)
@cloup.option(
    "--step",
    group=_STEP,
    type=click.IntRange(1),
    help="Which optimizer step of the run A, from 1; without it, the first that raised or isn't finite, or the "
    "chosen one.",
)
@cloup.option(
    "--exact",
    group=_CHECKPOINTS,
    is_flag=True,
    help="Tensors have to be equal to the bit, not within rounding.",
)
@cloup.option(
    "--json", "as_json", group=_OUTPUT, is_flag=True, help="As JSON: docs/guides/diff.md has the keys."
)
@cloup.option(
    "--html", group=_OUTPUT, metavar="FILE", help="Also write a page: the modules coloured by error."
)
@click.pass_context
def diff(
    ctx: click.Context, /, a: str, b: str | None, as_json: bool, html: str | None, **keywords: Any
) -> None:
    """Say the first place where two trainings or checkpoints differ; exit code 1 if they differ beyond rounding.

    A and B are checkpoints, runs whose last checkpoints are compared, or folders that
    `python -m stratagem_diff record` or `stratagem_diff.record` wrote. Or A is a TARGET as for `stratagem fit`, or a
    script as for `stratagem run`: it is trained twice, the second time with the changes of --against. Or A is a run
    whose steps `--use capsule` kept, and there is no B: the step is run in one process, and as in the run.
    docs/guides/diff.md.
    """
    if html is not None and not Path(html).resolve().parent.is_dir():
        raise UsageError(f"--html {html}: there is no folder {Path(html).resolve().parent}")
    if keywords["exact"] and (b is None or not _are_checkpoints(a, b)):
        raise UsageError("--exact is for checkpoints: two trainings differ by rounding; leave it out")
    if b is not None and keywords["step"] is not None:
        raise UsageError(f"--step is for the kept step of one run: leave it out, or leave out {b}")
    if b is None and (keywords["step"] is not None or os.path.isdir(os.path.join(a, "capsules"))):
        result = _of_kept_step(a, keywords)
    elif b is None:
        result = _of_runs(a, keywords)
    elif _are_checkpoints(a, b):
        result = _of_checkpoints(a, b, keywords)
    else:
        result = _of_records(a, b, keywords)
    if html is not None:
        from stratagem_diff.page.document import document

        Path(html).write_text(document(result.found, result.sides, result.said), encoding="utf-8")
    if as_json:
        print_json({"a": result.sides[0], "b": result.sides[1], **result.as_json})
    else:
        from stratagem_diff.sentences import report

        click.echo("\n".join([f"A: {result.sides[0]}", f"B: {result.sides[1]}", "", report(result.said)]))
    if result.found.first is not None:
        ctx.exit(1)


@dataclass(frozen=True)
class _Result:
    """What came of a comparison, and how it is said."""

    found: Comparison
    sides: tuple[str, str]
    said: Said
    as_json: dict[str, Any]


def _are_checkpoints(a: str, b: str) -> bool:
    """Whether both are checkpoints; False if none is, so that they are to be records.

    Raises:
        UsageError: one is, and the other isn't.
    """
    from stratagem_diff.checkpoints.opening import is_checkpoint
    from stratagem_diff.files import has_record

    if has_record(a) and has_record(b):
        return False
    found = [is_checkpoint(each) and not has_record(each) for each in (a, b)]
    if found[0] != found[1]:
        one, other = (a, b) if found[0] else (b, a)
        if not os.path.exists(other):
            raise UsageError(f"there is nothing at {other}: give a second checkpoint, as {one} is one")
        what = "a record of a training" if has_record(other) else "none"
        raise UsageError(f"{one} is a checkpoint and {other} is {what}: give two checkpoints, or two records")
    return found[0]


def _refuse(
    keywords: dict[str, Any], names: Sequence[str], what: str, instead: str = "leave it out, or leave out B"
) -> None:
    given = next((name for name in names if keywords[name]), None)
    if given is not None:
        flag = "--set" if given == "sets" else f"--{given.replace('_', '-')}"
        raise UsageError(f"{flag} is for runs, and {what}: {instead}")


def _of_checkpoints(a: str, b: str, keywords: dict[str, Any]) -> _Result:
    from stratagem_diff.checkpoints.comparing import compare_checkpoints
    from stratagem_diff.checkpoints.saying import said, to_json

    _refuse(keywords, (*_ONLY_RUNS, "against", "keep", "rounding", "no_dropout"), "A and B are checkpoints")
    found = compare_checkpoints(a, b, exact=keywords["exact"])
    return _Result(found, found.sides, said(found), to_json(found))


def _of_records(a: str, b: str, keywords: dict[str, Any]) -> _Result:
    from stratagem_diff.comparison import compare

    _refuse(keywords, (*_ONLY_RUNS, "against", "keep"), "A and B are records")
    return _of_trainings(compare(a, b, keywords["rounding"]), (a, b))


def _of_trainings(found: Comparison, sides: tuple[str, str]) -> _Result:
    from stratagem_diff.sentences import said, to_json

    return _Result(found, sides, said(found), to_json(found))


def _of_runs(target: str, keywords: dict[str, Any]) -> _Result:
    from stratagem_diff.comparison import compare
    from stratagem_diff.recorder import RecordOptions
    from stratagem_diff.run import with_common_batch

    if os.path.isdir(target):
        raise UsageError(
            f"{target} is a folder: give a second record or checkpoint, as in `stratagem diff {target} OTHER`"
        )
    if not keywords["against"]:
        raise UsageError(
            "nothing to compare with: give --against, as in --against fsdp or --against devices=4"
        )
    if keywords["rounding"]:
        raise UsageError("--rounding is for records; runs measure it themselves: leave it out")
    one = _run(target, keywords)
    a, b = with_common_batch(one, one.changed(keywords["against"]))
    options = RecordOptions(keywords["steps"], dropout=not keywords["no_dropout"])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(keywords["keep"] or scratch)
        made = _record_all(_Plan(a, b, folder, options, measure=not keywords["estimate"]))
        return _of_trainings(compare(made[0], made[1], made[2:]), (a.describe(), b.describe()))


def _of_kept_step(run: str, keywords: dict[str, Any]) -> _Result:
    from stratagem_diff.comparison import compare
    from stratagem_diff.replays import ReplayedStep, kept_step, record_replay

    unused = [
        name for name in (*_ONLY_RUNS, "rounding", "no_dropout") if name not in ("strategy", "accelerator")
    ]
    _refuse(keywords, unused, f"{run} has a kept step, which is run as it was", "leave it out")
    step = kept_step(run) if keywords["step"] is None else keywords["step"]
    a = ReplayedStep(run, step, keywords["strategy"] or "single", keywords["accelerator"])
    b = ReplayedStep(run, step, None, keywords["accelerator"]).changed(keywords["against"])
    if a == b:
        raise UsageError(
            f"A and B would both be {a.describe()}: give another --against, or none for the run's own"
        )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(keywords["keep"] or scratch)
        folders = [str(folder / name) for name in ("a", "b", "a-rounding")]
        replayed = record_replay(a, Path(folders[0]), "A")
        if replayed["is_same_run"] and b.strategy is None:
            raise UsageError(
                f"{run} was trained as A is run, with {a.strategy}: give --against, as in --against ddp"
            )
        others = [record_replay(b, Path(folders[1]), "B")]
        if keywords["estimate"]:
            folders.pop()
        else:
            record_replay(a, Path(folders[2]), "A", rounding=True)
        found = compare(folders[0], folders[1], folders[2:])
    for label, each in zip("AB", (replayed, *others)):
        if not each["is_repeated"]:
            found.notes.append(
                f"the losses of {label} aren't those of the run: `stratagem replay` shows both"
            )
    return _of_trainings(found, (a.describe(), b.describe()))


def _run(target: str, keywords: dict[str, Any]) -> Run:
    """Return side A."""
    from stratagem_diff.run import FLAGS, Run

    settings = {}
    for text in keywords["sets"]:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: write KEY=VALUE, as in model.hidden=64")
        settings[key] = value
    others = [word for file in keywords["config"] for word in ("--config", file)]
    others += ["--data", keywords["data"]] if keywords["data"] else []
    flags = {key: str(keywords[key]) for key in FLAGS if keywords[key] is not None}
    places = {key: keywords[key] for key in ("python", "cwd") if keywords[key]}
    # Otherwise `fit` takes all devices that there are.
    return Run(target, {"strategy": "single", "devices": "1", **flags}, settings, tuple(others), **places)


@dataclass(frozen=True)
class _Plan:
    """The runs of one comparison."""

    a: Run
    b: Run
    folder: Path
    options: Any
    measure: bool


def _record_all(plan: _Plan) -> Sequence[str]:
    """Train and record both runs, and those with another rounding; return the folders."""
    from dataclasses import replace

    from stratagem_diff.extension import RecordingOrder
    from stratagem_diff.run import record_run

    runs = [("a", plan.a, False), ("b", plan.b, False)]
    if plan.measure:
        runs.append(("a-rounding", plan.a, True))
        if plan.a.flags.get("precision") != plan.b.flags.get("precision"):
            runs.append(("b-rounding", plan.b, True))
    made = []
    for name, run, rounding in runs:
        folder = str(plan.folder / name)
        record_run(run, RecordingOrder(folder, replace(plan.options, rounding=rounding)), name[0].upper())
        made.append(folder)
    return made
