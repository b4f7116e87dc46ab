"""The vendored uPlot is the one that its README names."""

import hashlib
import re
from importlib.resources import files

UPLOT = files("stratagem_report.page") / "assets/uplot"


def test_its_files_are_those_of_the_version_that_is_named() -> None:
    readme = (UPLOT / "README.md").read_text()
    digests = dict(re.findall(r"\| `([\w.]+)` \| `(\w{64})` \|", readme))
    assert {path.name for path in UPLOT.iterdir()} == {"README.md", *digests}
    for name, digest in digests.items():
        assert hashlib.sha256((UPLOT / name).read_bytes()).hexdigest() == digest
    version = re.search(r"# uPlot ([\d.]+)", readme)[1]
    code = (UPLOT / "uPlot.iife.min.js").read_text()
    assert code.startswith(f"/*! https://github.com/leeoniya/uPlot (v{version}) */")
    assert len(code) <= 60_000
    assert "</script" not in code
    assert "MIT License" in (UPLOT / "LICENSE").read_text()
