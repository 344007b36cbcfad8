"""No pickle runs anything, whatever it says."""

import io
import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.data import DataError
from equipoise.data.unpickle import read_pickled_dict


def read(content):
    return read_pickled_dict(io.BytesIO(content), "archive:member")


class Call:
    """Pickles into a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("where", ["top", "value", "key", "nested"])
def test_a_malicious_pickle_is_refused_and_does_not_run(protocol, where, tmp_path):
    victim = tmp_path / "written"
    attack = Call(os.mkdir, str(victim))
    content = {
        "top": attack,
        "value": {"data": attack},
        "key": {attack: 1},
        "nested": {"a": [({"b": attack},)]},
    }
    payload = pickle.dumps(content[where], protocol)
    with pytest.raises(DataError, match=r"archive:member is refused.*mkdir"):
        read(payload)
    assert not victim.exists()
    pickle.loads(payload)  # the attack is real: a plain unpickler falls for it
    assert victim.exists()


@pytest.mark.parametrize(
    "payload",
    [
        b"cos\nsystem\n(S'true'\ntR.",  # GLOBAL, REDUCE
        b"(S'true'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'true'\no.",  # OBJ
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cbuiltins\ngetattr\n.",
        b"c__builtin__\ngetattr\n.",
        b"ccopyreg\n_reconstructor\n.",
        b"c_codecs\nencode\n.",
        b"cnumpy\nload\n.",
        b"cnumpy.core.multiarray\nscalar\n.",
        b"cnumpy.core.multiarray\n_reconstruct.__globals__\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x07ndarray.__class__\x93.",
        b"cequipoise.data.unpickle\nread_pickled_dict\n.",
        b"Ppersistent\n.",
        b"\x82\x01.",  # an extension code
    ],
)
def test_other_names_are_refused(payload):
    with pytest.raises(DataError, match="is refused"):
        read(payload)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "Ran out of input"),
        (b"cos\nsystem\n.", "the name os.system; only uint8 arrays are read"),
        (b"\x80\x02].", "a list instead of a dictionary"),
    ],
)
def test_a_refusal_says_why(payload, why):
    with pytest.raises(DataError) as error:
        read(payload)
    wanted = "not a whole pickle of containers and uint8 arrays"
    assert str(error.value) == f"archive:member is refused: {wanted} ({why})"


NDARRAY, DTYPE = b"cnumpy\nndarray\n", b"cnumpy\ndtype\n"
RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
ARRAY = RECONSTRUCT + NDARRAY + b"K\x00\x85C\x01b\x87R"  # an array, before its state
UINT8 = DTYPE + b"(S'u1'\ntR"


@pytest.mark.parametrize(
    "value",
    [
        NDARRAY + b")R",  # called
        NDARRAY + b"}b",  # the stand-in itself given a state
        RECONSTRUCT + b"}b",
        RECONSTRUCT + b"N}\x86b",  # a slot state
        NDARRAY + b")\x81}b",  # NEWOBJ, BUILD
        DTYPE + b"(S'O'\ntR",  # an array of objects
        DTYPE + b"(S'f8'\ntR",
        # a foreign subtype, all else well
        RECONSTRUCT + DTYPE + b"K\x00\x85C\x01b\x87R(K\x01K\x01\x85" + UINT8 + b"\x89C\x01atb",
        ARRAY,  # never given its bytes
        ARRAY + b"N\x85b",  # a state of another length
        ARRAY + b"(K\x01K\x04\x85" + UINT8 + b"\x89C\x01atb",
        ARRAY + b"(K\x01J\xff\xff\xff\xff\x85" + UINT8 + b"\x89C\x01atb",
        ARRAY + b"(K\x01K\x01\x85N\x89C\x01atb",  # no dtype
    ],
)
def test_misused_stand_ins_are_refused(value):
    with pytest.raises(DataError, match="is refused"):
        read(b"\x80\x03}C\x04data" + value + b"s.")


@pytest.mark.parametrize("protocol", [3, 4])
def test_arrays_and_containers_are_read(protocol):
    x = np.arange(12, dtype=np.uint8).reshape(3, 4)
    content = {
        b"data": x,
        "fortran": np.asfortranarray(x),
        "labels": [1, 2],
        "none": None,
        "t": (1, {"a": 2.5}),
    }
    got = read(pickle.dumps(content, protocol))
    assert np.array_equal(got["data"], x)
    assert np.array_equal(got["fortran"], x)
    assert type(got["data"]) is np.ndarray
    assert got["data"].flags.writeable
    assert got["labels"] == [1, 2]
    assert got["t"] == (1, {"a": 2.5})


@pytest.mark.parametrize("array", [np.zeros(3), np.array([{}]), np.ma.array([1]), np.array(["a"])])
def test_other_arrays_are_refused(array):
    with pytest.raises(DataError, match="is refused"):
        read(pickle.dumps({"data": array}, 3))


@settings(max_examples=200)
@given(st.data())
def test_a_changed_pickle_is_read_or_refused(data):
    """Flipping bytes gives a dictionary or a `DataError`, nothing else."""
    content = bytearray(pickle.dumps({"data": np.arange(6, dtype=np.uint8), "labels": [1, 2, 3]}, 3))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        got = read(bytes(content))
    except DataError:
        return
    assert type(got) is dict
