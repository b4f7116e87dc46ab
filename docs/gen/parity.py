"""Write docs/parity.md from the JSON that `python -m tests.parity.run --json` keeps.

python docs/gen/parity.py   prints the page
"""

import json
from pathlib import Path

HERE = Path(__file__).parent
DATA = HERE / "parity.json"
LOOPS = HERE / "hands_on.json"
DRAWN = HERE / "differ.json"
MARKS = {"equal": "✓", "refused": "–", "wrong": "✗", "crashed": "✗", "hung": "✗", "raw": "✗", "guarded": "✗"}

HEAD = """# Parity

Find out whether training under a strategy gives the numbers of plain PyTorch. Print the table again:

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
| ✓ | Parameters and buffers are equal, in the checkpoint and on every rank. Tensor by tensor, in double precision, they differ by at most a [tolerance](#tolerances) times the distance that training has moved them (or a fiftieth of the longest distance, for a tensor that hardly moved). |
| – | Refused: the run ends with [one sentence](#refusals). |
| ✗ | Neither: each one is [explained](#known-to-be-wrong). |

"""  # noqa: E501


def page() -> str:
    """Return the page."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    kinds, columns = data["kinds"], data["columns"]
    cells = {(cell["kind"], cell["column"]): cell for cell in data["cells"]}
    lines = [HEAD + tried(data), "", f"| kind | {' | '.join(short(column) for column in columns)} |"]
    lines.append("| --- |" + " :-: |" * len(columns))
    theme = ""
    for kind in kinds:
        if kind["theme"] != theme:
            theme = kind["theme"]
            lines.append(f"| **{theme}** |" + "  |" * len(columns))
        marks = [
            MARKS[cells[kind["name"], c]["verdict"]] if (kind["name"], c) in cells else "" for c in columns
        ]
        lines.append(f"| {kind['title']} | {' | '.join(marks)} |")
    lines += ["", f"Run with torch {data['torch']} and Python {data['python']}.", ""]
    lines += own_loops(json.loads(LOOPS.read_text(encoding="utf-8")))
    lines += drawn_loops(json.loads(DRAWN.read_text(encoding="utf-8")))
    lines += [*faults(data), *refusals(data), *tolerances(data), *shares(kinds), *options(kinds)]
    return "\n".join(lines).rstrip() + "\n"


def own_loops(data: dict) -> list:
    """Return what your own training loop may do under which strategy, and its refusals."""
    columns = list(dict.fromkeys((cell["strategy"], cell["devices"]) for cell in data["cells"]))
    cells = {(cell["row"], cell["strategy"], cell["devices"]): cell for cell in data["cells"]}
    lines = [
        "## Your own training loop",
        "",
        "These loops use `Runtime`, and change gradients, parameters and optimizers themselves, with unequal data on",
        "ranks. Parameters, buffers and values that the loop reads are compared with the same code in plain PyTorch,",
        "in one process on the global batches. `make hands-on` writes this table from",
        "`tests/parity/hands_on_rows.py`. Marks are as above; the number after a strategy is the number of ranks. A",
        "cell is empty if the loop is newer than the last run. `deepspeed_stage_0` is `deepspeed` with `stage=0`;",
        "`pipeline` refuses all of them. Loops compute in float64, with a tolerance of 1e-6 of a tensor's update;",
        "under deepspeed in float32, with 1e-5.",
        "",
        f"| loop | {' | '.join(f'{strategy} ×{devices}' for strategy, devices in columns)} |",
        "| --- |" + " :-: |" * len(columns),
    ]
    for row, title in data["rows"].items():
        own = [cells.get((row, strategy, devices)) for strategy, devices in columns]
        marks = ["" if cell is None else MARKS[cell["verdict"]] for cell in own]
        lines.append(f"| {title.rstrip('.')} | {' | '.join(marks)} |")
    lines += ["", f"Run with torch {data['torch']}. Refusals, and results that are neither (marked):", ""]
    for row, title in data["rows"].items():
        said: dict[str, list[str]] = {}
        for strategy, devices in columns:
            cell = cells.get((row, strategy, devices))
            if cell is not None and cell["verdict"] != "equal":
                mark = "" if cell["verdict"] == "refused" else f"{cell['verdict']}: "
                sentence = cell["sentence"].replace("`", "'").replace("|", "\\|")[:240]
                said.setdefault(f"{mark}`{sentence}`", []).append(f"{strategy} ×{devices}")
        lines += [f"- {title.rstrip('.')}: {text} ({', '.join(where)})" for text, where in said.items()]
    return [*lines, ""]


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


def refusals(data: dict) -> list:
    """Return each refusal with its cells."""
    titles = {kind["name"]: kind["title"] for kind in data["kinds"]}
    said: dict[str, dict[str, list[str]]] = {}
    for cell in data["cells"]:
        if cell["verdict"] == "refused":
            by_kind = said.setdefault(" ".join(cell["sentence"].split()), {})
            by_kind.setdefault(titles[cell["kind"]], []).append(short(cell["column"]))
    lines = ["## Refusals", ""]
    for sentence, by_kind in sorted(said.items()):
        where: dict[str, list[str]] = {}
        for title, columns in by_kind.items():
            where.setdefault(", ".join(columns), []).append(title)
        listed = "; ".join(f"{columns}: {', '.join(titles)}" for columns, titles in where.items())
        lines += [f"- `{sentence.replace('`', chr(39))}`", f"  ({listed})"]
    return [*lines, ""]


def tried(data: dict) -> str:
    """Return the number of cells, of those that were run, and of each result."""
    marks = [MARKS[cell["verdict"]] for cell in data["cells"]]
    of = len(data["columns"]) * len(data["kinds"])
    counted = ", ".join(f"{marks.count(mark)} {mark}" for mark in ("✓", "–", "✗"))
    return f"{len(marks)} of {of} cells were run: {counted}."


def faults(data: dict) -> list:
    """Return cells that are neither equal nor refused, each with the reason."""
    wrong = [cell for cell in data["cells"] if MARKS[cell["verdict"]] == "✗"]
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
    print(page(), end="")
