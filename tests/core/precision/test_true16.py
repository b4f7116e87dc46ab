"""Half precision throughout; test_full.py runs nets in it."""

import pytest
import torch

from stratagem.errors import PrecisionError
from stratagem.precision.true16 import TruePrecision

CPU = torch.device("cpu")


@pytest.mark.parametrize(("name", "dtype"), [("16-true", torch.float16), ("bf16-true", torch.bfloat16)])
def test_all_of_it_is_in_the_dtype_of_its_name_and_nothing_is_scaled(name, dtype):
    precision = TruePrecision(name, CPU)
    assert (precision.name, precision.param_dtype) == (name, dtype)
    assert precision.convert_input({"x": torch.ones(1)})["x"].dtype is dtype
    with precision.init_context():
        assert torch.ones(1).dtype is dtype
    with precision.autocast():
        assert torch.ones(1).dtype is dtype
    loss = torch.ones((), dtype=dtype)
    assert precision.scale(loss) is loss
    assert (precision.scales_loss, precision.compute_dtype) == (False, None)


def test_another_name_is_refused():
    with pytest.raises(PrecisionError, match="'8-true' isn't one of 16-true, bf16-true"):
        TruePrecision("8-true", CPU)
