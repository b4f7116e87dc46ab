"""Write docs/conformance.md from what `stratagem conformance --json` printed.

python docs/gen/conformance.py --run           runs every installed strategy, and writes the JSON
python docs/gen/conformance.py --run NAME...   runs these, and keeps the other records of the JSON
python docs/gen/conformance.py --run --new …   runs only checks that the JSON doesn't have, or has with another claim
python docs/gen/conformance.py                 writes the page, and its table as JSON
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from results import Cell, Row, Table, write

HERE = Path(__file__).parent
DATA = HERE / "conformance.json"
MARKS = {"passed": "✓", "failed": "✗", "skipped": "–", "waived": "~"}

HEAD = """# Conformance

See which checks each strategy passes. Run the checks of one strategy on your machine:

```bash
stratagem conformance ddp
```

`make conformance` writes this page, from runs in one, two and four processes on CPU, or in one process with as
many devices (`make conformance-horovod` and `make conformance-xla` run the strategies that need Horovod and
torch_xla). To check your own strategy, see [writing a plugin](writing-a-plugin.md).

| | |
| --- | --- |
| ✓ | passes at every world size to which the check applies |
| – | skipped: the capability isn't declared, or the check doesn't apply |
| ~ | waived: an expected failure with a reason |
| ✗ | fails |
| not run | the check is newer than the last run: `make conformance NEW=1` |
"""


def run(chosen: list, only_new: bool = False) -> None:
    """Run strategies one after the other; records of others in the JSON, and of those that can't run here, stay.

    Args:
        chosen: names; if empty, all installed strategies that run here.
        only_new: run only checks that the JSON doesn't have of a strategy yet, or has with another claim.
    """
    from stratagem_testing.report import subject_names

    from stratagem.sdk.catalogue import load_catalogue

    stratagem = Path(sys.executable).with_name("stratagem")
    listed = subprocess.run([stratagem, "strategies", "--json"], capture_output=True, text=True, check=True)
    here = [record["name"] for record in json.loads(listed.stdout) if record["runs_here"]]
    components = [load_catalogue().find("strategy", name) for name in sorted(here)]
    names = [name for component in components for name in subject_names(component)]
    unknown = sorted(set(chosen) - set(names))
    if unknown:
        sys.exit(f"no strategy {unknown[0]} has its own subject and runs here; available: {', '.join(names)}")
    for name in chosen or names:
        checks = new_checks(name) if only_new else []
        if only_new and not checks:
            continue
        only = [word for check in checks for word in ("--check", check)]
        command = [stratagem, "conformance", name, "--json", *only]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode not in (0, 1):
            sys.exit(done.returncode)
        keep(json.loads(done.stdout)[0], only_new)


def reports_by_name() -> dict:
    """Return the records of the JSON, by strategy."""
    return {each["name"]: each for each in load_reports()}


def new_checks(name: str) -> list:
    """Return the names of checks that the JSON doesn't have of a strategy, or has with another claim."""
    from stratagem_testing.strategies import STRATEGY_CHECKS

    has = {(each["check"], each["claim"]) for each in reports_by_name().get(name, {"checks": []})["checks"]}
    return [check.name for check in STRATEGY_CHECKS if (check.name, check.claim) not in has]


def keep(report: dict, only_new: bool = False) -> None:
    """Put a report into the JSON: replace the previous one, or merge with it, in the order of the checks."""
    from stratagem_testing.strategies import STRATEGY_CHECKS

    report.pop("seconds", None)  # differs in each run
    for check in report["checks"]:
        del check["seconds"]
    reports = reports_by_name()
    if only_new and report["name"] in reports:
        order = [check.name for check in STRATEGY_CHECKS]
        tried = {check["check"] for check in report["checks"]}
        known = reports[report["name"]]["checks"]
        before = [check for check in known if check["check"] in order and check["check"] not in tried]
        report["checks"] = sorted([*before, *report["checks"]], key=lambda check: order.index(check["check"]))
        for verdict in MARKS:
            report[verdict] = sum(check["verdict"] == verdict for check in report["checks"])
    reports[report["name"]] = report
    ordered = [reports[name] for name in sorted(reports)]
    DATA.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(report["name"], *(f"{report[verdict]} {verdict}" for verdict in MARKS), file=sys.stderr, flush=True)


def page() -> str:
    """Return the page."""
    from stratagem_testing.strategies import STRATEGY_CHECKS

    reports, checks = load_reports(), table()
    waived = {
        report["name"]: ", ".join(row.name for row in checks.rows if is_waived(row, report["name"]))
        for report in reports
    }
    lines = [
        HEAD,
        *checks.summary(waived, "waived checks"),
        f"Run with {'; '.join(tried_with(reports))}.",
        "",
    ]
    lines += ["## All results", "", *checks.placeholder()]
    lines += ["## What each check claims", ""]
    themes: dict[str, list[str]] = {}
    for check in STRATEGY_CHECKS:
        themes.setdefault(check.theme, []).append(f"- **{check.name}**: {check.claim}.")
    for theme, claims in themes.items():
        lines += [f"### {theme}", "", *claims, ""]
    return "\n".join(lines).rstrip() + "\n"


def table() -> Table:
    """Return each check's result under each strategy, with the reasons of those that didn't pass."""
    from stratagem_testing.strategies import STRATEGY_CHECKS

    reports = load_reports()
    rows = []
    for check in STRATEGY_CHECKS:
        cells = {report["name"]: cell(report, check.name) for report in reports}
        tried = {name: found for name, found in cells.items() if found is not None}
        rows.append(Row(check.name, check.theme, tried, check.claim))
    names = tuple(report["name"] for report in reports)
    return Table("conformance.json", "check", "strategy", MARKS, names, tuple(rows))


def load_reports() -> list:
    """Return the records of the JSON."""
    return json.loads(DATA.read_text(encoding="utf-8"))


def is_waived(row: Row, strategy: str) -> bool:
    """Return whether a check is waived for a strategy."""
    return strategy in row.cells and row.cells[strategy].verdict == "waived"


def tried_with(reports: list) -> list:
    """Return the versions with which strategies were run; most have the same."""
    by_versions: dict[str, list[str]] = {}
    for report in reports:
        versions = f"torch {report['torch']} and Python {report['python']}"
        by_versions.setdefault(versions, []).append(report["name"])
    most = max(by_versions, key=lambda versions: len(by_versions[versions]))
    others = [f"{', '.join(names)} with {v}" for v, names in by_versions.items() if v != most]
    return [most, *others]


def cell(report: dict, name: str) -> Cell | None:
    """Return the result of a check: the worst of its verdicts, skipped only if all are; None if it wasn't run."""
    own = [check for check in report["checks"] if check["check"] == name]
    verdicts = [check["verdict"] for check in own]
    reasons = dict.fromkeys(f"{check['verdict']}: {check['reason']}" for check in own if check["reason"])
    worst = [v for v in ("failed", "waived", "passed", "skipped") if v in verdicts]
    return Cell(worst[0], "; ".join(reasons)) if worst else None


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run([name for name in sys.argv[2:] if name != "--new"], "--new" in sys.argv)
    else:
        write("conformance.md", page(), [table()])
