"""Names of precisions, and the classes behind them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from stratagem.errors import PrecisionError
from stratagem.precision import PRECISIONS, canonical_precision


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (32, "32-true"),
        ("32", "32-true"),
        (64, "64-true"),
        ("64", "64-true"),
        (16, "16-mixed"),
        ("16", "16-mixed"),
        ("bf16", "bf16-mixed"),
        ("BF16-Mixed", "bf16-mixed"),
        *((name, name) for name in PRECISIONS),
    ],
)
def test_canonical_names(value: Any, name: str) -> None:
    assert canonical_precision(value) == name


@pytest.mark.parametrize("value", [8, "8", "fp16", "", None, 16.0, True, "mixed"])
def test_others_are_refused_with_what_is_allowed(value: Any) -> None:
    with pytest.raises(PrecisionError) as error:
        canonical_precision(value)
    message = str(error.value)
    assert message.startswith(f"precision={value!r} doesn't exist; allowed are 32-true, 64-true, 16-mixed,")
    assert message.endswith("for short, 32, 64, 16, bf16")


def test_more_can_be_installed() -> None:
    assert canonical_precision("fp8-mixed", allowed=(*PRECISIONS, "fp8-mixed")) == "fp8-mixed"


def test_no_torch_is_imported() -> None:
    program = "import sys, stratagem.precision; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
