"""No verdict may ever be false: adversarial small networks against exact arithmetic.

`singular_values_above` counts singular values from the characteristic polynomial of an exact integer matrix,
and equilibria are solved for in rational numbers, so that a violation in the last digit would be seen.
"""

import itertools
import math

import pytest
import torch

import equipoise as eq
from equipoise.theory import equilibrium_error
from equipoise.theory.instance import Instance
from exact_spectra import eigenvalues_above, singular_values_above

flint = pytest.importorskip("flint")
F64 = torch.float64
BELOW_1 = math.nextafter(1.0, 0.0)


# -- weights -------------------------------------------------------------------------------------------------


def gaussian(n, g):
    return torch.randn(n, n, generator=g, dtype=F64)


def to_norm(M, norm):
    return M * (norm / torch.linalg.matrix_norm(M, 2).clamp_min(1e-300))


def contraction(n, g):
    return to_norm(gaussian(n, g), float(torch.rand(1, generator=g)))


def expansion(n, g):
    return to_norm(gaussian(n, g), 1 + float(torch.rand(1, generator=g)))


def near_1(n, g):
    distance = 10.0 ** -float(torch.randint(6, 16, (1,), generator=g))
    return to_norm(gaussian(n, g), 1 + distance * (2 * float(torch.randint(0, 2, (1,), generator=g)) - 1))


def exactly_1e9_away(n, g):
    return to_norm(gaussian(n, g), 1 + 1e-9 * (2 * float(torch.randint(0, 2, (1,), generator=g)) - 1))


def just_far_enough(n, g):
    return to_norm(gaussian(n, g), 1 - 2e-8)


def orthogonal(n, g):
    return torch.linalg.qr(gaussian(n, g)).Q


def permutation(n, g):  # every singular value is exactly 1
    return torch.eye(n, dtype=F64)[torch.randperm(n, generator=g)]


def shrunken_permutation(n, g):
    return permutation(n, g) * BELOW_1


def rank_deficient(n, g):
    M = torch.randn(n, 1, generator=g, dtype=F64) @ torch.randn(1, n, generator=g, dtype=F64)
    return to_norm(M, 1 + 1e-7 * float(torch.randn(1, generator=g)))


def near_tie(n, g):
    s = 1 - 1e-7 + 1e-12 * torch.randn(n, generator=g, dtype=F64)
    return (orthogonal(n, g) * s) @ orthogonal(n, g)


def nilpotent(n, g):  # spectral radius 0
    return torch.triu(gaussian(n, g), diagonal=1)


def duplicates(n, g):
    return to_norm(gaussian(n, g)[torch.randint(0, n, (n,), generator=g)], 0.999)


def graded(n, g):
    return 0.5 * gaussian(n, g) * 10.0 ** (-4.0 * torch.arange(n))


def huge(n, g):
    return gaussian(n, g) * 1e300


def tiny(n, g):
    return gaussian(n, g) * 1e-300


def subnormal(n, g):
    return gaussian(n, g) * 1e-320


def all_scales(n, g):
    return gaussian(n, g) * 2.0 ** torch.randint(-1070, 2, (n, n), generator=g).double()


def zero(n, g):
    return torch.zeros(n, n, dtype=F64)


def single_precision(n, g):
    return to_norm(gaussian(n, g), 1 - 1e-7).float().double()


WEIGHTS = [
    contraction, expansion, near_1, exactly_1e9_away, just_far_enough, orthogonal, permutation,
    shrunken_permutation, rank_deficient, near_tie, nilpotent, duplicates, graded, huge, tiny, subnormal,
    all_scales, zero, single_precision,
]  # fmt: skip


def inputs(g, d):
    X = torch.randn(2, d, dtype=F64, generator=g)
    return X * [1.0, 1.0, 1e-300, 1e100, 0.0][int(torch.randint(0, 5, (1,), generator=g))]


def networks(count, seed):
    """GaussianReLU and ScaledReLU in turn; γ is a power of 2, so that γA = W exactly."""
    g = torch.Generator().manual_seed(seed)
    for i in range(count):
        n, d = torch.randint(1, 6, (2,), generator=g).tolist()
        make = WEIGHTS[i % len(WEIGHTS)]
        W, X = make(n, g), inputs(g, d)
        if i % 2:
            gamma = 2.0 ** -int(torch.randint(1, 4, (1,), generator=g))
            model, A = eq.ScaledReLU(d, n, gamma=gamma, dtype=F64, generator=g), W / gamma
            W = gamma * A if bool(torch.isfinite(A).all()) else W
            model.A.data.copy_(A)
        else:
            model = eq.GaussianReLU(d, n, dtype=F64, generator=g)
            model.W.data.copy_(W)
        yield make.__name__, model, W, X


def check_verdicts(count, seed):
    false, clear, proved, monotone = [], 0, 0, 0
    for name, model, W, X in networks(count, seed):
        cert = eq.certify(model, X)
        assert cert.explain()
        if cert.obstacle:
            assert not cert.proved
            continue
        # Exactly: is a singular value at least 1 (above the last float below it)? above 1 − 1e-8?
        expands, unclear = (k > 0 for k in singular_values_above(W, [BELOW_1, 1 - 1e-8]))
        # Is λ_max(W + Wᵀ) at least 2? Its entries are rounded once, by less than the proof leaves room for.
        unproved = expands and eigenvalues_above(W + W.T, [math.nextafter(2.0, 0.0)])[0] > 0
        if (cert.proved and unproved) or (cert.verdict == "hypotheses_fail" and not expands):
            false.append((name, cert.verdict))
        monotone += cert.proved and expands
        if not unclear:
            clear, proved = clear + 1, proved + cert.proved
    return false, clear, proved, monotone


def test_no_verdict_on_well_posedness_is_false():
    false, clear, proved, monotone = check_verdicts(300, seed=0)
    assert not false
    assert clear > 90
    assert proved >= 0.99 * clear
    assert monotone > 5


@pytest.mark.slow
def test_no_verdict_on_well_posedness_is_false_in_a_hundred_thousand():
    false, clear, proved, _ = check_verdicts(100_000, seed=1)
    assert not false
    assert proved >= 0.99 * clear


def test_the_exact_reference_tells_1_from_the_floats_beside_it():
    """So that the test above can fail."""
    one = torch.eye(2, dtype=F64)
    assert singular_values_above(one, [BELOW_1]) == [2]
    assert singular_values_above(one * BELOW_1, [BELOW_1]) == [0]
    assert singular_values_above(one * BELOW_1, [1 - 1e-8]) == [2]


# -- equilibria ----------------------------------------------------------------------------------------------


def rational(M):
    return flint.fmpq_mat(*M.shape, [flint.fmpq(*x.as_integer_ratio()) for x in M.flatten().tolist()])


def exact_parts(model, X):
    """W(θ) and u(X; θ) in rational numbers."""
    Q = rational(X)
    if isinstance(model, eq.GaussianReLU):
        return rational(model.W), Q * rational(model.U.T)
    if isinstance(model, eq.ScaledReLU):
        P = Q * rational(model.W)
        Phi = flint.fmpq_mat([[max(x, flint.fmpq(0)) for x in row] for row in P.tolist()])
        return rational(model.A.T) * flint.fmpq(*model.gamma.as_integer_ratio()), Phi
    A, B, n = rational(model.A), rational(model.B), model.width
    eye = flint.fmpq_mat([[int(i == j) for j in range(n)] for i in range(n)])
    keep = 1 - flint.fmpq(*model.margin.as_integer_ratio())
    return eye * keep - A.transpose() * A + B - B.transpose(), Q * rational(model.U.T)


def exact_equilibrium(W, u):
    """z = relu(W z + u) for one row u, by trying every active set: there is exactly one."""
    n = W.nrows()
    for size in range(n + 1):
        for S in itertools.combinations(range(n), size):
            z = [flint.fmpq(0)] * n
            if S:
                M = flint.fmpq_mat([[int(i == j) - W[i, j] for j in S] for i in S])
                found = M.solve(flint.fmpq_mat([[u[i]] for i in S]))
                for k, i in enumerate(S):
                    z[i] = found[k, 0]
            pre = [sum((W[i, j] * z[j] for j in S), flint.fmpq(0)) + u[i] for i in range(n)]
            if all(z[i] >= 0 if i in S else pre[i] <= 0 for i in range(n)):
                return z
    raise AssertionError("no active set fits")


def small_network(i, g):
    n, d = 1 + i % 4, 1 + i % 3
    settings = {"dtype": F64, "generator": g}
    kind = i % 3
    if kind == 0:
        model = eq.GaussianReLU(d, n, **settings)
        model.W.data.copy_(to_norm(model.W.data, [0.5, 0.99, 1 - 1e-6][i // 3 % 3]))
    elif kind == 1:
        model = eq.ScaledReLU(d, n, init="section5.2", gamma=0.1, **settings)
        model.A.data.copy_(to_norm(model.A.data, [1.0, 9.0, 9.99][i // 3 % 3]))
    else:
        model = eq.Monotone(d, n, margin=[0.001, 0.1, 2.0][i // 3 % 3], **settings)
        model.B.data.mul_([1.0, 100.0][i // 9 % 2])
    return model, torch.randn(2, d, dtype=F64, generator=g) * [1.0, 1e-200, 1e80][i // 5 % 3]


def test_computed_weights_and_injections_are_as_near_as_they_say():
    g = torch.Generator().manual_seed(1)
    for i in range(60):
        model, X = small_network(i, g)
        if i % 3 == 2 and i % 2:  # AᵀA cancels 1 − μ, to leave little but rounding
            model.A.data.copy_((1 - min(model.margin, 0.5)) ** 0.5 * torch.linalg.qr(model.A.data).Q)
            model.B.data.mul_(1e-12)
        at = Instance(model, X).enclosure
        for exact, computed, error in zip(
            exact_parts(model, X),
            (at.weight, at.injection),
            (at.weight_error, at.injection_error),
            strict=True,
        ):
            off = exact - rational(computed)
            square = sum((x * x for row in off.tolist() for x in row), flint.fmpq(0))
            assert flint.fmpq(*error.as_integer_ratio()) ** 2 >= square


def test_a_bias_is_added_with_its_rounding():
    g = torch.Generator().manual_seed(0)
    for _ in range(10):
        model = eq.Monotone(1, 3, bias=True, dtype=F64, generator=g)
        model.bias.data.copy_(1e6 * torch.randn(3, dtype=F64, generator=g))
        X = 1e-3 * torch.randn(4, 1, dtype=F64, generator=g)
        at = Instance(model, X).enclosure
        exact = rational(X) * rational(model.U.T) + rational(model.bias.expand(4, 3))
        off = exact - rational(at.injection)
        square = sum((x * x for row in off.tolist() for x in row), flint.fmpq(0))
        assert 0 < square <= flint.fmpq(*at.injection_error.as_integer_ratio()) ** 2


def test_a_computed_softmax_is_as_near_as_it_says():
    g = torch.Generator().manual_seed(1)
    with flint.ctx.workprec(256):
        for i in range(40):
            model = eq.LinearEquilibrium(1 + i % 6, gamma=0.9, dtype=F64, generator=g)
            model.A.data.mul_([1.0, 30.0, 1e3, 1e18][i % 4])
            at = Instance(model, torch.ones(1, model.width, dtype=F64)).enclosure
            square = flint.arb(0)
            for column, computed in zip(model.A.T.tolist(), at.weight.T.tolist(), strict=True):
                powers = [(flint.arb(x) - max(column)).exp() for x in column]
                total = sum(powers, flint.arb(0))
                square += sum(
                    (flint.arb(0.9) * p / total - c) ** 2 for p, c in zip(powers, computed, strict=True)
                )
            assert not (flint.arb(at.weight_error) < square.sqrt())


def test_the_error_of_equilibria_is_never_understated():
    g = torch.Generator().manual_seed(0)
    for i in range(150):
        model, X = small_network(i, g)
        W, u = exact_parts(model, X)
        exact = [exact_equilibrium(W, row) for row in u.tolist()]
        Z = torch.tensor([[int(x.p) / int(x.q) for x in row] for row in exact], dtype=F64)
        start = model.solve(X, stop=eq.Stop(rtol=1e-12, max_steps=2000)).value
        off = 10.0 ** (i % 12 - 12) * float(Z.abs().max())
        for guess in (start, Z, Z + off * torch.randn(Z.shape, dtype=F64, generator=g), torch.zeros_like(Z)):
            bound = equilibrium_error(model, X, guess)
            pairs = zip(rational(guess).tolist(), exact, strict=True)
            square = sum(((a - b) ** 2 for z, e in pairs for a, b in zip(z, e, strict=True)), flint.fmpq(0))
            assert bound == math.inf or flint.fmpq(*bound.as_integer_ratio()) ** 2 >= square
            assert bound < math.inf


def test_cancellation_in_the_injection_is_counted():
    """⟨x, U_i⟩ of vectors that are orthogonal but for rounding: u itself is of the size of its error."""
    g = torch.Generator().manual_seed(0)
    for i in range(30):
        family = eq.Monotone if i % 2 else eq.ScaledReLU
        model = family(2, 2, dtype=F64, generator=g)
        x = torch.randn(1, 2, dtype=F64, generator=g)
        weight = model.U.data if i % 2 else model.W.data.T  # (2, d)
        weight[:, 1] = -weight[:, 0] * x[0, 0] / x[0, 1]
        W, u = exact_parts(model, x)
        exact = exact_equilibrium(W, u.tolist()[0])
        for Z in (model.solve(x).value, torch.tensor([[int(z.p) / int(z.q) for z in exact]], dtype=F64)):
            bound = equilibrium_error(model, x, Z)
            square = sum(
                ((a - b) ** 2 for a, b in zip(rational(Z).tolist()[0], exact, strict=True)), flint.fmpq(0)
            )
            assert flint.fmpq(*bound.as_integer_ratio()) ** 2 >= square


def test_the_error_of_the_linear_family_is_never_understated():
    g = torch.Generator().manual_seed(0)
    with flint.ctx.workprec(256):
        for i in range(30):
            m = 1 + i % 5
            model = eq.LinearEquilibrium(m, gamma=[0.5, 0.99, 1 - 1e-6][i % 3], dtype=F64, generator=g)
            model.A.data.mul_([1.0, 50.0, 1e4, 1e20][i % 4])
            X = torch.randn(2, m, dtype=F64, generator=g)
            columns = []
            for column in model.A.T.tolist():
                powers = [(flint.arb(x) - max(column)).exp() for x in column]
                columns.append([flint.arb(model.gamma) * p / sum(powers, flint.arb(0)) for p in powers])
            U = flint.arb_mat([[int(r == c) - columns[c][r] for c in range(m)] for r in range(m)])
            exact = U.solve(flint.arb_mat(X.T.tolist())).transpose()
            Z = model.equilibrium(X).detach()
            for guess in (Z, Z * (1 + 1e-10), torch.zeros_like(Z)):
                off = flint.arb_mat(guess.tolist()) - exact
                error = sum((x * x for row in off.tolist() for x in row), flint.arb(0)).sqrt()
                assert not (flint.arb(equilibrium_error(model, X, guess)) < error)
