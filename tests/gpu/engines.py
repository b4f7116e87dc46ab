"""The same as tests.gpu.equal for strategies on the engines of other libraries: python -m tests.gpu.engines"""

from __future__ import annotations

from typing import Any

from tests.gpu.equal import ENGINES, compare
from tests.gpu.setting import Setting, main


def measure(setting: Setting) -> dict[str, Any]:
    """Compare losses under DeepSpeed and FairScale with the plain loop's."""
    return compare(setting, ENGINES)


if __name__ == "__main__":
    main(measure)
