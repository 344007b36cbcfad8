import pytest

import equipoise as eq
from certificates import data, network
from equipoise.theory.register import _REGISTER


@pytest.fixture(scope="module")
def proved():
    model, (X, y) = network(), data()
    certificate = eq.certify(model, X, y, theorem="ling2023", printed=True)
    assert certificate.proved
    return certificate


@pytest.fixture
def registered():
    """Facts that a test registers are forgotten after it."""
    before = dict(_REGISTER)
    yield
    _REGISTER.clear()
    _REGISTER.update(before)
