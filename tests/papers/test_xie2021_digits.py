import pytest
import torch

from equipoise.papers import xie2021_digits as digits


def test_a_cell_of_the_grid_trains_and_is_reported_with_its_error():
    rows = digits.run("tiny", seeds=2, alphas=(1.0,), columns=["none", "SAM ½‖z‖²", "prox .05‖z‖₁"])
    assert [row.column for row in rows] == ["none", "SAM ½‖z‖²", "prox .05‖z‖₁"]
    for row in rows:
        assert len(row.accuracies) == 2
        assert row.mean > 0.2  # a tenth by chance
        assert row.error == pytest.approx(abs(row.accuracies[0] - row.accuracies[1]) / 2)
        assert row.parameters == 2 * (64 * 64 + 64 * 64 + 64) + 64 * 10
    assert rows[2].zeros > 0.05 > rows[0].zeros
    assert rows[1].residual > rows[0].residual  # SAM is not at a fixed point after 20 steps
    assert "none" in str(rows[0])
    one = digits.Row(1.0, "none", (0.5,), 0.0, 0.0, 0.0, 1)
    assert one.error is None
    assert "50.0 (one seed) %" in str(one)


@pytest.mark.parametrize("column", list(digits.COLUMNS))
def test_every_column_takes_finite_steps_at_rate_one_tenth(column):
    model = digits.build(0.4, column, 0)
    X, y, *_ = digits._digits()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(X[:128]), y[:128]).backward()
        optimiser.step()
        model.project_()
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_unknown_scales_and_columns_are_named():
    with pytest.raises(ValueError, match="scale must be one of tiny, small"):
        digits.run("huge")
    with pytest.raises(ValueError, match="Got dropout instead"):
        digits.run("tiny", columns=["dropout"])
