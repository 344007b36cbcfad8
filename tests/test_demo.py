"""The demo runs as a newcomer runs it, says what it shows, and its exit code means something."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from equipoise import demo


def test_it_shows_what_it_says(capsys):
    assert demo.main(["--epochs", "2"]) == 0
    text = capsys.readouterr().out
    for words in (
        "1437 of 1437 converged",
        "no equilibrium after Anderson",
        "row 0: max_steps after 2 steps",
        "Gradients against finite differences",
        "epoch 2",
        "Diagnosis of Equilibrium: 128 samples",
        "Advice",
    ):
        assert words in " ".join(text.split()), words
    assert text.count("✓") == 4
    assert "✗" not in text
    assert max(len(line) for line in text.splitlines()) <= 80


@pytest.mark.parametrize(
    ("accuracy", "exact", "well", "code"),
    [(0.0, True, True, 0), (1.01, True, True, 1), (0.0, False, True, 1), (0.0, True, False, 1)],
)
def test_the_exit_code_is_one_when_something_does_not_hold(capsys, monkeypatch, accuracy, exact, well, code):
    monkeypatch.setattr(demo, "ACCURACY", accuracy)
    monkeypatch.setattr(demo, "_audit", lambda *_: exact)
    monkeypatch.setattr(demo, "_train", lambda *_: 0.5)
    monkeypatch.setattr(demo, "diagnose", lambda *_: SimpleNamespace(ok=well))
    assert demo.main([]) == code
    assert capsys.readouterr().out.count("✗") == code


def test_bad_options_are_refused(capsys):
    for argv in (["--epochs", "0"], ["--epocs", "3"]):
        with pytest.raises(SystemExit) as stop:
            demo.main(argv)
        assert stop.value.code == 2
    assert "must be ≥ 1" in capsys.readouterr().err
