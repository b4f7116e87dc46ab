"""What a shell asks the program for, and what it answers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = "from stratagem_cli.main import main; import sys; sys.exit(main())"


def stratagem(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False, env=environ
    )


def completed(*words: str, typed: str = "") -> list[str]:
    """What bash is offered after `stratagem WORDS… TYPED`."""
    done = stratagem(
        _STRATAGEM_COMPLETE="bash_complete",
        COMP_WORDS=" ".join(["stratagem", *words, typed]),
        COMP_CWORD=str(1 + len(words)),
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_asks_the_program(shell: str) -> None:
    done = stratagem("completion", shell)
    assert done.returncode == 0
    assert "_STRATAGEM_COMPLETE" in done.stdout


def test_another_shell_is_refused() -> None:
    done = stratagem("completion", "tcsh")
    assert done.returncode == 2
    assert "'bash', 'zsh', 'fish'" in done.stderr


def test_commands_flags_and_names_are_completed() -> None:
    assert completed(typed="va") == ["validate"]
    assert completed("fit", typed="--dev") == ["--devices"]
    assert {"ddp", "ddp_spawn"} <= set(completed("fit", "--strategy", typed="ddp"))
    assert completed("fit", "--accelerator", typed="cp") == ["cpu"]
    assert completed("fit", "--logger", typed="tens") == ["tensorboard"]


def test_bash_itself_completes(tmp_path) -> None:
    script = tmp_path / "program"
    script.write_text(f"#!{sys.executable}\n{PROGRAM}\n")
    script.rename(tmp_path / "stratagem").chmod(0o755)
    asks = """
        eval "$(stratagem completion bash)"
        COMP_WORDS=(stratagem fit --strategy fsd) COMP_CWORD=3
        _stratagem_completion stratagem
        echo "${COMPREPLY[@]}"
    """
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", asks], capture_output=True, text=True, check=True, env={**os.environ, "PATH": path}
    )
    assert "fsdp" in done.stdout.split()
