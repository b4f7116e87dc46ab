"""JSON of anybody: one meaning, or refused."""

import re
from pathlib import Path

import pytest
from stratagem_checkpoint.strict_json import (
    HEADER_LIMIT_BYTES,
    MANIFEST_LIMIT_BYTES,
    STATE_LIMIT_BYTES,
    check_limit,
    parse_json,
)

from stratagem.errors import CheckpointError


@pytest.mark.parametrize(
    ("text", "value"), [(b'{"a": [1, 2.5, null, "\xc3\xa9"]}', {"a": [1, 2.5, None, "é"]}), (b"3", 3)]
)
def test_what_is_json_is_parsed(text, value):
    assert parse_json(text) == value
    assert parse_json(memoryview(text)) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"a": 1, "b": 2, "a": 3}', "it has the key 'a' twice in one object"),
        (b'[{"x": {"b": 1, "b": 1}}]', "it has the key 'b' twice"),
        (b"[NaN]", "NaN is no JSON"),
        (b"-Infinity", "-Infinity is no JSON"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b"\xff", "utf-8"),
        (b"{", "Expecting"),
    ],
)
def test_what_has_no_one_meaning_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        parse_json(text)


def test_a_key_may_come_again_in_another_object():
    assert parse_json(b'[{"a": 1}, {"a": {"a": 2}}]') == [{"a": 1}, {"a": {"a": 2}}]


def test_the_limit_itself_is_allowed():
    check_limit(10, 10, "it")
    with pytest.raises(CheckpointError, match=r"^it has 11 bytes of JSON, allowed are 10: "):
        check_limit(11, 10, "it")


def test_the_limits_are_those_of_the_format():
    page = Path(__file__).parents[3] / "docs" / "reference" / "checkpoint-format.md"
    said = (
        r"manifest has at most (\d+) MiB, a state's JSON (\d+) MiB, the header of a safetensors file (\d+) MB"
    )
    manifest, state, header = map(int, re.search(said, page.read_text(encoding="utf-8")).groups())
    assert (manifest * 2**20, state * 2**20) == (MANIFEST_LIMIT_BYTES, STATE_LIMIT_BYTES)
    assert header * 10**6 == HEADER_LIMIT_BYTES
