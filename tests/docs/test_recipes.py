"""Each recipe for contributors applies to the sources as they are, and does what it says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/recipes.md").read_text()
RECIPES = re.findall(
    r"^## (.+?)\n.*?^```diff\n(.*?)^```\n.*?^```py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
)
PREAMBLE = re.search(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL).group(1)


@pytest.mark.parametrize(("title", "patch", "check"), RECIPES, ids=[title for title, *_ in RECIPES])
def test_a_recipe_applies_and_its_check_passes(title, patch, check, tmp_path):
    changed = re.findall(r"^\+\+\+ b/(.+)$", patch, re.MULTILINE)
    assert 1 <= len(changed) <= 3
    sources = [f"{path.relative_to(ROOT)}" for path in (ROOT / "core/src", *ROOT.glob("plugins/*/src"))]
    for source in sources:
        shutil.copytree(ROOT / source, tmp_path / source, ignore=shutil.ignore_patterns("__pycache__"))
    applied = subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch, text=True, capture_output=True)
    assert applied.returncode == 0, applied.stderr
    path = os.pathsep.join(str(tmp_path / source) for source in sources)
    (tmp_path / "check.py").write_text(PREAMBLE + check)
    checked = subprocess.run(
        [sys.executable, "check.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stderr


def test_there_is_a_recipe_for_each_common_task():
    assert len(RECIPES) == PAGE.count("\n## ") == PAGE.count("```diff")
