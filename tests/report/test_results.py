"""What the page says of the answers and of the promise, which must be true of the run."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from equipoise import report
from equipoise.report import guarantee, opening, results
from equipoise.report.reading import RunRecord, read
from equipoise.report.training import LOWEST, ends, loss, scores
from equipoise.tasks.calibration import calibration
from equipoise.theory import THEOREMS


@pytest.fixture(scope="module")
def records(runs) -> dict[str, RunRecord]:
    return {name: read(path) for name, path in runs.items()}


def scored(value: float, **baselines: float) -> RunRecord:
    """A run of 400 test rows with this accuracy."""
    found = {"scores": {"test": {"rows": 400, "accuracy": value}}, "baselines": baselines}
    return RunRecord("a", findings={"kind": "classification", **found}, status={"state": "finished"})


# -- scores beside simpler models ----------------------------------------------------------------------------


def test_results_come_before_proofs_and_details_are_folded(runs):
    text = (runs["anchored"] / "report.html").read_text(encoding="utf-8")
    order = [text.index(f'<section id="{name}"') for name in ("results", "guarantee", "training", "setup")]
    assert order == sorted(order)
    unfolded = re.sub(r"<details>.*?</details>", "", text, flags=re.S)
    for hidden in ("3b" * 32, "torch", "SHA-256", "fig-kernel", "How it was bounded"):
        assert hidden in text
        assert hidden not in unfolded
    for seen in ("fig-promise", "fig-reliability", "fig-importance", "What is not promised"):
        assert seen in unfolded


def test_every_model_has_its_row(records):
    table = results.scores(records["anchored"])
    known = records["anchored"].findings
    assert [row["Model"] for row in table] == [
        "This network",
        "Linear model",
        "One answer for all rows",
        "Hidden layer untrained",
        "This network",
    ]
    assert [row["Rows"] for row in table] == ["100 test"] * 4 + ["200 training"]
    rivals = (known["baselines"][name] for name in ("linear", "constant", "frozen"))
    expected = [known["scores"]["test"]["accuracy"], *rivals]
    shown = [float(re.sub(r"[^\d.]", "", row["Accuracy"])) for row in table[:4]]
    assert shown == pytest.approx([100 * v for v in expected], abs=0.05)


def test_frozen_features_are_shown_where_they_are_recorded():
    known = scored(0.9, linear=0.8, constant=0.5, frozen=0.85)
    assert [row["Model"] for row in results.scores(known)][-1] == "Hidden layer untrained"
    assert "The same network reaches 85.0" in opening.lead(known)


@pytest.mark.parametrize(
    ("value", "rival"),
    [(0.9, ""), (0.8, "a linear model"), (0.4, "a linear model"), (0.81, "")],
)
def test_a_network_that_is_no_better_is_told_so_at_the_top(value, rival):
    told = [n["title"] for n in opening.notices(scored(value, linear=0.8, constant=0.5))]
    assert told == ([f"No better than {rival}"] if rival else [])


def test_one_answer_for_all_rows_may_be_the_best():
    (told,) = opening.notices(scored(0.33, linear=0.3, constant=0.34))
    assert told["title"] == "No better than one answer for all rows"
    assert "33.0" in told["reason"]
    assert "34.0" in told["reason"]


@pytest.mark.parametrize(("linear", "doubtful"), [(0.9, True), (0.88, True), (0.8, False), (0.95, False)])
def test_a_difference_within_two_standard_errors_may_be_chance(linear, doubtful):
    error = np.sqrt((0.9 * 0.1 + linear * (1 - linear)) / 400)
    assert doubtful == (abs(0.9 - linear) < 2 * error)
    assert bool(results.doubt(scored(0.9, linear=linear, constant=0.1))) == doubtful


# -- calibration ---------------------------------------------------------------------------------------------


def test_calibration_is_the_mean_distance_of_probability_and_truth():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 500)
    own = rng.integers(0, 3, 500)
    found = calibration(p, own)
    said, right = p.max(axis=1), p.argmax(axis=1) == own
    assert sum(b["count"] for b in found["bins"]) == 500
    total = 0.0
    for b in found["bins"]:
        within = (said > b["low"]) & (said <= b["high"])
        assert b["count"] == within.sum()
        assert b["right"] == pytest.approx(right[within].mean())
        total += within.sum() / 500 * abs(said[within].mean() - right[within].mean())
    assert found["ece"] == pytest.approx(total)


def test_perfect_probabilities_have_no_error_and_certain_errors_have_all():
    sure = np.eye(4)[np.arange(40) % 4]
    assert calibration(sure, np.arange(40) % 4)["ece"] == 0
    assert calibration(sure, (np.arange(40) + 1) % 4)["ece"] == 1


def test_the_caption_says_which_way_the_probabilities_lean(records):
    def caption(said: float, right: float) -> str:
        bins = [{"low": 0.8, "high": 0.9, "count": 10, "said": said, "right": right}]
        found = {"calibration": {"part": "test", "bins": bins, "ece": abs(said - right)}}
        return results.reliability(replace(records["anchored"], findings=found)).caption

    assert "too sure of itself" in caption(0.85, 0.5)
    assert "less sure than it could be" in caption(0.85, 1.0)


# -- inputs that matter --------------------------------------------------------------------------------------


def test_the_column_that_decides_stands_first(records):
    """y of the yields depends on a, b and c, and on neither d nor e."""
    drops = dict(zip("abcde", records["regression"].findings["importance"]["drops"], strict=True))
    assert min(drops[name] for name in "abc") > 3 * max(abs(drops[name]) for name in "de")
    caption = results.important(records["regression"]).caption
    assert f"The answers depend most on {max(drops, key=drops.get)}." in caption


def test_of_images_a_picture_is_made(records):
    found = records["anchored"].findings["importance"]
    assert found["grid"] == [8, 8]
    rises = np.array(found["rises"]).reshape(8, 8)
    assert np.abs(rises[:, 0]).max() < 0.1 * rises.max()  # where digits have no ink
    assert "Where the network looks" in results.important(records["anchored"]).title


# -- the promise ---------------------------------------------------------------------------------------------


def test_the_tile_shows_the_loss_of_the_predictions_and_what_is_promised_of_it(records):
    told = records["anchored"].history["anchored"]
    figure, note = opening.predictions(records["anchored"])
    assert float(figure) == pytest.approx(told["data_end"][1] / 200, rel=0.01)
    promised = float(re.search(r"at most ([\d.]+)", note)[1])
    assert promised == pytest.approx(told["F_start"] / 200, rel=0.01)
    assert told["data_end"][1] <= told["F_start"]
    without = replace(records["anchored"], history={"anchored": {**told, "total": None}})
    assert "of all rows" in opening.predictions(without)[1]  # of a run that did not record it


def test_of_a_run_with_slack_nothing_is_promised_of_the_predictions(records):
    plain = records["classification"].history["plain_loss"]
    figure, note = opening.predictions(records["classification"])
    assert float(figure) == pytest.approx(plain[-1] / plain[0], rel=0.01)
    assert note.endswith("the promise is about the loss with slack")


def test_the_picture_of_an_anchored_run_only_falls(records):
    drawn = guarantee.promise(records["anchored"])
    told = records["anchored"].history["anchored"]
    (bound,) = [line for line in drawn.figure.axes[0].get_lines() if "proved" in str(line.get_label())]
    y = bound.get_ydata()
    assert y[0] == told["F_start"]
    assert y[-1] == told["F_end"][1]
    assert (np.diff(y) <= 0).all()
    kept = [c["F"][1] for c in told["checkpoints"] if c["accepted"]]
    assert set(kept) <= set(y.tolist())
    assert f"{len(kept)} of {len(told['checkpoints'])} checkpoints were kept" in drawn.caption


def test_a_refused_checkpoint_is_seen_and_lowers_nothing(records):
    told = json.loads(json.dumps(records["anchored"].history["anchored"]))
    last = told["checkpoints"][-1]
    told["checkpoints"].append({"epoch": last["epoch"] + 1, "accepted": False, "reason": "F rose"})
    drawn = guarantee.promise(replace(records["anchored"], history={"anchored": told}))
    names = [str(line.get_label()) for line in drawn.figure.axes[0].get_lines()]
    assert "checkpoints refused and undone" in names
    (bound,) = [line for line in drawn.figure.axes[0].get_lines() if "proved" in str(line.get_label())]
    assert (np.diff(bound.get_ydata()) <= 0).all()


def test_every_theorem_says_what_it_leaves_open(records):
    for theorem in THEOREMS:
        certificate = replace(records["anchored"].certificate, theorem=theorem)
        words = dict(guarantee.in_words(replace(records["anchored"], certificate=certificate)))
        assert list(words) == ["What is promised", "What it means for you", "What is not promised"]
        assert all(s.endswith(".") for some in words.values() for s in some)


def test_what_is_not_proved_promises_nothing(records):
    failed = replace(records["anchored"].certificate, claims=())
    record = replace(records["anchored"], certificate=failed, wellposed=None)
    assert guarantee.in_words(record) == []
    assert guarantee.promise(record) is None
    assert ("Guarantee", "Not decided", "of the training") in opening.headlines(record)


def test_the_loss_of_an_anchored_run_starts_where_training_did(records):
    drawn = loss(records["anchored"])
    training = drawn.figure.axes[0].get_lines()[0]
    assert training.get_xdata()[0] == 1
    assert training.get_ydata().tolist() == records["anchored"].history["loss"][1:]


def test_what_was_measured_twice_is_told_and_not_drawn(records):
    told = dict(ends(records["anchored"]))
    q = records["anchored"].history["contraction"]
    (words,) = [v for k, v in told.items() if "Contraction" in k]
    assert [float(v) for v in words.split(" → ")] == pytest.approx(list(q.values()), rel=0.01)


# -- runs of before ------------------------------------------------------------------------------------------


def test_findings_of_before_are_shown_without_what_they_lack(runs, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(runs["anchored"], path)
    found = json.loads((path / "findings.json").read_text())
    for name in ("calibration", "importance", "baselines"):
        del found[name]
    (path / "findings.json").write_text(json.dumps(found))
    from equipoise.tasks import Run

    Run(path).finish("finished")
    text = report.write(path).read_text(encoding="utf-8")
    assert "fig-confusion" in text
    assert "fig-reliability" not in text
    assert "Linear model" not in text


@pytest.mark.parametrize(("most", "named"), [(1, False), (2, True)])
def test_a_mistake_is_called_the_most_frequent_only_if_it_was_made_twice(most, named):
    counts = [[5, 0, most], [1, 4, 0], [0, 0, 6]]
    found = {"confusion": {"counts": counts, "names": ["a", "b", "c"], "part": "test"}}
    caption = results.confusion(RunRecord("a", findings=found)).caption
    assert f"{1 + most} answers are wrong." in caption
    assert ("The most frequent mistake is to answer c where a is true (2 times)." in caption) == named


def test_a_start_far_below_all_other_scores_does_not_flatten_them():
    values = {0: -2.67, 1: 0.3, 2: 0.45, 3: 0.5}
    drawn = scores(RunRecord("a", history={"test_r2": values}))
    shown = drawn.figure.axes[0].get_lines()[0].get_ydata()
    assert np.isnan(shown[0])
    assert shown[1:].tolist() == [0.3, 0.45, 0.5]
    assert "Values below −0.5 are not drawn; the lowest is −2.67." in drawn.caption
    low = scores(RunRecord("a", history={"test_r2": {0: -3.0, 1: -2.0, 2: LOWEST - 1.0}}))
    assert np.isfinite(low.figure.axes[0].get_lines()[0].get_ydata()).all()  # then they are all there is
    assert "not drawn" not in low.caption
