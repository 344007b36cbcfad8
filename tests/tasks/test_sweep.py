"""Sweeps: which configurations there are, which rows decide, and which one is chosen."""

from __future__ import annotations

import math

import numpy as np
import pytest

from equipoise.tasks import Asked, read
from equipoise.tasks.sources import WrongOption
from equipoise.tasks.sweep import Range, Sweep, parse, ranked


def sweep(tmp_path, given, **more):
    data = Asked.of("digits", rows=100, validation=0.2).to_dict()
    return Sweep(tmp_path / "sweep", data, given, **more)


def test_values_lists_and_ranges_are_told_apart():
    assert parse("width", "256,512") == [256, 512]
    assert parse("rate", "0.1") == [0.1]
    assert parse("model", "monotone, gaussian-relu") == ["monotone", "gaussian-relu"]
    assert parse("augment", "shifts,flips") == ["shifts,flips"]
    assert parse("rate", "log:1e-4,1e-2") == Range(1e-4, 1e-2, log=True, integers=False)
    assert parse("width", "lin:8,64") == Range(8, 64, log=False, integers=True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("width", text) for text in ("a", "1.5", "64,64")),
        *(("rate", text) for text in ("log:0,1", "lin:2,1", "log:1", "lin:0,inf")),
    ],
)
def test_what_is_no_value_is_refused(name, text):
    with pytest.raises(WrongOption, match=f"--{name} must .* Got {text}"):
        parse(name, text)


def test_draws_lie_in_their_range_and_every_magnitude_is_as_likely():
    chance = np.random.default_rng(0)
    found = [Range(1e-4, 1.0, log=True, integers=False).draw(chance) for _ in range(2000)]
    assert 1e-4 <= min(found) < 2e-4
    assert 0.5 < max(found) <= 1.0
    assert abs(np.mean(np.log10(found)) + 2) < 0.1
    assert {Range(3, 5, log=False, integers=True).draw(chance) for _ in range(100)} == {3, 4, 5}


def test_configurations_are_all_combinations_with_draws_and_seeds(tmp_path):
    given = {"width": "16,32", "model": "monotone,gaussian-relu", "rate": "log:1e-3,1e-1", "seed": 4}
    asked = sweep(tmp_path, given, seeds=3, draws=5)
    assert len(asked.configurations) == 20
    assert len(asked.trials) == 60
    assert {t.recipe.seed for t in asked.trials} == {4, 5, 6}
    assert len({t.name for t in asked.trials}) == 60
    assert asked.open == ["model", "width", "rate"]
    assert sweep(tmp_path, given, seeds=3, draws=5).configurations == asked.configurations  # the same again
    assert len(sweep(tmp_path, {"width": "16,32"}).configurations) == 2


def test_what_does_not_fit_is_said_before_anything_runs(tmp_path):
    with pytest.raises(ValueError, match="gamma"):
        sweep(tmp_path, {"model": "monotone,linear", "gamma": "0.5"})
    with pytest.raises(ValueError, match="seeds must be an integer ≥ 1"):
        sweep(tmp_path, {}, seeds=0)
    assert not (tmp_path / "sweep").exists()


def test_a_stored_sweep_is_the_same_and_a_taken_directory_is_refused(tmp_path):
    asked = sweep(tmp_path, {"rate": "log:1e-3,1e-1", "certified": False})
    asked.save()
    assert Sweep.load(asked.path) == asked
    with pytest.raises(FileExistsError, match="go on with equipoise sweep --resume"):
        asked.save()
    with pytest.raises(WrongOption, match=r"it holds no sweep\.json"):
        Sweep.load(tmp_path)


def rows_of(sample):
    X = [sample.train[0], *([sample.test[0]] if sample.test else [])]
    return [{row.tobytes() for row in part} for part in X]


def test_no_trial_sees_a_test_row(tmp_path):
    asked = sweep(tmp_path, {})
    train, held = rows_of(read(asked.asked))
    whole, test = rows_of(read(asked.whole))
    assert not train & held
    assert train | held == whole
    assert len(held) == pytest.approx(0.2 * len(whole), abs=10)
    assert not (train | held) & test


def test_of_a_table_the_test_rows_stay_out_too(tmp_path):
    path, chance = tmp_path / "t.csv", np.random.default_rng(0)
    lines = [f"{a},{b},{a + b}" for a, b in chance.normal(size=(50, 2))]
    path.write_text("a,b,y\n" + "\n".join(lines))
    asked = Asked.of(str(path), target="y")
    train, test = rows_of(read(asked))
    some, held = rows_of(read(Asked.of(str(path), target="y", validation=0.25)))
    assert some | held == train
    assert len(held) == 10
    assert not (some | held) & test


def outcome(configuration, score, state="finished"):
    return {"configuration": configuration, "options": {}, "score": score, "state": state}


def test_the_best_mean_is_chosen_among_those_that_are_complete():
    table = ranked(
        [
            *(outcome(0, 0.9), outcome(0, 0.7), outcome(1, 0.85), outcome(1, 0.83, "early")),
            *(outcome(2, 0.99), outcome(2, None, "failed")),
            *(outcome(3, 0.95, "early"), outcome(3, 0.95, "early"), outcome(4, None, "waiting")),
        ]
    )
    assert [one["configuration"] for one in table[:2]] == [1, 0]
    assert [one["eligible"] for one in table] == [True, True, False, False, False]
    assert table[0]["early"] == 1
    assert table[1]["spread"] == pytest.approx(math.sqrt(0.02))
