"""Rows become inputs and outputs answers, the same after a file; weights are what repeating rows is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.data import DataError, read_table
from equipoise.data.columns import read_frame
from equipoise.data.encoding import Encoding
from equipoise.files import Damaged
from equipoise.memory import room
from equipoise.recipe import FAMILIES
from equipoise.tasks import Preparation, Recipe
from equipoise.tasks.arrays import as_labels, as_numbers, as_rows, gathered
from equipoise.tasks.splitting import Split

AFFINE = [name for name, family in FAMILIES.items() if family.affine]

RNG = np.random.default_rng(0)
X = RNG.normal(3.0, 5.0, size=(30, 4))
Y = RNG.normal(size=30)
ONES = np.ones(30)


def test_inputs_are_standardised_with_a_constant_column():
    A = Preparation.of(X, Y, "regression", ONES).apply(X)
    assert A.shape == (30, 5)
    assert torch.allclose(A[:, :4].mean(dim=0), torch.zeros(4, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(A[:, :4].std(dim=0, correction=0), torch.ones(4, dtype=torch.float64))
    assert (A[:, 4] == 1).all()


@pytest.mark.parametrize("layout", [np.asfortranarray, lambda X: np.repeat(X, 2, axis=1)[:, ::2], np.float64])
def test_rows_come_into_one_layout_first(layout):
    """A table keeps its columns together, an array its rows: the arithmetic must not see the difference."""
    preparation = Preparation.of(X, Y, "regression", ONES)
    A = preparation.apply(layout(X))
    assert A.is_contiguous()
    assert torch.equal(A, preparation.apply(X))
    assert as_rows(layout(X)).flags.c_contiguous
    assert as_numbers(layout(X)).flags.c_contiguous


@pytest.mark.parametrize("offset", [0.0, 0.1, 1e6, -7.3])
def test_a_constant_column_says_nothing_whatever_it_is_later(offset):
    rows = np.column_stack([X, np.full(30, offset)])
    preparation = Preparation.of(rows, Y, "regression", ONES)
    later = rows.copy()
    later[:, 4] = 1e9
    assert torch.equal(preparation.apply(rows), preparation.apply(later))


def test_a_column_that_differs_by_rounding_alone_is_constant():
    column = np.full(30, 0.1)
    column[::2] = np.nextafter(0.1, 1)
    assert Preparation.of(column[:, None], Y, "regression", ONES).scale == 0


def test_a_column_of_small_but_real_differences_is_not():
    column = 1.0 + 1e-9 * RNG.normal(size=30)
    assert Preparation.of(column[:, None], Y, "regression", ONES).scale > 1e8


@pytest.mark.parametrize("model", AFFINE)
def test_the_networks_are_homogeneous_so_weights_are_scaled_rows(model):
    network = Recipe(model, width=None if model == "linear" else 20, dtype="float64").resolved(30).build(5, 1)
    A = Preparation.of(X, Y, "regression", ONES).apply(X)
    root = torch.rand(30, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    stop = eq.Stop(rtol=1e-12)
    Z, scaled = network.solve(A, stop=stop).value, network.solve(root * A, stop=stop).value
    assert torch.allclose(root * Z, scaled, rtol=1e-9, atol=1e-10)


@given(st.integers(0, 2**31), st.sampled_from(["classification", "regression", "several"]))
@settings(max_examples=20)
def test_gathered_rows_do_not_know_order_or_repetition(seed, kind):
    rng = np.random.default_rng(seed)
    rows = rng.integers(-2, 3, size=(25, 2)).astype(float)  # with duplicates
    y = rng.choice(["a", "b"], 25) if kind == "classification" else rng.integers(0, 2, 25).astype(float)
    y = np.column_stack([y, -y]) if kind == "several" else y
    weights = rng.integers(0, 4, size=25)
    often = rng.permutation(np.repeat(np.arange(25), weights))
    once = gathered(rows, y, weights.astype(float))
    again = gathered(rows[often], y[often], np.ones(len(often)))
    for a, b in zip(once, again, strict=True):
        assert np.array_equal(a, b)
    assert once[2].sum() == weights.sum()
    pairs = {
        (*map(float, r), *np.atleast_1d(t).tolist())
        for r, t in zip(rows[weights > 0], y[weights > 0], strict=True)
    }
    assert len(once[0]) == len(pairs)


def test_minus_zero_is_zero():
    assert len(gathered(np.array([[0.0], [-0.0]]), np.zeros(2), np.ones(2))[0]) == 1


def test_weighted_moments_are_those_of_repeated_rows():
    weights = RNG.integers(1, 4, size=30)
    at = np.repeat(np.arange(30), weights)
    a = Preparation.of(X, Y, "regression", weights.astype(float))
    b = Preparation.of(X[at], Y[at], "regression", np.ones(len(at)))
    for name in ("mean", "scale", "target_mean", "target_scale"):
        assert np.allclose(getattr(a, name), getattr(b, name), rtol=1e-12)


# -- targets and answers -------------------------------------------------------------------------------------

LABELS = {
    "integers": np.array([3, -1, 7]),
    "words": np.array(["b", "aé", "<c>"]),
    "two": np.array(["no", "yes"]),
    "bool": np.array([False, True]),
    "float": np.array([0.5, 1.5, -2.5]),
}


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("loss", ["square", "hinge", "logistic", "cross_entropy"])
def test_labels_come_back(name, loss, tmp_path):
    y = np.tile(LABELS[name], 15)[:30]
    preparation = Preparation.of(X, y, "classification", ONES, loss=loss)
    T = preparation.targets(y)
    assert T.shape == (
        (30,) if len(LABELS[name]) == 2 and loss != "cross_entropy" else (30, len(LABELS[name]))
    )
    assert set(T.unique().tolist()) == {preparation.low, preparation.high}
    outputs = T if loss != "logistic" else T - 0.5  # the logits of such probabilities have its sign
    assert np.array_equal(preparation.answers(outputs), y)
    P = preparation.probabilities(outputs)
    assert P.shape == (30, len(LABELS[name]))
    assert np.allclose(P.sum(axis=1), 1)
    assert np.array_equal(preparation.classes[P.argmax(axis=1)], y)
    preparation.save(tmp_path / "p.safetensors")
    again = Preparation.load(tmp_path / "p.safetensors")
    assert np.array_equal(again.answers(outputs), y)
    assert again.answers(outputs).dtype.kind == y.dtype.kind


def test_targets_of_classes_sum_to_zero():
    y = np.tile(["a", "b", "c"], 10)
    assert torch.allclose(
        Preparation.of(X, y, "classification", ONES).targets(y).sum(dim=1), torch.zeros(30).double()
    )
    two = Preparation.of(X, y == "a", "classification", ONES).targets(y == "a")
    assert two.unique().tolist() == [-1, 1]


@pytest.mark.parametrize("shape", [(30,), (30, 1), (30, 3)])
def test_numbers_come_back(shape, tmp_path):
    y = RNG.normal(100, 7, size=shape)
    preparation = Preparation.of(X, y, "regression", ONES)
    T = preparation.targets(y)
    assert T.shape == ((30,) if T.numel() == 30 else shape)
    assert abs(float(T.mean())) < 1e-12
    answers = preparation.answers(T)
    assert answers.shape == shape
    assert np.allclose(answers, y)
    preparation.save(tmp_path / "p.safetensors")
    assert np.array_equal(Preparation.load(tmp_path / "p.safetensors").answers(T), answers)


def test_a_constant_target_is_its_own_answer():
    preparation = Preparation.of(X, np.full(30, 0.1), "regression", ONES)
    assert (preparation.targets(np.full(30, 0.1)) == 0).all()
    assert (preparation.answers(torch.zeros(30)) == 0.1).all()


def test_numbers_have_no_probabilities():
    with pytest.raises(DataError, match="probabilities are those of classes"):
        Preparation.of(X, Y, "regression", ONES).probabilities(torch.zeros(2))


def test_the_dtype_and_the_sharpness_survive_a_file(tmp_path):
    y = np.tile([0, 1, 2], 10)
    made = Preparation.of(X, y, "classification", ONES, torch.float32)
    object.__setattr__(made, "sharpness", 0.1 + 0.2)
    made.save(tmp_path / "p.safetensors")
    again = Preparation.load(tmp_path / "p.safetensors")
    assert again.sharpness == 0.1 + 0.2
    assert again.apply(X).dtype == again.targets(y).dtype == torch.float32


# -- what is refused -----------------------------------------------------------------------------------------


def test_bad_entries_are_named_by_row_and_column():
    bad = X.copy()
    bad[17, 2] = np.nan
    with pytest.raises(DataError, match="row 17, column 2: nan is NaN or infinite"):
        as_rows(bad)
    with pytest.raises(DataError, match="row 4, target 0: inf"):
        as_numbers(np.where(np.arange(9) == 4, np.inf, 0.0))
    with pytest.raises(DataError, match=r"must be numbers.*'x'"):
        as_rows([["x", 1]])
    with pytest.raises(DataError, match=r"targets must be numbers"):
        as_numbers(["low", "high"])
    with pytest.raises(DataError, match=r"\(N, d\).*shape \(3,\)"):
        as_rows([1, 2, 3])
    with pytest.raises(DataError, match=r"labels must be.*shape \(2, 1\)"):
        as_labels([[1], [2]])
    with pytest.raises(DataError, match=r"row 1, column 0: nan .* no label"):
        as_labels([1.0, np.nan])
    with pytest.raises(DataError, match="column 1: its numbers are too large"):
        Preparation.of(
            np.column_stack([ONES, np.where(ONES == 1, 1e200 * X[:, 0], 0)]), Y, "regression", ONES
        )


def test_rows_unlike_the_trained_ones_are_refused():
    preparation = Preparation.of(X, Y, "regression", ONES)
    with pytest.raises(DataError, match=r"4 columns, as in training. Got 3"):
        preparation.apply(X[:, :3])
    far = X.copy()
    far[5, 1] = 1e308
    with pytest.raises(DataError, match=r"row 5, column 1: .* too far from the training data"):
        Preparation.of(1e-3 * X, Y, "regression", ONES).apply(far)
    labels = np.tile(["a", "b", "c"], 10)
    with pytest.raises(DataError, match=r"among those trained on \(a, b, c\). Got .*'z'.* in row 2"):
        Preparation.of(X, labels, "classification", ONES).targets(["a", "b", "z"])
    with pytest.raises(DataError, match=r"at least two classes.*one class"):
        Preparation.of(X, np.full(30, "a"), "classification", ONES)


def test_images_are_rows_of_pixels():
    assert as_rows(np.zeros((3, 4, 5), dtype=np.uint8)).shape == (3, 20)


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "p.safetensors"
    path.write_bytes(b"no such thing")
    with pytest.raises(ValueError, match="not a safetensors file"):
        Preparation.load(path)
    Recipe(width=5).resolved(9).build(3, 1).save(path)
    with pytest.raises(ValueError, match=r"must be of format 'equipoise.preparation.1'"):
        Preparation.load(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"classes": None},
        {"classes": "{"},
        {"classes": "[" * 100_000},
        {"classes": '{"labels": ["a", "b", "c"], "kind": "U"}'},
        {"outputs": "-1"},
        {"outputs": "9"},
        {"dtype": "save"},
        {"flat": "7"},
    ],
    ids=lambda changes: next(f"{k}={str(v)[:20]}" for k, v in changes.items()),
)
def test_damaged_metadata_are_said_to_be_damaged(tmp_path, changes):
    path = tmp_path / "p.safetensors"
    Preparation.of(X, np.arange(30) % 2, "classification", ONES).save(path)
    with safetensors.safe_open(path, "numpy") as file:
        about = {k: v for k, v in (file.metadata() | changes).items() if v is not None}
        arrays = {name: file.get_tensor(name) for name in list(file.keys())}
    safetensors.numpy.save_file(arrays, path, about)
    with pytest.raises(Damaged, match=r"p\.safetensors is damaged"):
        Preparation.load(path)
    arrays["mean"] = arrays["mean"][:-1]
    safetensors.numpy.save_file(arrays, path, about)
    with pytest.raises(Damaged, match=r"p\.safetensors is damaged"):
        Preparation.load(path)


# -- tables that are not all numbers -------------------------------------------------------------------------


def mixed() -> tuple[pd.DataFrame, Encoding]:
    frame = pd.DataFrame(
        {
            "size": [1.5, None, 2.5, 4.0, 3.0],
            "city": ["a", "b", None, "a", "b"],
            "sold": pd.to_datetime(["2020-02-29", "1969-12-31", "2000-01-01", "2021-07-01", "2022-01-01"]),
        }
    )
    return frame, Encoding.of(*read_frame(frame))


def test_an_encoding_is_part_of_the_preparation_and_of_its_file(tmp_path):
    frame, encoding = mixed()
    X, y, w = read_frame(frame)[0], np.arange(5.0), np.ones(5)
    made = Preparation.of(X, y, "regression", w, encoding=encoding)
    inputs = made.apply(X)
    assert inputs.shape == (5, len(encoding.names) + 1)
    assert torch.isfinite(inputs).all()
    assert torch.allclose(inputs[:, :-1].mean(dim=0), torch.zeros(len(encoding.names), dtype=torch.float64))
    made.save(tmp_path / "p.safetensors")
    again = Preparation.load(tmp_path / "p.safetensors")
    assert again.encoding == encoding
    assert torch.equal(again.apply(X), inputs)
    assert torch.equal(again.apply(frame[["sold", "city", "size"]]), inputs)  # a frame is read by name
    again.save(tmp_path / "q.safetensors")
    assert (tmp_path / "q.safetensors").read_bytes() == (tmp_path / "p.safetensors").read_bytes()
    damaged = replace(made, mean=made.mean[:-1], scale=made.scale[:-1])
    damaged.save(tmp_path / "d.safetensors")
    with pytest.raises(Damaged, match="encoded columns have means of shape"):
        Preparation.load(tmp_path / "d.safetensors")


def test_an_infinite_value_and_one_too_large_are_named_by_their_column():
    frame, encoding = mixed()
    X = read_frame(frame)[0]
    made = Preparation.of(X, np.arange(5.0), "regression", np.ones(5), encoding=encoding)
    with pytest.raises(DataError, match="row 0, column 0: inf is NaN or infinite"):
        made.apply(np.where(X == 1.5, np.inf, X))
    huge = pd.DataFrame({"a": [1e200, -1e200]})
    rows, columns = read_frame(huge)
    with pytest.raises(DataError, match="column 'a': its numbers are too large to be squared"):
        Preparation.of(rows, np.arange(2.0), "regression", np.ones(2), encoding=Encoding.of(rows, columns))


def test_rows_on_the_disk_are_prepared_piece_by_piece_as_in_memory(monkeypatch, tmp_path):
    """A table of any size needs the memory of a piece; what comes out is the same bit for bit."""
    lines = [f"{i * i}.25,{'ab'[i % 2]},{'' if i % 3 else i},7,{i % 7}.5" for i in range(50)]
    (tmp_path / "t.csv").write_text("\n".join(["n,c,m,same,y", *lines]))

    def prepared():
        table = read_table(tmp_path / "t.csv")
        (rows, y), _ = Split(None, 50, 0).divide(table.X, table.y)
        encoding = Encoding.of(rows, table.columns)
        made = Preparation.of(rows, y, "regression", np.ones(50), encoding=encoding)
        return made.apply(rows)

    whole = prepared()
    monkeypatch.setattr("equipoise.memory.HELD", 0)
    mapped = prepared()
    assert torch.equal(mapped, whole)
    monkeypatch.setattr("equipoise.memory.PIECE", 12)
    assert torch.allclose(prepared(), whole, rtol=0, atol=1e-12)  # the means are sums of other pieces
    monkeypatch.setattr("equipoise.memory.disk", lambda: 10.0)
    assert isinstance(room((4, 4), np.float64), np.ndarray)  # where the disk is full, in memory
    monkeypatch.setattr("equipoise.memory.available", lambda: 10.0)
    with pytest.raises(MemoryError, match="128 bytes are needed in memory or on the disk"):
        room((4, 4), np.float64)
