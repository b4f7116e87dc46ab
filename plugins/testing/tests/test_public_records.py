"""What authors of plugins write and read says what each of its fields means."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields, is_dataclass

import pytest
import stratagem_testing
from stratagem_testing.report import Report
from stratagem_verify.session import Finding
from stratagem_verify.verification import Verification

from stratagem import Availability, Capabilities, Component

RECORDS = [
    *(Component, Capabilities, Availability, Report, Finding, Verification),
    *(each for name in dir(stratagem_testing) if is_dataclass(each := getattr(stratagem_testing, name))),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_says_what_it_is(record):
    documented = set()
    for cls in record.__mro__[:-1]:
        (tree,) = ast.parse(inspect.getsource(cls)).body
        assert isinstance(tree, ast.ClassDef)
        for field, after in zip(tree.body, tree.body[1:]):
            said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and said:
                documented.add(field.target.id)
    assert {field.name for field in fields(record)} - documented == set()


def test_the_kit_shows_its_names():
    names = dir(stratagem_testing)
    assert {
        "StrategySubject",
        "LauncherSubject",
        "StrategyContract",
        "Outcome",
        "run_check",
    } <= set(names)
    assert names == sorted(stratagem_testing.__all__)
