import subprocess
import sys


def test_importing_callbacks_and_loggers_is_cheap():
    code = (
        "import sys, stratagem_callbacks, stratagem_trainer.callbacks, stratagem_trainer.loggers;"
        "print([name for name in ('torch', 'rich', 'matplotlib', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
