"""A strategy's time limit, in either form."""

from datetime import timedelta
from typing import Any

import pytest

from stratagem.collectives.deadline import DEFAULT, LONGEST, deadline
from stratagem.errors import ConfigError


def test_either_form_or_half_an_hour() -> None:
    assert deadline(None, None) == DEFAULT == timedelta(minutes=30)
    assert deadline(timedelta(seconds=5), None) == deadline(None, 5) == timedelta(seconds=5)
    assert deadline(None, 0.5) == timedelta(milliseconds=500)
    assert deadline(LONGEST, None) == LONGEST


@pytest.mark.parametrize(
    ("timeout", "timeout_s", "said"),
    [
        (timedelta(seconds=1), 1, "timeout=0:00:01 and timeout_s=1 say the same thing"),
        (timedelta(0), None, "timeout of 0 s must be more than 0"),
        (None, 0, "timeout of 0 s must be more than 0"),
        (None, -1, "timeout of -1 s must be more than 0"),
        (LONGEST + timedelta(seconds=1), None, "at most 10000 days"),
        (None, 1e300, "is not a number of seconds"),
        (None, float("nan"), "timeout_s=nan is not a number of seconds"),
        (None, "60", "timeout_s='60' is not a number of seconds: give one, such as 60"),
    ],
)
def test_what_is_no_time_is_refused(timeout: Any, timeout_s: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        deadline(timeout, timeout_s)
