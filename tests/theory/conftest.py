import pytest
from certificates import data, network

import equipoise as eq


@pytest.fixture(scope="module")
def proved():
    model, (X, y) = network(), data()
    certificate = eq.certify(model, X, y, theorem="ling2023", printed=True)
    assert certificate.proved
    return certificate
