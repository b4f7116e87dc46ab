"""What a subclass may have from elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from stratagem_ddp import DDPStrategy

from stratagem import ConfigError


class Elsewhere(DDPStrategy):
    def configure_ddp(self) -> None:  # type: ignore[override]  # as Lightning's users override it
        self.model = None


class Today(DDPStrategy):
    def configure_ddp(self, *args: Any) -> Any:
        return super().configure_ddp(*args)


def test_configure_ddp_of_other_trainers_gets_the_form_of_today() -> None:
    said = r"Elsewhere.configure_ddp takes \(self\).*write `def configure_ddp\(self, module, device\)`"
    with pytest.raises(ConfigError, match=said):
        Elsewhere()
    Today()
