"""Write docs/parity.md from the JSON that `python -m tests.parity.run --json` keeps.

python docs/gen/parity.py   writes the page, and its tables as JSON
"""

from __future__ import annotations

import json
from pathlib import Path

from results import Cell, Row, Table, write

HERE = Path(__file__).parent
DATA = HERE / "parity.json"
LOOPS = HERE / "hands_on.json"
DRAWN = HERE / "differ.json"
VERDICTS = {"equal": "✓", "refused": "–", "wrong": "✗", "crashed": "✗", "hung": "✗"}
LOOP_VERDICTS = {"equal": "✓", "refused": "–", "wrong": "✗", "raw": "✗", "guarded": "✗", "hung": "✗"}

HEAD = """# Parity

Find out whether training under a strategy gives the numbers of plain PyTorch. Write this page again:

```sh
make parity
```

Each row is a kind of model or a feature of training. A `Module` and a `Trainer` train it on CPU, in two
processes (×4: in four; `single` in one; `dp` and `ddp2` in one with two devices). The result is compared with
a loop in plain PyTorch, in one process, on the same global batches. The rows are in `tests/parity/kinds`, the
loop is `tests/parity/plain.py`, and `tests/parity/expected.py` lists the refusals. A short version runs with
all tests; `make parity-deepspeed` runs the columns of DeepSpeed.

| | |
| --- | --- |
| ✓ equal | Parameters and buffers are equal, in the checkpoint and on every rank. Tensor by tensor, in double precision, they differ by at most a [tolerance](#tolerances) times the distance that training has moved them (or a fiftieth of the longest distance, for a tensor that hardly moved). |
| – refused | The run ends with one sentence, which the table shows. |
| ✗ | Neither: each one is [explained](#known-to-be-wrong). |

"""  # noqa: E501


def page() -> str:
    """Return the page."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    kinds, cells = data["kinds"], kinds_table()
    lines = [HEAD + tried(data), "", *cells.summary()]
    lines += [f"Run with torch {data['torch']} and Python {data['python']}.", ""]
    lines += ["## All kinds", "", *cells.placeholder(), *kinds_by_theme(kinds)]
    lines += own_loops(json.loads(LOOPS.read_text(encoding="utf-8")))
    lines += drawn_loops(json.loads(DRAWN.read_text(encoding="utf-8")))
    lines += [*faults(data), *tolerances(data), *shares(kinds), *options(kinds)]
    return "\n".join(lines).rstrip() + "\n"


def tables() -> list[Table]:
    """Return the tables of this page."""
    return [kinds_table(), loops_table()]


def kinds_table() -> Table:
    """Return each kind's result under each strategy, with the sentences of refusals."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    by_kind: dict[str, dict[str, Cell]] = {}
    for cell in data["cells"]:
        found = Cell(cell["verdict"], " ".join(cell["sentence"].split()))
        by_kind.setdefault(cell["kind"], {})[short(cell["column"])] = found
    rows = tuple(Row(kind["title"], kind["theme"], by_kind.get(kind["name"], {})) for kind in data["kinds"])
    columns = tuple(map(short, data["columns"]))
    return Table("parity.json", "kind", "strategy", VERDICTS, columns, rows)


def loops_table() -> Table:
    """Return the result of each loop of your own under each strategy, with the sentences of refusals."""
    data = json.loads(LOOPS.read_text(encoding="utf-8"))
    by_row: dict[str, dict[str, Cell]] = {}
    for cell in data["cells"]:
        found = Cell(cell["verdict"], " ".join(cell["sentence"].split()))
        by_row.setdefault(cell["row"], {})[column_of(cell)] = found
    columns = tuple(dict.fromkeys(map(column_of, data["cells"])))
    rows = tuple(
        Row(title.rstrip(".").replace("`", ""), "", by_row.get(name, {}))
        for name, title in data["rows"].items()
    )
    return Table("own-loops.json", "loop", "strategy", LOOP_VERDICTS, columns, rows)


def column_of(cell: dict) -> str:
    """Return the strategy of a loop's cell, and its number of ranks."""
    return f"{cell['strategy']} ×{cell['devices']}"


def kinds_by_theme(kinds: list) -> list:
    """Return the titles of all kinds."""
    by_theme: dict[str, list[str]] = {}
    for kind in kinds:
        by_theme.setdefault(kind["theme"], []).append(kind["title"])
    lines = [f"- **{theme}**: {'; '.join(titles)}" for theme, titles in by_theme.items()]
    return [f"The {len(kinds)} kinds:", "", *lines, ""]


def own_loops(data: dict) -> list:
    """Return what your own training loop may do under which strategy, and results that are neither."""
    loops = loops_table()
    lines = [
        "## Your own training loop",
        "",
        f"These {len(loops.rows)} loops use `Runtime`, and change gradients, parameters and optimizers themselves,",
        "with unequal data on ranks. Parameters, buffers and values that the loop reads are compared with the same",
        "code in plain PyTorch, in one process on the global batches. `make hands-on` writes the results of",
        "`tests/parity/hands_on_rows.py`. The number after a strategy is the number of ranks. A loop that is newer",
        "than the last run of a strategy is not run there. `deepspeed_stage_0` is `deepspeed` with `stage=0`;",
        "`pipeline` refuses all of them. Loops compute in float64, with a tolerance of 1e-6 of a tensor's update;",
        "under deepspeed in float32, with 1e-5.",
        "",
        *loops.summary(),
        f"Run with torch {data['torch']}. An error that isn't Stratagem's is raw. A guarded run ended because ranks'",
        "parameters differed.",
        "",
        *loops.placeholder(),
    ]
    wrong: dict[str, list[str]] = {}
    for row in loops.rows:
        for column, cell in row.cells.items():
            if LOOP_VERDICTS[cell.verdict] == "✗":
                text = cell.text.replace("`", "'")[:240]
                wrong.setdefault(f"{row.name}: {cell.verdict}: `{text}`", []).append(column)
    if wrong:
        lines += ["Results that are neither equal nor refused:", ""]
        lines += [f"- {said} ({', '.join(columns)})" for said, columns in wrong.items()]
        lines += [""]
    return lines


def drawn_loops(data: dict) -> list:
    """Return the results of the loops that `make differ` drew, by strategy."""
    verdicts = {
        "equal": "equal",
        "refused": "refused",
        "wrong": "silently wrong",
        "raw": "raw error",
        "hung": "hung",
    }
    total = sum(n for counts in data.values() for n in counts.values())
    lines = [
        f"`make differ` draws loops from a grammar of such operations, models, optimizers and precisions, on 2 and "
        f"3 ranks, and resumes some of them in new processes. Results of {total:,} programs:",
        "",
        f"| strategy | {' | '.join(verdicts.values())} |",
        "| --- |" + " --: |" * len(verdicts),
    ]
    for strategy, counts in data.items():
        lines.append(f"| {strategy} | {' | '.join(str(counts.get(verdict, 0)) for verdict in verdicts)} |")
    return [*lines, ""]


def short(column: str) -> str:
    """Return a short name of a column, so that the table fits."""
    return column.replace("_find_unused_parameters_true", ", unused").replace(
        "deepspeed_stage_", "deepspeed "
    )


def tried(data: dict) -> str:
    """Return the number of cells, of those that were run, and of each result."""
    marks = [VERDICTS[cell["verdict"]] for cell in data["cells"]]
    of = len(data["columns"]) * len(data["kinds"])
    counted = ", ".join(f"{marks.count(mark)} {mark}" for mark in ("✓", "–", "✗"))
    return f"{len(marks)} of {of} cells were run: {counted}."


def faults(data: dict) -> list:
    """Return cells that are neither equal nor refused, each with the reason."""
    wrong = [cell for cell in data["cells"] if VERDICTS[cell["verdict"]] == "✗"]
    if not wrong:
        return ["## Known to be wrong", "", "No cell that was run.", ""]
    titles = {kind["name"]: kind["title"] for kind in data["kinds"]}
    reasons = {(each["kind"], each["column"]): each["reason"] for each in data["open"]}
    lines = [
        "## Known to be wrong",
        "",
        "| kind | strategy | result | reason |",
        "| --- | --- | --- | --- |",
    ]
    for cell in wrong:
        sentence = " ".join(cell["sentence"].split())[:200].replace("`", "'").replace("|", "\\|")
        reason = reasons.get((cell["kind"], cell["column"]), "not known yet")
        where = f"{titles[cell['kind']]} | {short(cell['column'])}"
        lines.append(f"| {where} | {cell['verdict']}: `{sentence}` | {reason} |")
    return [*lines, ""]


def tolerances(data: dict) -> list:
    """Return the tolerances, and the reason of each exception."""
    kinds = data["kinds"]
    usual = [kind for kind in kinds if not kind["tolerance_reason"]]
    lines = ["## Tolerances", "", f"The tolerance is {usual[0]['tolerance']:g}, except for:", ""]
    by_reason: dict[tuple, list[str]] = {}
    for kind in kinds:
        if kind["tolerance_reason"]:
            by_reason.setdefault((kind["tolerance"], kind["tolerance_reason"]), []).append(kind["title"])
    lines += [f"- {size:g}: {reason} ({'; '.join(titles)})" for (size, reason), titles in by_reason.items()]
    titles_of = {kind["name"]: kind["title"] for kind in kinds}
    lines += [
        f"- {each['tolerance']:g}: {each['reason']} ({short(each['column'])}: {titles_of[each['kind']]})"
        for each in data["tolerances"]
    ]
    return [*lines, ""]


def shares(kinds: list) -> list:
    """Return which kinds are compared with the mean over ranks' shares, and why."""
    lines = ["## Compared with the mean over shares", ""]
    lines += [
        "For these kinds, the loop computes loss and gradients of each rank's share of a global batch separately,",
        "and averages them, as torch's DistributedDataParallel does:",
        "",
    ]
    lines += [f"- {k['title']}: {k['per_share_reason']}" for k in kinds if k["per_share_reason"]]
    return [*lines, ""]


def options(kinds: list) -> list:
    """Return the options of a strategy for a kind, apart from those for the size of the test."""
    listed = [
        f"- {strategy}, {kind['title']}: {', '.join(f'`{name}={value!r}`' for name, value in chosen.items())}"
        for kind in kinds
        for strategy, chosen in kind["options"].items()
    ]
    return ["## Options of strategies for some kinds", "", *listed, ""] if listed else []


if __name__ == "__main__":
    write("parity.md", page(), tables())
