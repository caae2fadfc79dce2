"""The state codec is exact, and the digest sees every bit and nothing else."""

from __future__ import annotations

import math
import struct
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.runtime.files import json_bytes
from rl_training.runtime.state import DTYPES, StateError, decode_state, digest, encode_state


def round_trip(state: Any) -> Any:
    """Through the bytes of both files, as a checkpoint does it."""
    import json

    tensors, structure = encode_state(state)
    stored = safetensors.torch.load(safetensors.torch.save(tensors))
    return decode_state(stored, json.loads(json_bytes(structure, indent=None)))


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)])
def test_every_dtype_and_shape_comes_back_bit_for_bit(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    if dtype == torch.bool:
        tensor = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(1)).bool()
    else:
        tensor = torch.arange(math.prod(shape) or 1).to(dtype)[: math.prod(shape)].reshape(shape)
    loaded = round_trip({"x": tensor})["x"]
    assert loaded.dtype == dtype
    assert loaded.shape == shape
    assert bits(loaded) == bits(tensor)


def test_nan_payloads_and_negative_zero_in_tensors_survive() -> None:
    tensor = torch.tensor([0x7FC00001, 0x7F800001, -0x80000000], dtype=torch.int32).view(
        torch.float32
    )
    assert bits(round_trip([tensor])[0]) == bits(tensor)


def test_views_that_share_memory_come_back_as_separate_equal_tensors() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    state = {"all": base, "transposed": base.T, "column": base[:, 1], "again": base}
    loaded = round_trip(state)
    for name, tensor in state.items():
        assert torch.equal(loaded[name], tensor)
    loaded["all"].zero_()
    assert torch.equal(loaded["again"], base)
    assert torch.equal(loaded["column"], torch.tensor([1.0, 5.0, 9.0]))


def test_a_later_change_of_the_state_does_not_reach_what_was_encoded() -> None:
    weight = torch.ones(2)
    tensors, structure = encode_state({"w": weight})
    weight.zero_()
    assert torch.equal(decode_state(tensors, structure)["w"], torch.ones(2))


def test_parameters_come_back_as_plain_tensors_without_gradient() -> None:
    loaded = round_trip(torch.nn.Parameter(torch.ones(2)))
    assert type(loaded) is torch.Tensor
    assert not loaded.requires_grad


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.uint32).reshape(2, 3),
        np.arange(6, dtype=np.float64)[::-2],
        np.array(7, dtype=np.int64),
        np.zeros((0, 4), dtype=np.float16),
        np.array([True, False]),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
    ],
    ids=["uint32", "reversed", "0-dim", "empty", "bool", "fortran"],
)
def test_numpy_arrays_come_back_as_numpy_arrays(array: np.ndarray) -> None:
    loaded = round_trip({"x": array})["x"]
    assert type(loaded) is np.ndarray
    assert loaded.dtype == array.dtype
    np.testing.assert_array_equal(loaded, array)
    assert loaded.shape == array.shape


def test_read_only_arrays_can_be_saved_and_come_back_writable() -> None:
    array = np.arange(3)
    array.flags.writeable = False
    loaded = round_trip(array)
    loaded[0] = 5
    assert loaded.tolist() == [5, 1, 2]


def test_numpy_scalars_keep_their_type() -> None:
    loaded = round_trip([np.float32(1.5), np.int64(-3), np.bool_(True), np.float64(0.1)])
    assert [type(value) for value in loaded] == [np.float32, np.int64, np.bool_, np.float64]
    assert loaded == [1.5, -3, True, 0.1]


def test_the_state_of_numpy_generators_survives_with_its_128_bit_integers() -> None:
    generator = np.random.default_rng(5)
    generator.random(3)
    loaded = round_trip(dict(generator.bit_generator.state))
    assert loaded["state"]["state"] > 2**64
    other = np.random.default_rng(0)
    other.bit_generator.state = loaded
    assert other.random() == generator.random()


@pytest.mark.parametrize("value", [math.inf, -math.inf, -0.0, 5e-324, 0.1, 1e308, 1.0])
def test_floats_come_back_with_the_same_bits(value: float) -> None:
    loaded = round_trip({"x": value})["x"]
    assert type(loaded) is float
    assert struct.pack("<d", loaded) == struct.pack("<d", value)


def test_nan_comes_back_with_its_payload() -> None:
    value = struct.unpack("<d", bytes.fromhex("010000000000f8ff"))[0]
    assert struct.pack("<d", round_trip(value)) == struct.pack("<d", value)


def test_types_that_look_alike_stay_apart() -> None:
    state = {"t": True, "i": 1, "f": 1.0, "s": "1", "n": None, "list": [1, [2]], "tuple": (1, (2,))}
    loaded = round_trip(state)
    assert loaded == state
    assert [type(value) for value in loaded.values()] == [type(value) for value in state.values()]


def test_names_that_could_collide_do_not() -> None:
    one, two, three, four = (torch.full((1,), float(index)) for index in range(4))
    state = {"a": {"b": one}, "a/b": two, "a~1b": three, "a.b": four, "": {"": one}, "tensor": "x"}
    loaded = round_trip(state)
    assert list(loaded) == list(state)
    assert loaded["a"]["b"].item() == 0
    assert loaded["a/b"].item() == 1
    assert loaded["a~1b"].item() == 2
    assert loaded["a.b"].item() == 3
    assert loaded[""][""].item() == 0


def test_dicts_that_look_like_tags_come_back_as_dicts() -> None:
    state = {"tensor": "/x", "nested": {"float": "00"}, "dict": {}, "tuple": []}
    assert round_trip(state) == state


def test_the_state_of_an_optimiser_round_trips_with_its_integer_keys_and_tuples() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], lr=0.1, betas=(0.8, 0.99))
    (weight**2).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    loaded = round_trip(optimizer.state_dict())
    assert loaded["param_groups"][0]["betas"] == (0.8, 0.99)
    twin = torch.nn.Parameter(weight.detach().clone())
    twin.grad = weight.grad
    other = torch.optim.Adam([twin], lr=0.5)
    other.load_state_dict(loaded)
    optimizer.step()
    other.step()
    assert torch.equal(twin, weight)


class Colour(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"a": {"b": {1, 2}}}, "/a/b"),
        ({"a": [0, b"bytes"]}, "/a/1"),
        ({"a": Colour.RED}, "/a"),
        ({"a": {1: 0, "x": 0}}, "/a"),
        ({"a": {(1, 2): 0}}, "/a"),
        ({"a": {True: 0}}, "/a"),
        ({"a": np.array(["x"])}, "/a"),
        ({"a": np.array([1], dtype=">i4")}, "/a"),
        ({"a": np.array([object()])}, "/a"),
        ({"a": torch.ones(2).to_sparse()}, "/a"),
        ({"a": torch.ones(2, dtype=torch.complex128)}, "/a"),
        ({"a": torch.empty(2, device="meta")}, "/a"),
    ],
)
def test_what_cannot_be_saved_exactly_is_refused_by_place(state: Any, place: str) -> None:
    for function in (encode_state, digest):
        with pytest.raises(StateError, match=place):
            function(state)


@pytest.mark.parametrize(
    "structure",
    [
        {"dict": {"x": {"tensor": "/missing"}}},
        {"tensor": 5},
        {"unknown": 1},
        {"dict": {}, "tuple": []},
        {},
    ],
)
def test_a_structure_that_does_not_fit_its_tensors_is_an_error(structure: Any) -> None:
    with pytest.raises(ValueError, match=r"tensor|tag"):
        decode_state({"/x": torch.ones(1)}, structure)


def test_the_digest_has_the_value_worked_out_by_hand() -> None:
    import hashlib

    def text(value: str) -> bytes:
        return struct.pack("<q", len(value)) + value.encode()

    expected = text("dict") + struct.pack("<q", 2)
    expected += text("a") + text("int") + struct.pack("<q", 0) + text("7")
    expected += text("w") + text("tensor") + struct.pack("<q", 1) + text("float32")
    expected += struct.pack("<q", 2) + struct.pack("<ff", 1.5, -2.0)
    assert digest({"w": torch.tensor([1.5, -2.0]), "a": 7}) == hashlib.sha256(expected).hexdigest()


def test_the_digest_ignores_dict_order_and_memory_layout() -> None:
    matrix = torch.arange(6.0).reshape(2, 3)
    one = {"a": matrix, "b": {"x": 1, "y": 2}}
    other = {"b": {"y": 2, "x": 1}, "a": matrix.T.contiguous().T}
    assert digest(one) == digest(other)
    assert digest({"a": np.arange(4)[::-1]}) == digest({"a": np.array([3, 2, 1, 0])})


DIFFERENT: list[Any] = [
    {"x": torch.zeros(2)},
    {"y": torch.zeros(2)},
    {"x": torch.zeros(3)},
    {"x": torch.zeros(2, 1)},
    {"x": torch.zeros(1, 2)},
    {"x": torch.tensor([0.0, -0.0])},
    {"x": torch.zeros(2, dtype=torch.int32)},
    {"x": torch.zeros(2, dtype=torch.float64)},
    {"x": torch.zeros(4, dtype=torch.float16)},
    {"x": torch.zeros(4, dtype=torch.bfloat16)},
    {"x": np.zeros(2, dtype=np.float32)},
    {"x": np.float32(0)},
    {"x": [0.0, 0.0]},
    {"x": (0.0, 0.0)},
    {"x": [0, 0]},
    {"x": [False, False]},
    {"x": [[0], 0]},
    {"x": [0, [0]]},
    {"x": None},
    {"x": "None"},
    {"x": 0},
    {"x": "0"},
    {"x": 0.0},
    {"x": -0.0},
    {"x": False},
    {"x": {}},
    {"x": {0: 0}},
    {"x": {"0": 0}},
    {"x": {"a": 1}, "b": 2},
    {"x": {"a": 1, "b": 2}},
    {},
]


def test_the_digest_tells_every_two_different_states_apart() -> None:
    assert len({digest(state) for state in DIFFERENT}) == len(DIFFERENT)


def test_one_flipped_bit_changes_the_digest() -> None:
    data = torch.zeros(16, dtype=torch.uint8)
    seen = {digest(data)}
    for index in range(16):
        for bit in range(8):
            changed = data.clone()
            changed[index] = 1 << bit
            seen.add(digest(changed))
    assert len(seen) == 1 + 16 * 8


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.lists(st.integers(-128, 127), max_size=4).map(lambda v: torch.tensor(v, dtype=torch.int8)),
    st.lists(st.floats(width=32, allow_nan=False), max_size=4).map(
        lambda v: np.array(v, dtype=np.float32)
    ),
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
STATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(KEYS, inner, max_size=3),
        st.dictionaries(st.integers(), inner, min_size=1, max_size=3),
        st.tuples(inner, inner),
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(STATES)
def test_any_state_comes_back_with_its_digest(state: Any) -> None:
    assert digest(round_trip(state)) == digest(state)
