import collections
import datetime
import enum
import json
import math

import numpy as np
import pytest
import torch
from stratagem_checkpoint.state_json import decode_state, encode_state

from stratagem.errors import CheckpointError


def round_trip(value):
    text, tensors = encode_state(value, "state")
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} isn't strict JSON"))

    def tensor(name, dtype, shape):
        assert tensors[name].dtype == dtype
        assert list(tensors[name].shape) == shape
        return tensors[name].clone()

    return decode_state(text, tensor, "state.json")


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**200),
        0.1 + 0.2,
        5e-324,
        1.7976931348623157e308,
        math.inf,
        -math.inf,
        complex(1, -math.inf),
        "",
        "päivää \ud800 \x00",
        b"",
        bytes(range(256)),
        [],
        (),
        set(),
        pytest.param(
            frozenset({1, "a"}), id="frozenset of two types"
        ),  # its repr differs from process to process
        {},
        [1, [2, (3, {4})]],
        {"a": {"b": [None]}},
        {1: "int", "1": "str", None: 0, (1, 2): 3, 2.5: 4, b"x": 5, True and "t": 6},
        {"$tensor": "not one"},
        {"$a": 1, "b": 2},
        {"a": 1, "$tuple": [1]},
        collections.OrderedDict([("b", 1), ("a", 2)]),
        collections.Counter({3: 2, 7: 1}),
        collections.defaultdict(list, {(1, 2): [3]}),
        collections.defaultdict(None, {"a": {1}}),
        collections.deque([1, (2, {3})], maxlen=4),
        collections.deque(),
        range(2, 9, 3),
        torch.Size([2, 3]),
        torch.bfloat16,
        torch.device("cpu"),
        {"deep": {"ok": ({"$x": ({"$y": frozenset({(1, 2)})},)},)}},
    ],
    ids=repr,
)
def test_values_come_back_equal_and_of_the_same_type(value):
    back = round_trip(value)
    assert back == value
    assert type(back) is type(value)
    assert repr(back) == repr(value)


def test_nan_and_minus_zero_and_the_kind_of_numbers():
    nan, zero, one, number, truth = round_trip([math.nan, -0.0, 1.0, 1, True])
    assert math.isnan(nan)
    assert math.copysign(1, zero) == -1
    assert [type(each) for each in (one, number, truth)] == [float, int, bool]


def test_the_order_of_keys_is_kept():
    assert list(round_trip({"z": 1, "a": 2, 3: 4})) == ["z", "a", 3]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float64).reshape(2, 3)[:, ::-1],
        np.array(5, dtype=np.int16),
        np.array([1, 2], dtype=">u4"),
        np.array([True, False]),
        np.zeros((0, 2), dtype=np.float16),
        np.array([1 + 2j]),
        np.array([2**64 - 1], dtype=np.uint64),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)
def test_numpy_arrays(array):
    back = round_trip({"a": array})["a"]
    assert type(back) is np.ndarray
    assert back.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(back, array)
    back[...] = 0


@pytest.mark.parametrize(
    "scalar", [np.float32(1.5), np.float64(2.5), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True)], ids=repr
)
def test_numpy_scalars(scalar):
    back = round_trip([scalar])[0]
    assert type(back) is type(scalar)
    assert back == scalar


def test_tensors_keep_dtype_and_shape():
    value = {
        "rng": torch.get_rng_state(),
        "scale": torch.tensor(65536.0),
        "p": torch.nn.Parameter(torch.ones(2, 2)),
    }
    back = round_trip(value)
    for key, tensor in value.items():
        assert torch.equal(back[key], tensor)
    assert type(back["p"]) is torch.Tensor


class Colour(enum.IntEnum):
    RED = 1


class Pair(collections.namedtuple("Pair", "a b")):
    pass


class Tally(collections.Counter):
    pass


class Wrapped(torch.Tensor):
    pass


def itself():
    value = []
    value.append({"again": value})
    return value


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


def test_a_hundred_levels_can_be_saved():
    text, tensors = encode_state(nested(100), "state")
    assert text.count(b"[") == 100
    assert tensors == {}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            {"at": datetime.timedelta(1)},
            r"state\['at'\] can't be saved: it is a datetime.timedelta, allowed are dict,",
        ),
        ([1, [Colour.RED]], r"state\[1\]\[0\] can't be saved: it is a .*Colour"),
        ({"p": (Pair(1, 2),)}, r"state\['p'\]\[0\] can't be saved: it is a .*Pair"),
        (
            {"d": collections.defaultdict(lambda: 1)},
            r"state\['d'\] can't be saved: it is a defaultdict of <function",
        ),
        ({"c": Tally("aab")}, r"state\['c'\] can't be saved: it is a .*Tally"),
        ({"f": print}, r"state\['f'\] can't be saved: it is a builtins.builtin_function_or_method"),
        ({Colour.RED: 1}, "the key <Colour.RED: 1> of state can't be saved"),
        ({"a": np.array(["x"])}, r"state\['a'\] can't be saved: this numpy value has dtype <U1"),
        ({"a": np.array([object()])}, r"state\['a'\] can't be saved: this numpy value has dtype object"),
        (
            {"a": np.ma.array([1], mask=[True])},
            r"state\['a'\] can't be saved: this numpy value is a MaskedArray",
        ),
        ({"a": np.str_("x")}, r"state\['a'\] can't be saved"),
        ({"t": torch.ones(2).as_subclass(Wrapped)}, r"state\['t'\] can't be saved: it is a Wrapped"),
        ({"t": torch.empty(2, device="meta")}, r"state\['t'\] can't be saved: it is on the meta device"),
        (itself(), r"state\[0\]\['again'\] can't be saved: it contains itself"),
        (nested(101), "nested deeper than 100 levels"),
        (nested(150), "nested deeper than 100 levels"),
    ],
)
def test_everything_else_is_refused_by_place_and_type(value, words):
    with pytest.raises(CheckpointError, match=words):
        encode_state(value, "state")


def test_the_same_list_twice_is_no_cycle():
    shared = [1]
    assert round_trip({"a": shared, "b": shared}) == {"a": [1], "b": [1]}


def test_a_hundred_levels_come_back():
    value = 1
    for _ in range(50):
        value = {1: (value,)}
    assert round_trip(value) == value


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b'{"$code": ["os.system", "true"]}',
        b'{"$tuple": 3}',
        b'{"$bytes": "*"}',
        b'{"$tuple": [], "x": 1}',
    ],
)
def test_other_json_is_damage(text):
    with pytest.raises(CheckpointError, match=r"state.json is damaged"):
        decode_state(text, lambda *_: torch.ones(1), "state.json")
