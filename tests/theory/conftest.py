import pytest

import equipoise as eq
from certificates import data, network


@pytest.fixture(scope="module")
def proved():
    model, (X, y) = network(), data()
    certificate = eq.certify(model, X, y, theorem="ling2023", printed=True)
    assert certificate.proved
    return certificate
