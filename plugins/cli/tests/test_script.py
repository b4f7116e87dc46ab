"""`stratagem run`: a script in every process, with the flags where its Runtime finds them."""

import subprocess
import sys
from textwrap import dedent

import pytest
from stratagem_cli.main import main

from stratagem.runtime.script_flags import CONFIG_VARIABLE

HERE = ["--accelerator", "cpu", "--devices", "1"]


@pytest.fixture
def script(folder, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["stratagem"])
    monkeypatch.setenv(CONFIG_VARIABLE, "")

    def write(source):
        (folder / "loop.py").write_text(dedent(source))
        return "loop.py"

    return write


def test_arguments_main_and_neighbours(script, folder, capsys):
    (folder / "neighbour.py").write_text("NAME = 'neighbour'\n")
    path = script("""
        import sys
        from neighbour import NAME
        if __name__ == "__main__":
            print(NAME, *sys.argv[1:])
    """)
    assert main(["run", *HERE, path, "--strategy", "mine", "x"]) == 0
    assert capsys.readouterr().out == "neighbour --strategy mine x\n"


def test_the_runtime_takes_the_flags(script, capsys):
    path = script("""
        from stratagem import Runtime
        runtime = Runtime()
        print(runtime.config.accelerator, runtime.config.devices, runtime.config.seed, runtime.config.without_plugins)
    """)
    assert main(["run", *HERE, "--seed", "4", "--disable-plugin", "mps", path]) == 0
    assert capsys.readouterr().out == "cpu 1 4 ('mps',)\n"


@pytest.mark.parametrize("code", [0, 7])
def test_the_scripts_exit_code(script, code):
    path = script(f"raise SystemExit({code})")
    try:
        returned = main(["run", *HERE, path])
    except SystemExit as error:
        returned = error.code
    assert returned == code


def test_what_is_refused(script, refused):
    assert "SCRIPT 'none.py' can't be found" in refused("run", "none.py")
    assert "no strategy is called 'dpp'" in refused("run", "--strategy", "dpp", script("print(1)"))
    said = refused("run", *HERE, "--checkpoint", "directoy", script("print(1)"))
    assert "no checkpoint is called 'directoy'; nearest: directory" in said
    path = script("from stratagem import Runtime; Runtime(accelerator='mps')")
    assert "--accelerator cpu contradicts accelerator='mps'" in refused("run", *HERE, path)


def test_a_flag_that_says_the_same_as_the_script_is_no_contradiction(script):
    path = script("from stratagem import Runtime; Runtime('single', 'cpu', devices=1).launch()")
    assert main(["run", *HERE, path]) == 0


def test_two_processes(script, folder):
    path = script("""
        import os, sys
        from stratagem import Runtime

        def main(runtime, word):
            total = runtime.all_reduce(__import__("torch").tensor(float(runtime.rank + 1)), "sum")
            runtime.print(word, runtime.world_size, total.item())

        if __name__ == "__main__":
            Runtime().launch(main, sys.argv[1])
    """)
    # A program of its own: workers write where the fork server does, which another test may have started.
    words = ["run", "--strategy", "ddp", "--accelerator", "cpu", "--devices", "2", path, "word"]
    done = subprocess.run(
        [sys.executable, "-m", "stratagem", *words], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "word 2 3.0\n"


def test_the_exit_code_of_a_failing_rank(script, capfd):
    path = script("import os, sys; sys.exit(9 if os.environ['RANK'] == '1' else 0)")
    assert main(["run", "--strategy", "ddp", "--accelerator", "cpu", "--devices", "2", path]) == 9
    assert "rank 1 on " in capfd.readouterr().err.splitlines()[-1]
