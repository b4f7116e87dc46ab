"""A task in the calling process."""

import pytest

from stratagem.launchers.base import Task
from stratagem.launchers.in_process import InProcessLauncher


def test_it_returns_what_the_task_returns():
    seen = []

    def work(*args):
        seen.append(args)
        return sum(args)

    launcher = InProcessLauncher()
    assert launcher.launch(Task(work, (1, 2))) == 3
    assert seen == [(1, 2)]
    assert launcher.launch(Task(list)) == []
    assert launcher.in_process


@pytest.mark.parametrize("error", [ZeroDivisionError("oh"), KeyboardInterrupt(), SystemExit(0)])
def test_its_errors_come_out_as_they_are(error):
    def work():
        raise error

    with pytest.raises(type(error)) as raised:
        InProcessLauncher().launch(Task(work))
    assert raised.value is error
