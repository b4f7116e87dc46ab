"""Predictions are joined to arrays and written whole."""

import numpy as np
import pytest
import torch
from stratagem_trainer.commands.predictions import arrays_of, refuse_output, write_arrays

from stratagem.errors import UsageError


def test_tensors_are_joined_along_the_batch():
    arrays = arrays_of([torch.ones(2, 3), torch.zeros(1, 3)])
    assert arrays["predictions"].shape == (3, 3)
    assert arrays["predictions"].dtype == np.float32


def test_dicts_tuples_and_numbers():
    arrays = arrays_of([{"a": torch.ones(2), "b": torch.ones(2, dtype=torch.bfloat16)}])
    assert {name: array.dtype for name, array in arrays.items()} == {"a": np.float32, "b": np.float32}
    assert list(arrays_of([(torch.ones(2), torch.tensor(3))])) == ["0", "1"]
    assert arrays_of([1, 2])["predictions"].tolist() == [1, 2]
    assert arrays_of([]) == {}


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ([torch.ones(2, 3), torch.ones(2, 4)], "can't be joined"),
        ([object()], "predict_step returned a object"),
    ],
)
def test_what_no_array_holds_is_refused(predictions, message):
    with pytest.raises(UsageError, match=message):
        arrays_of(predictions)


def test_a_file_is_written_and_read_back(tmp_path):
    path = tmp_path / "out.npz"
    write_arrays(str(path), {"a": np.arange(3)})
    with np.load(path) as read:
        assert read["a"].tolist() == [0, 1, 2]
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.npz"]


@pytest.mark.parametrize(
    ("path", "message"), [("out.csv", "must end in .npz"), ("none/out.npz", "no folder")]
)
def test_files_that_cant_be_written_are_refused(folder, path, message):
    with pytest.raises(UsageError, match=message):
        refuse_output(path)
