"""Manifests: what is written is what is read, and what can't be is refused."""

import json

import pytest
import torch
from stratagem_checkpoint.checksums import CHECKED_BYTES, DIGITS, checksum
from stratagem_checkpoint.manifest import (
    FORMAT_VERSION,
    ChunkRecord,
    FileRecord,
    Manifest,
    TensorRecord,
    decode_manifest,
)

from stratagem.errors import CheckpointError

FIRST, SECOND = "tensors-00000.safetensors", "tensors-00001.safetensors"


def file(name, size_bytes):
    return FileRecord(name, size_bytes, "0" * DIGITS * -(-size_bytes // CHECKED_BYTES))


def manifest(**fields):
    whole = TensorRecord(torch.float32, (2, 3), (ChunkRecord(FIRST, (0, 0), (2, 3)),))
    split = TensorRecord(
        torch.float64, (4,), (ChunkRecord(FIRST, (0,), (1,)), ChunkRecord(SECOND, (1,), (3,)))
    )
    empty = TensorRecord(torch.int64, (0, 5), ())
    made = {
        "world_size": 2,
        "files": (file("state.json", 0), file(FIRST, 32), file(SECOND, CHECKED_BYTES + 1)),
        "tensors": {"whole": whole, "split": split, "empty": empty},
        "aliases": {"tied": "whole"},
        "stratagem_version": "1.2",
        "torch_version": "2.3",
    }
    return Manifest(**{**made, **fields})


def sealed(document):
    begin = json.dumps(document).encode()[:-1]
    return begin + b', "xxh3_128": "%b"}' % checksum(begin).encode()


def changed(change, **fields):
    document = json.loads(manifest(**fields).encode())
    del document["xxh3_128"]
    change(document)
    return sealed(document)


def refused(text, **how):
    with pytest.raises(CheckpointError) as caught:
        decode_manifest(text, "the/path", **how)
    assert str(caught.value).startswith("the/path ")
    return str(caught.value)


def test_what_is_written_is_read():
    made = manifest()
    assert decode_manifest(made.encode(), "it") == made
    document = json.loads(made.encode())
    assert (document["format"], document["format_version"]) == ("stratagem-checkpoint", 2)
    assert document["tensors"]["split"] == {
        "dtype": "float64",
        "shape": [4],
        "chunks": [[1, [0], [1]], [2, [1], [3]]],
    }


def test_tied_tensors_are_read_from_what_is_written():
    made = manifest()
    assert set(made.readable()) == {"whole", "split", "empty", "tied"}
    assert made.readable()["tied"] is made.tensors["whole"]


def test_files_are_found_by_name():
    made = manifest()
    assert made.file(SECOND) is made.files[2]
    assert made.file("tensors-00002.safetensors") is None


def test_chunks_are_found_by_file_under_their_names_there():
    stored = manifest().stored([FIRST, "other"])
    assert stored == {
        FIRST: {"whole": (torch.float32, (2, 3)), "split@0": (torch.float64, (1,))},
        "other": {},
    }
    assert manifest().stored([SECOND])[SECOND] == {"split@1": (torch.float64, (3,))}
    chunk = ChunkRecord(FIRST, (2, 1), (3, 4))
    assert chunk.ends == (5, 5)
    assert TensorRecord(torch.float32, (9, 9), (chunk,)).name("w", chunk) == "w@2,1"


@pytest.mark.parametrize("at", [0, 40, -40, -2])
def test_a_changed_byte_is_noticed(at):
    text = bytearray(manifest().encode())
    text[at] ^= 1
    refused(bytes(text))


def test_another_digit_of_the_checksum_is_noticed():
    text = bytearray(manifest().encode())
    right = text[-3]
    for digit in set(b"0123456789abcdef") - {right}:
        text[-3] = digit
        refused(bytes(text))
    text[-3] = right
    decode_manifest(bytes(text), "the/path")


def test_without_verifying_all_but_the_checksum_is_checked():
    text = manifest().encode()
    other = text.replace(b'"1.2"', b'"1.3"')
    assert "isn't what was written" in refused(other)
    assert decode_manifest(other, "it", verify=False).stratagem_version == "1.3"
    damaged = changed(lambda m: m["aliases"].update(v="missing"))
    assert "alias 'v' of 'missing'" in refused(damaged, verify=False)
    refused(text[:-3], verify=False)


def test_what_a_newer_one_adds_is_let_be():
    assert decode_manifest(changed(lambda m: m.update(more=1)), "it") == manifest()


@pytest.mark.parametrize("text", [b"", b"[]", b"3", b"{}", b'{"format": "other"}', b"{", b"\xff"])
def test_what_is_no_manifest_is_refused(text):
    said = refused(text)
    assert "is no JSON" in said or "is not a checkpoint" in said


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (FORMAT_VERSION + 1, "written by stratagem 1.2, but this .* reads version 2; upgrade stratagem"),
        (FORMAT_VERSION - 1, "has format version 1, .* load and save it with the one that wrote it"),
        (0, "is damaged: its manifest.json says format_version '0', which no stratagem writes"),
        (True, "says format_version 'True'"),
        (2.0, "says format_version '2.0'"),
    ],
)
def test_other_versions_are_refused(version, said):
    with pytest.raises(CheckpointError, match=said):
        decode_manifest(changed(lambda m: m.update(format_version=version)), "it")


def test_a_file_of_a_rank_that_there_was_not_is_refused():
    for name in ("rank-00002.json", "tensors-00002.safetensors", "tensors-00010.safetensors"):
        changed_name = changed(lambda m, name=name: m["files"].append({**m["files"][0], "name": name}))
        assert f"{name} of 2 ranks" in refused(changed_name)
    added = changed(lambda m: m["files"].append({**m["files"][0], "name": "rank-00001.json"}))
    assert decode_manifest(added, "it").file("rank-00001.json") is not None


@pytest.mark.parametrize("size_bytes", [0, 1, CHECKED_BYTES, CHECKED_BYTES + 1])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_file_has_a_checksum_for_each_of_its_blocks(size_bytes, more):
    blocks = -(-size_bytes // CHECKED_BYTES)
    if blocks + more < 0:
        return
    record = {
        "name": "state.safetensors",
        "size_bytes": size_bytes,
        "xxh3_128": "0" * DIGITS * (blocks + more),
    }
    text = changed(lambda m: m["files"].append(record))
    if more:
        assert f"state.safetensors has {DIGITS * (blocks + more)} digits of checksums" in refused(text)
    else:
        assert decode_manifest(text, "it").file("state.safetensors").size_bytes == size_bytes


def test_chunks_fit_into_their_file():
    # 24 bytes of one tensor and 8 of the other.
    assert decode_manifest(manifest().encode(), "it")
    shorter = (file("state.json", 0), file(FIRST, 31), file(SECOND, CHECKED_BYTES + 1))
    assert f"the chunks in {FIRST} are longer than it" in refused(manifest(files=shorter).encode())


def test_a_tensors_chunks_are_in_files_of_tensors():
    for number in (0, 3, 10):
        text = changed(lambda m, number=number: m["tensors"]["whole"]["chunks"][0].__setitem__(0, number))
        assert f"is in file {number}, which isn't one of tensors" in refused(text)


def test_a_name_is_either_an_alias_or_a_tensor():
    for aliases in ({"whole": "split"}, {"a": "b"}, {"a": "tied"}):
        assert "alias" in refused(manifest(aliases=aliases).encode())


def chunks(*boxes):
    records = [[1, *box] for box in boxes]
    return changed(lambda m: m["tensors"]["whole"].update(chunks=records))


@pytest.mark.parametrize(
    "boxes",
    [
        [([0], [6])],
        [([0, 0, 0], [2, 3, 1])],
        [([0, 0], [2, 3, 1])],
        [([0, 0, 0], [2, 3])],
        [([0], [2, 3])],
        [([0, 0], [2])],
    ],
)
def test_chunks_have_as_many_dims_as_their_tensor(boxes):
    assert "has another number of dims" in refused(chunks(*boxes))


@pytest.mark.parametrize(
    "boxes", [[], [([0, 0], [2, 2])], [([0, 0], [2, 3]), ([0, 0], [1, 1])], [([1, 0], [2, 3])]]
)
def test_chunks_make_a_tensor_up_without_gap_or_overlap(boxes):
    assert "don't cover it exactly once" in refused(chunks(*boxes))
    assert decode_manifest(chunks(([1, 0], [1, 3]), ([0, 0], [1, 3])), "it")


def test_an_empty_tensor_has_no_chunks():
    text = changed(lambda m: m["tensors"]["empty"].update(chunks=[[1, [0, 0], [0, 5]]]))
    assert "'empty' don't cover it" in refused(text)


def test_dtypes_are_those_of_torch():
    assert "unknown dtype 'float31'" in refused(
        changed(lambda m: m["tensors"]["whole"].update(dtype="float31"))
    )


def test_shards_over_a_mesh_of_two_dims_are_read():
    def chunks(*boxes):
        return tuple(ChunkRecord(SECOND, offsets, lengths) for offsets, lengths in boxes)

    columns_first = chunks(((0, 0), (4, 2)), ((0, 2), (1, 3)), ((1, 2), (3, 3)))
    rows_first = chunks(((0, 0), (1, 4)), ((1, 0), (3, 1)), ((1, 1), (3, 3)))
    tensors = {
        "columns first": TensorRecord(torch.int8, (4, 5), columns_first),
        "rows first": TensorRecord(torch.int8, (4, 4), rows_first),
    }
    made = manifest(tensors=tensors, aliases={})
    assert decode_manifest(made.encode(), "it") == made
