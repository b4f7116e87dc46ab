"""How parameters and optimizer states lie on the devices; that nothing is left on the user's modules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from stratagem_xla.conformance import FSDP, XLA
from xla_tasks import layouts

pytestmark = pytest.mark.timeout(360)


def test_fsdp_keeps_shards(tmp_path: Path) -> None:
    parameters, states, names, hooks = replace(FSDP.at(2), folder=str(tmp_path)).run(layouts)[0]
    assert all("devices=[2" in spec for spec in parameters), parameters
    assert all("devices=[2" in spec for spec in states), states
    assert names[0] == "blocks.0.weight"
    assert set(hooks.values()) == {0}


def test_xla_keeps_replicas(tmp_path: Path) -> None:
    parameters, states, _, _ = replace(XLA.at(2), folder=str(tmp_path)).run(layouts)[0]
    assert not [spec for spec in (*parameters, *states) if "devices=[" in spec]


@pytest.mark.parametrize("policy", ["Linear", ["Linear"]])
def test_a_policy_names_modules(tmp_path: Path, policy: object) -> None:
    subject = replace(FSDP.at(2), folder=str(tmp_path), options={"auto_wrap_policy": policy})
    assert subject.run(layouts)[0][3] == {"": 0, "blocks": 0, "blocks.0": 0, "blocks.1": 0, "blocks.2": 0}
