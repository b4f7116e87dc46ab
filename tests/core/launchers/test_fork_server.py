"""What a fork server has done before the first worker, and when it begins."""

from __future__ import annotations

from typing import Any


def test_it_imports_while_the_task_is_pickled(start_program: Any) -> None:
    program = start_program(
        """
        import psutil
        from stratagem.launchers import LaunchPlan, Task
        from stratagem.launchers.elastic import ElasticLauncher

        class Data:
            def __reduce__(self):
                children = psutil.Process().children()
                return bool, (any("forkserver" in " ".join(child.cmdline()) for child in children),)

        if __name__ == "__main__":
            print(ElasticLauncher(LaunchPlan(1)).launch(Task(bool, (Data(),))))
        """
    )
    out, err = program.communicate(timeout=60)
    assert (program.returncode, out) == (0, "True\n"), err


def test_workers_inherit_its_imports_and_walk_over_none_of_them(start_program: Any) -> None:
    program = start_program(
        """
        import gc, multiprocessing, sys
        from stratagem.launchers import LaunchPlan, Task
        from stratagem.launchers.elastic import ElasticLauncher

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
    out, err = program.communicate(timeout=60)
    assert (program.returncode, out) == (0, "True True True [True] True 0\n"), err
