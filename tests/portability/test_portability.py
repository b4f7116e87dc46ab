"""The short form of the matrix, and that it sees what is wrong. `make portability` tries all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.portability import cell
from tests.portability.columns import SHORT, columns_here
from tests.portability.run import keep, reads, table_of


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A checkpoint of each strategy of the short form."""
    folder, columns = tmp_path_factory.mktemp("checkpoints"), columns_here()
    paths = {name: str(folder / name) for name in SHORT}
    assert {name: wrong for name, path in paths.items() if (wrong := cell.write(columns[name], path))} == {}
    return paths


@pytest.mark.parametrize("reader", SHORT)
def test_a_strategy_goes_on_from_each_others_checkpoint(
    checkpoints: dict[str, str], reader: str, tmp_path: Path
) -> None:
    outcomes = list(cell.read(columns_here()[reader], checkpoints, str(tmp_path)))
    assert len(outcomes) == len(SHORT)
    assert [outcome for outcome in outcomes if outcome.wrong] == []


def test_only_pairs_that_are_new_are_read_again(checkpoints: dict[str, str], tmp_path: Path) -> None:
    known, *others = SHORT
    table, folder = tmp_path / "table.json", Path(checkpoints[known]).parent
    keep(table, [cell.Outcome(known, "single ×1", 0.5)])
    for _ in range(2):
        assert reads(columns_here()["single ×1"], folder, table, only_new=True) == 0
    of_single = table_of(table)["cells"]["single ×1"]
    assert of_single.pop(known) == 0.5
    assert of_single.keys() == set(others)
    assert max(of_single.values()) < cell.LOSSES


def test_a_checkpoint_that_was_written_later_has_other_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = columns_here()["single ×1"]
    monkeypatch.setattr(cell, "STATES", 1e-9)
    assert "is off by" in cell.write(columns_here()["ddp ×2"], str(tmp_path / "rounded"))
    assert "only in what was loaded" in cell._unlike({"model/a": cell.torch.ones(1)}, {}, 1.0)
    (missing,) = cell.read(single, {"missing": str(tmp_path / "nothing")}, str(tmp_path))
    assert "there is no checkpoint" in missing.wrong
