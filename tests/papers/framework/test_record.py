"""What of the data an experiment used goes on record, and the hash of its units does not depend on it."""

from __future__ import annotations

import pytest

from equipoise.papers import catalogue
from equipoise.papers.framework.experiments import Context, Settings
from equipoise.papers.framework.gallery import write_page
from equipoise.papers.framework.images import images_in_words, room, two_classes, two_classes_in_words
from equipoise.papers.framework.runner import run_one

TINY = Settings("tiny", ("digits",))


def test_parts_are_put_on_record_once_and_leave_the_source_as_it_is(tmp_path):
    context = Context(TINY, tmp_path)
    bare = context.source("digits")
    assert context.provenance["digits"]["subset"] is None
    for part in ("classes 0 and 1", "100 rows", "classes 0 and 1", "00 rows"):
        assert context.source("digits", part) == bare
    said = "classes 0 and 1; 100 rows; 00 rows"  # a part of a part is another one
    assert context.provenance["digits"]["subset"] == said
    context.load("digits")  # which forgets nothing
    assert context.provenance["digits"]["subset"] == said
    context.drawn("synthetic-sphere", "5 samples")
    assert context.provenance["synthetic-sphere"]["subset"] == "5 samples"


def test_words_say_what_is_taken(tmp_path):
    dataset = Context(TINY, tmp_path).load("digits")
    words, split = two_classes_in_words(dataset, 60), two_classes(dataset, 60, 0)
    used, unseen = room(dataset, 60)
    assert (len(split.X), len(split.X_test)) == (2 * used, 2 * unseen)
    assert f"classes 0 and 1: {used} training and {unseen} test samples of each" in words
    assert "28 × 28 pixels, rows of norm 1, targets 0 and 1" in words
    own = [int((dataset.y_test == c).sum()) for c in (0, 1)]
    assert f"{unseen - own[0]} and {unseen - own[1]} test samples from the training part" in words
    assert "training part" not in two_classes_in_words(dataset, 5)
    assert "norm √d" in two_classes_in_words(dataset, 5, norm="sqrt_d")
    unused = two_classes_in_words(dataset, 60, seed="seed 0", test=False)
    assert unused.startswith(f"classes 0 and 1: {used} training samples of each, drawn by seed 0; grey")
    assert "1437 training and 20 test images" in images_in_words(dataset, 10**6, 20)
    assert "means over 2 × 2 pixels" in images_in_words(dataset, 9, 9, shrink=2)


@pytest.mark.parametrize(
    ("key", "name", "words"),
    [
        ("gao2022.fig1", "digits", "classes 0 and 1: 6 training and 6 test samples"),
        ("kawaguchi2021.fig5", "digits", "20 training and 20 test images of all classes"),
        ("kawaguchi2021.fig2a", "synthetic-negated", "50 samples in R^10"),
        ("ling2023.fig1", "digits", "rows of norm √d"),
        ("kawaguchi2021.fig3", "synthetic-normal", "seed 0; y 0 or 1 with probability ½, seed 1"),
        ("kawaguchi2021.theorem2", "synthetic-normal", "w ~ N(0, I), seed 2; y = x·w, or 1 where x·w"),
        ("xie2021.sam", "synthetic-hyperplane", "the start 3·N(0, I), seed 4"),
        ("gao2022.conditions", "digits", "6 training samples of each, drawn by seed 0"),
        ("gao2022.table1", "digits", "6 training samples of each, drawn by seed 0"),
        ("hieu2022.monotone", "digits", "4 training samples of each, drawn by the seed of the run"),
        ("ling2023.fig1", "digits", "4 training samples of each, drawn by the seed of the run"),
        ("ling2023.theorem4", "synthetic-sphere", "3 samples, x uniform on the sphere"),
    ],
)
def test_a_page_names_the_part_of_the_data(tmp_path, with_units, key, name, words):
    result = run_one(catalogue.experiment(key), TINY, with_units(tmp_path))
    assert words in result.data[name]["subset"]
    assert words in write_page(result, tmp_path).read_text()


def test_every_experiment_with_units_has_data_on_record(tmp_path, monkeypatch):
    """Nothing is computed: a unit that is asked for is enough to know."""

    class Asked(Exception):
        pass

    def unit(self, *asked):
        raise Asked

    monkeypatch.setattr(Context, "unit", unit)
    for entry in catalogue.experiments():
        context = Context(TINY, tmp_path)
        try:
            entry.run(context)
        except Asked:
            assert context.provenance, entry.key
            assert all(origin["subset"] for origin in context.provenance.values()), entry.key


def test_digits_stand_in_for_images_only(tmp_path):
    context = Context(Settings("tiny", data_dir=str(tmp_path)), tmp_path)
    context.datasets("mnist", "cifar10")
    assert context.notes[-1] == "the digits of scikit-learn stand in for the images of the paper."
