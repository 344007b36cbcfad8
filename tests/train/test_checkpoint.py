"""Checkpoints are whole or not there: kills, full disks and flipped bits lose one at most, and are named."""

from __future__ import annotations

import json
import math
import pickle
import random
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.files import OtherFormat, remove_leftovers, write_atomically
from equipoise.train import checkpoint
from equipoise.train.checkpoint import Checkpoints, CheckpointWarning
from processes import small_files


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "W": torch.randn(3, 4, generator=g, dtype=torch.float64),
        "half": torch.randn(2, generator=g).half(),
        "scalar": torch.tensor(math.pi, dtype=torch.float32),
        "none": torch.zeros(0, 5),
        "rng": g.get_state(),
        "order": torch.randperm(7, generator=g),
        "mask": torch.tensor([True, False]),
    }


def saved(directory, *steps: int, keep: int = 2) -> Checkpoints:
    checkpoints = Checkpoints(directory, keep)
    for step in steps:
        checkpoints.save(step, tensors(step), {"loss": 1.0 / (step + 3), "step": step})
    return checkpoints


def assert_is(found, step: int) -> None:
    assert found is not None
    assert found.step == step
    assert found.facts == {"loss": 1.0 / (step + 3), "step": step}
    assert found.tensors.keys() == tensors(step).keys()
    for name, t in tensors(step).items():
        assert found.tensors[name].dtype == t.dtype, name
        assert torch.equal(found.tensors[name], t), name


def test_what_is_saved_comes_back_and_the_last_two_are_kept(tmp_path):
    checkpoints = saved(tmp_path / "new" / "checkpoints", 0, 10, 20, 30)
    assert checkpoints.steps() == [20, 30]
    assert_is(checkpoints.latest(), 30)
    names = sorted(p.name for p in checkpoints.directory.iterdir())
    assert names == [f"step-000000{k}.{end}" for k in (20, 30) for end in ("json", "safetensors")]


def test_more_can_be_kept_and_steps_are_ordered_as_numbers(tmp_path):
    checkpoints = saved(tmp_path, 9, 10, 99_999_999, 200_000_000, keep=3)
    assert checkpoints.steps() == [10, 99_999_999, 200_000_000]
    assert_is(checkpoints.latest(), 200_000_000)


def test_none_where_nothing_was_saved(tmp_path):
    assert Checkpoints(tmp_path / "absent").latest() is None
    (tmp_path / "step-1.json").write_text("not one of ours")
    (tmp_path / "notes.txt").write_text("nor this")
    assert Checkpoints(tmp_path).latest() is None


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
def test_a_flipped_bit_anywhere_is_noticed_and_named(tmp_path, suffix):
    checkpoints = saved(tmp_path, 10, 20)
    path = tmp_path / f"step-00000020.{suffix}"
    whole = path.read_bytes()
    draw = random.Random(0)
    for position in {0, 7, len(whole) - 1, *draw.sample(range(len(whole)), 60)}:
        spoilt = bytearray(whole)
        spoilt[position] ^= 1 << draw.randrange(8)
        path.write_bytes(spoilt)
        with pytest.warns(CheckpointWarning, match=f"step-00000020.{suffix}.*the checkpoint before it"):
            assert_is(checkpoints.latest(), 10)
    path.write_bytes(whole)
    assert_is(checkpoints.latest(), 20)


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
@pytest.mark.parametrize("left", [0, 1, 50, -1])
def test_a_truncated_file_is_noticed_and_named(tmp_path, suffix, left):
    checkpoints = saved(tmp_path, 10, 20)
    path = tmp_path / f"step-00000020.{suffix}"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.warns(CheckpointWarning, match=f"step-00000020.{suffix}"):
        assert_is(checkpoints.latest(), 10)


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
def test_half_a_pair_is_noticed_and_named(tmp_path, suffix):
    checkpoints = saved(tmp_path, 10, 20)
    (tmp_path / f"step-00000020.{suffix}").unlink()
    with pytest.warns(CheckpointWarning, match="step-00000020.*stands alone"):
        assert_is(checkpoints.latest(), 10)
    checkpoints.save(20, tensors(20), {"loss": 1 / 23, "step": 20})  # and the next save puts it right
    assert_is(checkpoints.latest(), 20)


def test_where_all_are_damaged_each_is_named(tmp_path):
    checkpoints = saved(tmp_path, 10, 20)
    for path in tmp_path.iterdir():
        path.write_bytes(b"{}")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert checkpoints.latest() is None
    assert ["10.json" in str(w.message) for w in seen] == [False, True]


def test_a_file_put_in_another_s_place_is_noticed(tmp_path):
    checkpoints = saved(tmp_path, 10, 20)
    for suffix in ("json", "safetensors"):
        content = (tmp_path / f"step-00000010.{suffix}").read_bytes()
        (tmp_path / f"step-00000030.{suffix}").write_bytes(content)
    with pytest.warns(CheckpointWarning, match="holds step 10 instead of 30"):
        assert_is(checkpoints.latest(), 20)


def test_nothing_is_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a checkpoint was unpickled",))

    checkpoints = saved(tmp_path, 10, 20)
    (tmp_path / "step-00000020.safetensors").write_bytes(pickle.dumps(Trap()))
    torch.save({"W": Trap()}, tmp_path / "step-00000030.safetensors")
    (tmp_path / "step-00000030.json").write_bytes(pickle.dumps(Trap()))
    with pytest.warns(CheckpointWarning):
        assert_is(checkpoints.latest(), 10)


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3),
            max_leaves=6,
        ),
        max_size=4,
    )
)
@settings(max_examples=60)
def test_facts_come_back_exactly(tmp_path_factory, facts):
    checkpoints = Checkpoints(tmp_path_factory.mktemp("facts"))
    checkpoints.save(1, {}, facts)
    found = checkpoints.latest()
    assert found is not None
    assert found.facts == facts
    assert repr(found.facts) == repr(facts)  # −0.0 and the types too


def test_not_a_number_comes_back(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {}, {"loss": [math.nan, math.inf, -math.inf]})
    found = checkpoints.latest()
    assert found is not None
    assert repr(found.facts["loss"]) == "[nan, inf, -inf]"


def test_tensors_that_share_memory_or_have_gradients_are_saved(tmp_path):
    W = torch.randn(4, 4, requires_grad=True)
    checkpoints = Checkpoints(tmp_path)
    cube = torch.randn(2, 3, 4).permute(2, 0, 1)
    checkpoints.save(1, {"W": W, "transposed": W.T, "row": W[1], "cube": cube, "part": W[:, ::2]}, {})
    found = checkpoints.latest()
    assert found is not None
    assert torch.equal(found.tensors["transposed"], W.T)
    assert found.tensors["transposed"].stride() == W.T.stride()
    assert torch.equal(found.tensors["cube"], cube)
    assert found.tensors["cube"].stride() == cube.stride()
    assert torch.equal(found.tensors["part"], W[:, ::2])
    found.tensors["row"].add_(1)  # writable, and apart
    assert torch.equal(found.tensors["W"], W)


def test_what_json_cannot_hold_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(TypeError):
        Checkpoints(tmp_path / "c").save(1, {}, {"x": object()})
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("step", [-1, 1.0, True, "1"])
def test_a_step_is_a_count(tmp_path, step):
    with pytest.raises(ValueError, match="step must be an integer ≥ 0"):
        Checkpoints(tmp_path).save(step, {}, {})


@pytest.mark.parametrize("keep", [0, -1, 1.5, True])
def test_at_least_one_is_kept(tmp_path, keep):
    with pytest.raises(ValueError, match="keep must be"):
        Checkpoints(tmp_path, keep)


@pytest.mark.parametrize("what", ["tensors", "facts"])
def test_a_full_disk_loses_nothing(tmp_path, what):
    Checkpoints(tmp_path).save(1, {"W": torch.ones(10)}, {"at": 1})
    large = {"W": torch.ones(100_000)}, {"at": 2}
    if what == "facts":
        large = {"W": torch.ones(10)}, {"at": list(range(10_000))}
    with (
        small_files(20_000),
        pytest.raises(OSError, match=r"could not be written \(File too large\)") as full,
    ):
        Checkpoints(tmp_path).save(2, *large)
    assert "step-00000002" in str(full.value)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
    checkpoints = Checkpoints(tmp_path)
    if what == "facts":  # the first file of the pair was written: it does not count without the second
        with pytest.warns(CheckpointWarning, match="interrupted"):
            found = checkpoints.latest()
    else:
        found = checkpoints.latest()
    assert found is not None
    assert (found.step, found.facts) == (1, {"at": 1})
    assert torch.equal(found.tensors["W"], torch.ones(10))


def test_leftovers_of_a_killed_writer_are_removed_by_the_next(tmp_path):
    (tmp_path / ".step-00000020.json.123.part").write_text("half")
    checkpoints = saved(tmp_path, 10)
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".json", ".safetensors"]
    assert_is(checkpoints.latest(), 10)


def test_write_atomically_leaves_the_old_file_where_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    write_atomically(path, b"old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_atomically(path, b"new")
    assert caught.value.errno == 28
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]
    monkeypatch.undo()
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_remove_leftovers_touches_nothing_else(tmp_path):
    for name in (".a.1.part", "a.part", ".hidden", "b.json"):
        (tmp_path / name).write_text(json.dumps(name))
    remove_leftovers(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".hidden", "a.part", "b.json"]


@pytest.mark.parametrize("keep", [1, 2])
def test_a_save_is_the_newest_whatever_was_left_by_a_run_that_came_to_nothing(tmp_path, keep):
    checkpoints = saved(tmp_path, 100, 120, keep=keep)
    for path in tmp_path.glob("*.safetensors"):
        path.write_bytes(b"spoilt")
    saved(tmp_path, 5, keep=keep)
    assert checkpoints.steps() == [5]
    assert_is(checkpoints.latest(), 5)


def test_another_format_is_not_called_damage(tmp_path):
    checkpoints = saved(tmp_path, 10)
    path = tmp_path / "step-00000010.json"
    known = checkpoint._unseal(path) | {"format": "equipoise.checkpoint.1"}
    path.write_text(checkpoint._seal(json.dumps(known)))
    with pytest.raises(OtherFormat, match=r"checkpoint\.1.*the version that wrote it"):
        checkpoints.latest()


@pytest.mark.parametrize("name", ["threads", "processor", "torch"])
def test_what_was_computed_otherwise_is_said(tmp_path, monkeypatch, name):
    """Bit for bit holds for one number of threads, one processor and one set of versions."""
    then = checkpoint.environment()
    monkeypatch.setattr(checkpoint, "environment", lambda: then | {name: "another"})
    checkpoints = saved(tmp_path, 10)
    with pytest.warns(CheckpointWarning, match=f"{name}: another, now .*its last bits may differ"):
        assert_is(checkpoints.latest(), 10)
    monkeypatch.setattr(checkpoint, "environment", lambda: then | {"platform": "a newer kernel"})
    assert_is(saved(tmp_path, 20).latest(), 20)
