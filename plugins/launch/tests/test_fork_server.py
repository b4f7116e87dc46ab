"""What a fork server has done before the first worker, and when it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def test_it_imports_while_the_task_is_pickled(start_program: Any) -> None:
    program = start_program(
        """
        import psutil
        from stratagem import LaunchPlan, Task
        from stratagem_launch.elastic import ElasticLauncher

        class Data:
            def __reduce__(self):
                children = psutil.Process().children()
                return bool, (any("forkserver" in " ".join(child.cmdline()) for child in children),)

        if __name__ == "__main__":
            print(ElasticLauncher(LaunchPlan(1)).launch(Task(bool, (Data(),))))
        """
    )
    out, err = program.communicate(timeout=240)
    assert (program.returncode, out) == (0, "True\n"), err


def test_workers_inherit_its_imports_and_walk_over_none_of_them(start_program: Any) -> None:
    program = start_program(
        """
        import gc, multiprocessing, sys
        from stratagem import LaunchPlan, Task
        from stratagem_launch.elastic import ElasticLauncher

        IMPORTED = set(sys.modules) - {"__main__"}

        def collects(*_):
            return gc.isenabled()

        def look():
            is_small = len(gc.get_objects()) < gc.get_freeze_count() / 10
            with multiprocessing.get_context("forkserver").Pool(1) as loader:
                return "torch._dynamo" in IMPORTED, is_small, collects(), loader.map(collects, [0])

        if __name__ == "__main__":
            print(*ElasticLauncher(LaunchPlan(1)).launch(Task(look)), gc.isenabled(), gc.get_freeze_count())
        """
    )
    out, err = program.communicate(timeout=240)
    assert (program.returncode, out) == (0, "True True True [True] True 0\n"), err


def test_what_it_forks_ends_when_it_is_terminated(start_program: Any) -> None:
    """It ignores signals to a whole group itself; a pool's process that did would be waited for without end."""
    program = start_program(
        """
        import multiprocessing, time
        from stratagem import LaunchPlan, Task
        from stratagem_launch.elastic import ElasticLauncher

        def exit_code():
            started, tell = multiprocessing.Pipe(duplex=False)
            process = multiprocessing.get_context("forkserver").Process(target=sleeper, args=(tell,))
            process.start()
            assert started.poll(120)
            process.terminate()
            process.join(60)
            ended = process.exitcode
            process.kill()
            return ended

        def sleeper(tell):
            tell.send("here")
            time.sleep(120)

        if __name__ == "__main__":
            print(ElasticLauncher(LaunchPlan(1)).launch(Task(exit_code)), exit_code())
        """
    )
    out, err = program.communicate(timeout=240)
    assert (program.returncode, out) == (0, "-15 -15\n"), err


def test_a_folder_with_too_long_a_name_for_sockets_is_refused(start_program: Any, tmp_path: Path) -> None:
    long = tmp_path / ("x" * (90 - len(str(tmp_path))))
    long.mkdir()
    program = start_program(
        """
        from stratagem.errors import UsageError
        from stratagem import LaunchPlan, Task
        from stratagem_launch.elastic import ElasticLauncher

        if __name__ == "__main__":
            try:
                ElasticLauncher(LaunchPlan(1)).launch(Task(int))
            except UsageError as error:
                print(error)
        """,
        TMPDIR=str(long),
    )
    out, err = program.communicate(timeout=240)
    assert (program.returncode, err) == (0, "")
    assert f"TMPDIR is {str(long)!r}" in out
    assert "where the system allows 107: set TMPDIR to a shorter one" in out
