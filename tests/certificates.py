"""Claims, a certificate, and a network with data of which a theorem is proved: for tests of certificates."""

import torch

import equipoise as eq
from equipoise.linalg import Interval
from equipoise.theory import Certificate, Claim

F64 = torch.float64


def claim(name="(1)", left=2.0, relation=">=", right=1.0, **more):
    return Claim(name, "it is so", Interval(left), relation, Interval(right), **more)


def descent(**more):
    given = {"claims": (claim(),), "kind": "descent", "exponent": 0.5, "max_step_size": 0.1}
    return Certificate(theorem="ling2023", **{**given, **more})


def network(seed=0, dtype=F64, **more):
    generator = torch.Generator().manual_seed(seed)
    return eq.GaussianReLU(
        10, 400, sigma_w2=0.001, start="zero_readout", dtype=dtype, generator=generator, **more
    )


def data(seed=0, dtype=F64):
    generator = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(10, 2, dtype=F64, generator=generator)).Q
    return (10**0.5 * Q.T).to(dtype), torch.tensor([0.05, -0.05], dtype=dtype)
