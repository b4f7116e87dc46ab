"""What is mutated and what isn't; `make mutate` runs the mutants themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.mutation.targets import ELSEWHERE, TARGETS, WAIT_TARGETS, Target

pytest.importorskip("cosmic_ray", reason="cosmic-ray isn't installed")

from tests.mutation.mutants import EQUIVALENT, equivalents, is_equivalent, listed_by_folder, mutants_of
from tests.mutation.waits import waits_of

ROOT = Path(__file__).parents[2]

SOURCE = '''
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    NUMBER = 1


class Base:
    @abstractmethod
    def method(self): ...

    @property
    def value(self): ...


class Like(Protocol):
    def method(self, flag: bool = True): ...

    def has_code(self, flag: bool = True):
        return flag


def call(x: int | None = None, *, why: str) -> int | str:
    """Adds 1."""
    y: int | None = x
    if x is None:
        raise ValueError(f"{1 + 1} é: {x}"); z = 3
    return y + 5
'''


def changes(**how: Any) -> list[tuple[str, str]]:
    settings = {"sample": None, "seed": 0, **how}
    return [(mutant.before, mutant.after) for mutant in mutants_of({"m.py": SOURCE}, **settings)]


def test_dotted_names_of_several_exceptions_are_left_as_they_are() -> None:
    source = "try:\n    call()\nexcept (json.JSONDecodeError, OSError):\n    pass\n"
    mutants = mutants_of({"m.py": source}, None, 0)
    assert "except (json.JSONDecodeError, CosmicRayTestingException):" in {each.after for each in mutants}


def test_types_and_texts_are_left_as_they_are() -> None:
    mutated = changes()
    assert {before.strip() for before, _ in mutated} == {
        "@property",
        "def has_code(self, flag: bool = True):",
        "if x is None:",
        'raise ValueError(f"{1 + 1} é: {x}"); z = 3',
        "return y + 5",
    }
    assert ("if x is None:", "if not x is None:") in mutated
    assert ("if x is None:", "if x == None:") not in mutated
    numbers = [after for before, after in mutated if "z = " in before]
    assert [after.replace(" ", "")[-2:] for after in numbers] == ["=4", "=2"]


def test_a_sample_is_the_same_each_time() -> None:
    assert changes(sample=5) == changes(sample=5)
    assert len(changes(sample=5)) == 5
    assert set(changes(sample=5)) < set(changes())
    assert changes(sample=5) != changes(sample=5, seed=1)
    several = mutants_of({"a.py": SOURCE, "b.py": SOURCE}, 12, 0)
    assert {mutant.path for mutant in several} == {"a.py", "b.py"}
    assert len(several) == 12


@pytest.mark.parametrize("target", [*TARGETS, *WAIT_TARGETS], ids=lambda target: target.name)
def test_what_is_mutated_and_its_tests_are_there(target: Target) -> None:
    for pattern in (*target.modules, *target.tests):
        assert list(ROOT.glob(pattern)), pattern
    for path in target.paths():
        first = target.tests_for(path)[0]
        mirror = f"test_{Path(path).stem}.py"
        assert Path(first).name == mirror or mirror not in {
            Path(test).name for test in target.tests_for(path)
        }


def test_further_tests_are_those_of_their_modules_alone() -> None:
    (checkpoint,) = (target for target in TARGETS if target.name == "checkpoint")
    tests = {path: checkpoint.tests_for(path) for path in checkpoint.paths()}
    in_background = [
        Path(path).stem for path, of in tests.items() if Path(of[0]).name == "test_background.py"
    ]
    assert in_background == ["background", "snapshot", "writer", "writer_process"]
    having = {path for path, of in tests.items() if any(each.endswith("test_background.py") for each in of)}
    assert len(having) == len(in_background)
    assert set(checkpoint.all_tests()) == {test for of in tests.values() for test in of}


@pytest.mark.parametrize("folder", listed_by_folder())
def test_lines_that_are_listed_as_equivalent_are_there_and_say_why(folder: str) -> None:
    lines = {line.strip() for path in (ROOT / folder).rglob("*.py") for line in path.read_text().splitlines()}
    for each in equivalents(f"{folder}/any.py"):
        assert each["before"] in lines, f"{EQUIVALENT.name}: {each['before']!r} isn't in {folder} any more"
        assert each["why"]
        assert set(each) <= {"before", "after", "why"}


def test_an_equivalent_is_a_line_with_one_change_or_with_any() -> None:
    mutant = next(each for each in mutants_of({"m.py": SOURCE}, None, 0) if each.before == "return y + 5")
    assert is_equivalent(mutant, [{"before": mutant.before, "why": "any"}])
    assert is_equivalent(mutant, [{"before": mutant.before, "after": mutant.after, "why": "this"}])
    assert not is_equivalent(mutant, [{"before": mutant.before, "after": "other", "why": "another"}])


WAITING = """
def copied(tensor, device, is_pinned):
    host = torch.empty_like(tensor, pin_memory=True)
    host.copy_(tensor)
    room.copy_(tensor, non_blocking=is_pinned)
    stream.wait_stream(
        current
    )
    thread.wait()
    self._work.wait()
    done = work.wait()
    scale, found = scale.cpu(), found.cpu()
    scale = other.cpu()
    return tensor.to(device, non_blocking=True)
"""


def test_each_wait_for_a_device_is_left_out_once() -> None:
    assert [(mutant.before, mutant.after) for mutant in waits_of("m.py", WAITING)] == [
        ("host.copy_(tensor)", "host.copy_(tensor, non_blocking=True)"),
        ("room.copy_(tensor, non_blocking=is_pinned)", "room.copy_(tensor, non_blocking=True)"),
        ("stream.wait_stream( current )", "pass"),
        ("self._work.wait()", "pass"),
        ("scale, found = scale.cpu(), found.cpu()", "pass"),
    ]
    for mutant in waits_of("m.py", WAITING):
        compile(mutant.source, "m.py", "exec")


def test_each_module_that_waits_for_a_device_has_tests_or_a_reason() -> None:
    having = {
        str(path.relative_to(ROOT))
        for path in (*ROOT.glob("core/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py"))
        if waits_of("m.py", path.read_text(encoding="utf-8"))
    }
    assert having == {*(path for target in WAIT_TARGETS for path in target.paths()), *ELSEWHERE}
