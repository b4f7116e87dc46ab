"""Every call of a checkpointer is handed on as it was made."""

from stratagem.checkpoint.base import Checkpoint, Checkpointer
from stratagem.checkpoint.wrapper import CheckpointerWrapper


class Notes(Checkpointer):
    def __init__(self):
        self.calls = []

    def save(self, path, checkpoint):
        self.calls.append(("save", path, checkpoint))

    def open(self, path, verify=True):
        self.calls.append(("open", path, verify))
        return f"reader of {path}"

    def remove(self, path):
        self.calls.append(("remove", path))


def test_calls_are_handed_on():
    inner, checkpoint = Notes(), Checkpoint({})
    wrapper = CheckpointerWrapper(inner)
    wrapper.save("a", checkpoint)
    assert wrapper.open("b") == "reader of b"
    assert wrapper.open("c", verify=False) == "reader of c"
    wrapper.remove("d")
    assert inner.calls == [
        ("save", "a", checkpoint),
        ("open", "b", True),
        ("open", "c", False),
        ("remove", "d"),
    ]


def test_a_subclass_changes_one_of_them():
    class Elsewhere(CheckpointerWrapper):
        def remove(self, path):
            super().remove(f"trash/{path}")

    inner = Notes()
    Elsewhere(inner).remove("a")
    assert inner.calls == [("remove", "trash/a")]
