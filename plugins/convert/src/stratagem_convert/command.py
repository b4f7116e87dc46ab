"""`stratagem checkpoint inspect | verify | diff | convert | prune`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import click

from stratagem.errors import CheckpointError, ConfigError

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}

key_option = click.option(
    "--key",
    metavar="NAME",
    help="The entry that has the weights, in a file of torch.save or a DCP folder; dots lead to nested entries.",
)
rename_option = click.option(
    "--rename",
    "renames",
    multiple=True,
    metavar="OLD=NEW",
    help="Rename tensors: replace the prefix OLD by NEW, as in net.=model. (repeatable); an empty NEW drops OLD.",
)


@click.group(
    epilog="\b\nExamples:\n  stratagem checkpoint inspect runs/NAME/checkpoints/last",
)
def checkpoint() -> None:
    """Inspect, compare, convert and prune checkpoints of Stratagem and of other formats."""


@checkpoint.command(
    epilog="\b\nExamples:\n  stratagem checkpoint inspect runs/NAME/checkpoints/last",
)
@click.argument("path")
@key_option
@click.option("--all", "show_all", is_flag=True, help="Show every tensor.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON; docs/reference/checkpoint.md lists the keys."
)
def inspect(path: str, key: str | None, show_all: bool, as_json: bool) -> None:
    """Show the content of PATH, and which parts of its run resume exactly."""
    from stratagem_convert.tools.inspecting import lines, summarize

    summary = summarize(path, key)
    if as_json:
        click.echo(json.dumps(summary, indent=2, ensure_ascii=False))
        return
    for line in lines(summary, show_all):
        click.echo(line)


@checkpoint.command(
    epilog="\b\nExamples:\n  stratagem checkpoint verify runs/NAME/checkpoints/last",
)
@click.argument("paths", nargs=-1, metavar="PATH…")
def verify(paths: Sequence[str]) -> None:
    """Compare every byte of checkpoints with their checksums. The exit code is 1 if one is damaged."""
    from stratagem_convert.tools.verifying import faults

    if not paths:
        raise ConfigError("PATH is missing: pass one or several checkpoints")
    torn = 0
    for path in paths:
        found = 0
        for fault in faults(path):
            found += 1
            click.echo(f"{path}: {fault}")
        torn += bool(found)
        if not found:
            click.echo(f"{path}: whole")
    if torn:
        error = CheckpointError(f"{torn} of {len(paths)} checkpoints {'is' if torn == 1 else 'are'} torn")
        error.exit_code = 1
        raise error


@checkpoint.command(
    epilog="\b\nExamples:\n  stratagem checkpoint diff one/checkpoints/last two/checkpoints/last",
)
@click.argument("first")
@click.argument("second")
@rename_option
@click.option("--all", "show_all", is_flag=True, help="Show every tensor that differs.")
@click.pass_context
def diff(ctx: click.Context, first: str, second: str, renames: Sequence[str], show_all: bool) -> None:
    """Compare the tensors of FIRST and SECOND. The exit code is 1 if they differ."""
    from stratagem_convert.tools.comparing import compare

    difference = compare(first, second, _renaming(renames))
    for side, names in (
        ("only in the first", difference.first_only),
        ("only in the second", difference.second_only),
    ):
        for name in names if show_all else names[:10]:
            click.echo(f"{side}: {name}")
        if len(names) > 10 and not show_all:
            click.echo(f"{side}: … and {len(names) - 10} more")
    for each in difference.tensors if show_all else difference.tensors[:10]:
        dtypes = "" if each.dtypes is None else f", {each.dtypes[0]} and {each.dtypes[1]}"
        if each.shapes is not None:
            click.echo(f"{each.name}: shapes {each.shapes[0]} and {each.shapes[1]}{dtypes}")
        else:
            click.echo(f"{each.name}: {each.count:,} values differ, by up to {each.largest:.3g}{dtypes}")
    shapes = sum(each.shapes is not None for each in difference.tensors)
    largest = max((each.largest or 0.0 for each in difference.tensors), default=0.0)
    click.echo(
        f"{difference.equal} tensors equal, {len(difference.tensors) - shapes} differ by up to {largest:.3g}, "
        f"{shapes} of another shape, {len(difference.first_only)} missing in the second, "
        f"{len(difference.second_only)} missing in the first"
    )
    if difference.tensors or difference.first_only or difference.second_only:
        ctx.exit(1)


@checkpoint.command(
    epilog="\b\nExamples:\n  stratagem checkpoint convert runs/NAME/checkpoints/last weights.safetensors",
)
@click.argument("source")
@click.argument("target")
@click.option(
    "--to",
    "name",
    metavar="FORMAT",
    help="Format of TARGET: stratagem, safetensors, huggingface, torch, lightning, dcp or deepspeed.",
)
@key_option
@rename_option
@click.option(
    "--max-shard-size",
    default="5GB",
    metavar="SIZE",
    help="Maximum size of a file of huggingface, such as 500MB or 5GB.",
)
@click.option(
    "--hf-config", metavar="FOLDER", help="For huggingface: folder whose config.json and tokenizer to copy."
)
@click.option(
    "--training/--weights-only",
    default=None,
    help="Also convert the optimizers' states, learning rate schedules and progress, or leave them out. By default, "
    "stratagem and lightning include them, torch and dcp only with --training; other formats can't.",
)
@click.option(
    "--in-order",
    is_flag=True,
    help="The optimizer in SOURCE, a file of torch.save or Lightning without parameter names, has the parameters in "
    "the order of the state dict, as Adam(model.parameters()) has.",
)
def convert(
    source: str,
    target: str,
    name: str | None,
    key: str | None,
    renames: Sequence[str],
    max_shard_size: str,
    hf_config: str | None,
    training: bool | None,
    in_order: bool,
) -> None:
    """Write the weights of SOURCE, in any format, bit for bit to TARGET, with its optimizers' states.

    The format of SOURCE is detected. The format of TARGET is --to, or that of its suffix: .safetensors, .pt, .pth,
    .bin or .ckpt.
    """
    from stratagem_convert.formats import converting
    from stratagem_convert.tools.inspecting import size

    if name is not None and name not in converting.FORMATS:
        raise ConfigError(f"there is no format {name!r}: choose one of {', '.join(converting.FORMATS)}")
    how = converting.Writing(_bytes(max_shard_size), hf_config, training)
    chosen = converting.target_format(target, name)
    weights = converting.read_weights(source, key, in_order)
    if renames:
        weights = weights.renamed(_renaming(renames))
    weights = converting.write_weights(weights, target, chosen, how)
    tied = f", {len(weights.aliases)} tied" if weights.aliases else ""
    click.echo(
        f"{target}: {len(weights.tensors)} tensors{tied}, {size(weights.size_bytes)}, {weights.format} to {chosen}"
    )
    if weights.training is not None:
        click.echo(f"with {weights.training}")
    for each in weights.left_out:
        click.echo(f"left out: {each}")


@checkpoint.command(
    epilog="\b\nExamples:\n  stratagem checkpoint prune runs/NAME/checkpoints --keep 3 --dry-run",
)
@click.argument("folder")
@click.option("--keep", type=click.IntRange(1), required=True, help="Number of checkpoints to keep.")
@click.option(
    "--by",
    type=click.Choice(["newest", "best"]),
    default="newest",
    show_default=True,
    help="Which ones to keep.",
)
@click.option(
    "--mode", type=click.Choice(["min", "max"]), default="min", show_default=True, help="Which score is best."
)
@click.option("--monitor", metavar="NAME", help="Callback whose score counts, if several have one.")
@click.option("--dry-run", is_flag=True, help="Remove nothing; show what would be removed.")
def prune(folder: str, keep: int, by: str, mode: str, monitor: str | None, dry_run: bool) -> None:
    """Remove checkpoints of FOLDER, except the target of `last` and the best ones of the run."""
    from stratagem_convert.tools import pruning
    from stratagem_convert.tools.inspecting import size

    chosen = pruning.plan(folder, keep, by, mode, monitor)  # type: ignore[arg-type]  # click.Choice lets only these values through
    for entry, why in chosen.kept:
        click.echo(f"stays  {entry.name}  step {entry.step}: {why}")
    for entry in chosen.removed:
        click.echo(
            f"{'would go' if dry_run else 'goes'}  {entry.name}  step {entry.step}, {size(entry.size_bytes)}"
        )
    if not dry_run:
        pruning.carry_out(chosen)
    freed = size(sum(entry.size_bytes for entry in chosen.removed))
    click.echo(f"{len(chosen.removed)} checkpoints, {freed} {'would be' if dry_run else 'are'} removed")


def _renaming(renames: Sequence[str]):  # type: ignore[no-untyped-def]  # returns a lambda, whose types are inferred
    from stratagem_checkpoint.initial_weights import renamed

    pairs = {}
    for each in renames:
        old, equals, new = each.partition("=")
        if not equals or not old:
            raise ConfigError(f"--rename got {each!r}: pass OLD=NEW, as in net.=model.")
        pairs[old] = new
    return lambda name: renamed(name, pairs)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?B?)", text.strip(), re.IGNORECASE)
    unit = match[2].upper() if match else ""
    length = int(float(match[1]) * _UNITS[unit if unit in _UNITS else f"{unit}B"]) if match else 0
    if length <= 0:
        raise ConfigError(f"--max-shard-size got {text!r}: pass a size above 0, such as 500MB or 5GB")
    return length
