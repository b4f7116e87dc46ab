"""The options that strategies share: one record, which every constructor shows, checks and hands to its base."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import TYPE_CHECKING, get_type_hints

import pytest
from stratagem_ddp import DDPOptions, DDPStrategy
from torch.nn.parallel import DistributedDataParallel

from stratagem import ConfigError, ParallelStrategy, ProcessGroupStrategy, Strategy
from stratagem.sdk.catalogue import load_catalogue
from stratagem.sdk.options import ParallelOptions, ProcessGroupOptions, StrategyOptions

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = {
    ProcessGroupStrategy: ProcessGroupOptions,
    ParallelStrategy: ParallelOptions,
    Strategy: StrategyOptions,
}


def strategies() -> dict[str, type[Strategy]]:
    found = {}
    for offer in load_catalogue().of_kind("strategy"):
        if not offer.missing():
            cls = offer.load()
            found[cls.__name__] = cls
    return found


@pytest.mark.parametrize("cls", strategies().values(), ids=strategies())
def test_a_strategy_shows_the_options_of_its_base_and_refuses_others(cls: type[Strategy]) -> None:
    base = next(base for base in RECORDS if issubclass(cls, base))
    own, shared = inspect.signature(cls).parameters, inspect.signature(base).parameters
    assert list(shared) == list(get_type_hints(RECORDS[base]))
    for name, parameter in shared.items():
        assert (own[name].default, own[name].kind) == (parameter.default, parameter.KEYWORD_ONLY), name
        written_out = cls.__name__ in (
            "DataParallelStrategy",
            "FairScalePipeStrategy",
        )  # devices, one process
        assert written_out or own[name].annotation == parameter.annotation, name
    assert "options" not in own
    with pytest.raises(ConfigError, match=r"no setting 'checkpiont_io'.*checkpoint_io"):
        cls(checkpiont_io=None)


def test_ddp_names_the_keywords_of_this_torch() -> None:
    wrapped = set(inspect.signature(DistributedDataParallel).parameters)
    ours = set(DDPOptions.__optional_keys__) - set(ProcessGroupOptions.__optional_keys__) - {"buffers"}
    set_by_ddp = {"module", "device_ids", "output_device", "process_group", "device_mesh"}
    assert wrapped - set_by_ddp <= ours
    assert set_by_ddp.isdisjoint(inspect.signature(DDPStrategy).parameters)


def test_a_wrong_option_on_the_command_line_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text("import stratagem\nclass Tiny(stratagem.Module): pass\n")
    command = [sys.executable, "-m", "stratagem", "fit", "tiny.py:Tiny", "--strategy", "ddp"]
    command += ["--accelerator", "cpu", "--devices", "2", "--set", "strategy.timeuot_s=3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "'strategy.timeuot_s'" in done.stderr
    assert "timeout_s" in done.stderr
