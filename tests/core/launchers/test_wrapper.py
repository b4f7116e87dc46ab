"""Every call of a launcher is handed on, and what it says of itself is the wrapped one's."""

from stratagem.launchers.base import Launcher, Task
from stratagem.launchers.in_process import InProcessLauncher
from stratagem.launchers.wrapper import LauncherWrapper


class Says(Launcher):
    worker_environment, keeps_output = "theirs", True

    def launch(self, task):
        return "launched", task


def test_a_task_is_launched_by_the_wrapped():
    task = Task(print)
    assert LauncherWrapper(Says()).launch(task) == ("launched", task)


def test_what_it_says_of_itself_is_what_the_wrapped_says():
    wrapper, outer = LauncherWrapper(Says()), LauncherWrapper(LauncherWrapper(InProcessLauncher()))
    assert (wrapper.in_process, wrapper.worker_environment, wrapper.keeps_output) == (False, "theirs", True)
    assert (outer.in_process, outer.worker_environment, outer.keeps_output) == (True, None, False)


def test_a_subclass_changes_what_is_launched():
    class Twice(LauncherWrapper):
        def launch(self, task):
            return [super().launch(task), super().launch(task)]

    assert Twice(InProcessLauncher()).launch(Task(int, ("7",))) == [7, 7]
