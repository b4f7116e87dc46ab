"""Write docs/compositions.md from the JSON that `python -m tests.compositions.run --json` keeps.

python docs/gen/compositions.py   writes the page
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DATA = HERE / "compositions.json"
PAGE = HERE.parent / "compositions.md"

HEAD = """# Compositions, compared

Combine parallelisms of separate plugins in one strategy:

```sh
stratagem fit examples/experts.py:MixtureModel --max-steps 4 --strategy shard+expert=2 --accelerator cpu --devices 4
```

[The guide](guides/compositions.md) says what each axis does. This page compares every choice of two, three and four
of them, with two ranks along each, with plain PyTorch in one process. `make compositions` runs those of two and
three, on 4 and 8 ranks; `make compositions ONLY=pipeline+replicate+shard+tensor` runs one of four, on 16, in about
3 minutes on 2 cores. Both write this page.

All train one small transformer: attention, two mixtures of four experts with a shared one, a head with the weight of
the embedding, and a parameter without dimensions. Beside `pipeline`, its blocks are an `nn.Sequential`. A number is
the largest difference of a weight.
"""


def page() -> str:
    """Return the page."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    cells: dict[str, dict[str, Any]] = data["cells"]
    checks: list[dict[str, Any]] = data["checks"]
    reasons: dict[str, int] = {}
    rows = []
    for axes, results in cells.items():
        shown = [_shown(results.get(check["name"]), reasons) for check in checks]
        rows.append(f"| `{'+'.join(f'{axis}=2' for axis in axes.split('+'))}` | {' | '.join(shown)} |")
    lines = [
        HEAD,
        f"| composition | {' | '.join(check['name'] for check in checks)} |",
        f"| --- |{' --: |' * len(checks)}",
        *rows,
        "",
        f"Run on CPUs with gloo and torch {data['torch']}.",
        "",
        "| check | what it is | largest difference allowed |",
        "| --- | --- | --: |",
        *(
            f"| {check['name']} | {check['what']} | {f'{each:.0e}' if (each := check['tolerance']) else 'none'} |"
            for check in checks
        ),
    ]
    if reasons:
        lines += ["", "Refused before training:", "", *(f"{at}. {text}" for text, at in reasons.items())]
    return "\n".join(lines) + "\n"


def _shown(cell: dict[str, Any] | None, reasons: dict[str, int]) -> str:
    """Return a result as it stands in the table; reasons of refusals are numbered."""
    if cell is None:
        return "not run"
    if "refused" in cell:
        return f"refused ({reasons.setdefault(cell['refused'], len(reasons) + 1)})"
    return f"{cell['difference']:.0e}" if cell["difference"] else "equal"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
