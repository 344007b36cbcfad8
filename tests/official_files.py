"""Writers of the official formats, at toy size; `place` puts files where a registry of its own finds them."""

import dataclasses
import gzip
import hashlib
import io
import struct
import tarfile

import numpy as np
from scipy.io import savemat

from equipoise.data.dataset import SourceFile
from equipoise.data.registry import SOURCES

RNG = np.random.default_rng(0)


def idx(array):
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


def idx_files():
    x, y = RNG.integers(0, 256, (7, 28, 28)), np.arange(7)
    content = {
        "train-images-idx3-ubyte.gz": idx(x),
        "train-labels-idx1-ubyte.gz": idx(y),
        "t10k-images-idx3-ubyte.gz": idx(x[:3]),
        "t10k-labels-idx1-ubyte.gz": idx(y[:3]),
    }
    return {name: gzip.compress(data) for name, data in content.items()}, x, y


def python2_string(data):
    return b"U" + bytes([len(data)]) + data if len(data) < 256 else b"T" + struct.pack("<I", len(data)) + data


def python2_array(x):
    """The opcodes with which Python 2 pickled a uint8 array of two dimensions."""
    shape = b"".join(b"J" + struct.pack("<i", n) for n in x.shape) + b"\x86"
    dtype = b"cnumpy\ndtype\n" + python2_string(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + python2_string(b"|") + b"NNN" + b"J\xff\xff\xff\xff" * 2 + b"K\x00tb"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + python2_string(b"b") + b"\x87R"
    )
    return array + b"(K\x01" + shape + dtype + b"\x89" + python2_string(x.tobytes()) + b"tb"


def python2_batch(x, labels, key=b"labels"):
    items = python2_string(b"data") + python2_array(x)
    items += python2_string(key) + b"](" + b"".join(b"K" + bytes([i]) for i in labels) + b"e"
    items += python2_string(b"batch_label") + python2_string(b"a batch")
    return b"\x80\x02}(" + items + b"u."


def tar_gz(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def cifar10_members(x, y):
    train = {
        f"cifar-10-batches-py/data_batch_{i + 1}": python2_batch(x[i : i + 1], y[i : i + 1]) for i in range(5)
    }
    return train | {"cifar-10-batches-py/test_batch": python2_batch(x[5:], y[5:])}


def mat(x, y):
    buffer = io.BytesIO()
    savemat(buffer, {"X": x, "y": y})
    return buffer.getvalue()


def place(name, contents, folder, base="http://127.0.0.1:9/"):
    """Write the files and return the registry entry that expects exactly them."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in contents.items():
        (folder / file).write_bytes(content)
    files = tuple(
        SourceFile(file, hashlib.sha256(content).hexdigest(), base + file)
        for file, content in contents.items()
    )
    return dataclasses.replace(SOURCES[name], files=files)
