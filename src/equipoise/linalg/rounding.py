"""`x ∈ [lo, hi]`: outward-rounded arithmetic on real numbers, in which a theorem's formula reads as printed.

Python's `+ − × ÷ √` round to nearest, so one step of `nextafter` outward encloses the exact result. A sum is
moved only if its rounding error asks for it, hence `1 − Interval(1)` is exactly zero. `exp`, `log` and
general powers trust the C library to `LIBM_ULPS` units in the last place.

    S, s = bounds.norm, bounds.sigma_min
    nu = eta * (1 - tau) ** 2 * s**2            # an Interval that holds ν
    nu.certainly_gt(0), (1 - nu).hi             # what is proved, and the bound to report
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from sys import float_info

UNIT = 2.0**-53  # unit roundoff u of float64
LIBM_ULPS = 4  # what exp, log and pow of the C library are trusted to; glibc stays below 1

_INF = math.inf
_MAX = float_info.max


@dataclass(frozen=True, slots=True, init=False)
class Interval:
    """`[lo, hi]`: a real number known to lie between two floats; `Interval(x)` is the point x.

    An infinite end means that nothing is known on that side, NaN that nothing is known at all. There is no
    `<`: ask `certainly_lt`, which is true only if it holds for every pair of members. Functions act on the
    part of the interval inside their domain: `√[-1, 4] = [0, 2]`.
    """

    lo: float
    hi: float

    def __init__(self, lo: float | Interval, hi: float | Interval | None = None) -> None:
        lower = _ends(lo)[0]
        upper = _ends(lo if hi is None else hi)[1]
        if lower > upper:
            raise ValueError(f"Interval needs lo ≤ hi. Got lo={lower!r}, hi={upper!r}")
        object.__setattr__(self, "lo", lower)
        object.__setattr__(self, "hi", upper)

    @staticmethod
    def within(radius: float | Interval) -> Interval:
        """[-radius, radius]: an error of which only the size is known."""
        hi = _ends(radius)[1]
        if hi < 0:
            raise ValueError(f"within() needs a radius ≥ 0. Got {radius!r}")
        return _make(-hi, hi)

    # ---- arithmetic -------------------------------------------------------------------------------------
    def __add__(self, other: float | Interval) -> Interval:
        b = _interval(other)
        return _make(_add_down(self.lo, b.lo), -_add_down(-self.hi, -b.hi))

    def __neg__(self) -> Interval:
        return _make(-self.hi, -self.lo)

    def __sub__(self, other: float | Interval) -> Interval:
        return self + -_interval(other)

    def __mul__(self, other: float | Interval) -> Interval:
        b = _interval(other)
        if self.lo >= 0 and b.lo >= 0:
            return _make(_mul_down(self.lo, b.lo), -_mul_down(-self.hi, b.hi))
        ends = [(x, y) for x in (self.lo, self.hi) for y in (b.lo, b.hi)]
        return _make(min(_mul_down(x, y) for x, y in ends), -min(_mul_down(-x, y) for x, y in ends))

    def __truediv__(self, other: float | Interval) -> Interval:
        b = _interval(other)
        if b.lo <= 0 <= b.hi:
            return _make(-_INF, _INF)
        ends = [
            (x, y) for x in (self.lo, self.hi) for y in (b.lo, b.hi) if not (math.isinf(x) and math.isinf(y))
        ]
        return _make(min(_div_down(x, y) for x, y in ends), -min(_div_down(-x, y) for x, y in ends))

    def __radd__(self, other: float) -> Interval:
        return self + other

    def __rsub__(self, other: float) -> Interval:
        return _interval(other) - self

    def __rmul__(self, other: float) -> Interval:
        return self * other

    def __rtruediv__(self, other: float) -> Interval:
        return _interval(other) / self

    def __abs__(self) -> Interval:
        if self.lo >= 0:
            return self
        return _make(0.0 if self.hi >= 0 else -self.hi, max(-self.lo, self.hi))

    def __pow__(self, exponent: float) -> Interval:
        """x^k for an exact exponent k; a k that is not an integer acts on the part of x that is ≥ 0."""
        if not isinstance(exponent, int | float) or not abs(exponent) <= 2**53:
            raise TypeError(f"an Interval's exponent must be an int or float up to 2^53. Got {exponent!r}")
        if exponent < 0:
            return 1.0 / self**-exponent
        if exponent == 0:
            return _make(1.0, 1.0)
        if exponent == 1:
            return self
        integral = float(exponent).is_integer()
        base = abs(self) if integral and exponent % 2 == 0 else self
        if exponent == 2:
            return base * base
        if not integral:
            if base.hi < 0:
                return _make(-_INF, _INF)
            base = _make(max(base.lo, 0.0), base.hi)
        lifted = base._increasing(lambda x: math.pow(x, exponent))
        return _make(max(lifted.lo, 0.0), lifted.hi) if base.lo >= 0 else lifted

    # ---- increasing functions ---------------------------------------------------------------------------
    def sqrt(self) -> Interval:
        """An interval that holds √x for every x in this one."""
        if self.hi < 0:
            return _make(-_INF, _INF)
        lo, hi = math.sqrt(max(self.lo, 0.0)), math.sqrt(self.hi)
        exact = (0.0, 1.0)
        return _make(
            lo if self.lo in exact or lo == 0 else math.nextafter(lo, 0.0),
            hi if self.hi in exact else math.nextafter(hi, _INF),
        )

    def exp(self) -> Interval:
        """An interval that holds exp(x) for every x in this one."""
        lifted = self._increasing(math.exp)
        return _make(max(lifted.lo, 0.0), lifted.hi)

    def expm1(self) -> Interval:
        """An interval that holds exp(x) − 1 for every x in this one."""
        lifted = self._increasing(math.expm1)
        return _make(max(lifted.lo, -1.0), lifted.hi)

    def log(self) -> Interval:
        """An interval that holds log(x) for every x in this one."""
        return (
            self._increasing(lambda x: math.log(x) if x > 0 else -_INF) if self.hi > 0 else _make(-_INF, _INF)
        )

    def log1p(self) -> Interval:
        """An interval that holds log(1 + x) for every x in this one."""
        if self.hi <= -1:
            return _make(-_INF, _INF)
        return self._increasing(lambda x: math.log1p(x) if x > -1 else -_INF)

    def _increasing(self, f: Callable[[float], float]) -> Interval:
        """An interval that holds f(x) for every x in this one, for an increasing f of the C library."""
        return _make(-_libm_up(lambda x: -f(-x), -self.lo), _libm_up(f, self.hi))

    def ldexp(self, exponent: int) -> Interval:
        """x · 2^exponent, exact unless it overflows or becomes subnormal."""
        return _make(-_ldexp_up(-self.lo, exponent), _ldexp_up(self.hi, exponent))

    # ---- what is proved ---------------------------------------------------------------------------------
    def certainly_lt(self, other: float | Interval) -> bool:
        """Whether every number of this interval is below every number of the other."""
        return self.hi < _interval(other).lo

    def certainly_le(self, other: float | Interval) -> bool:
        """Whether every number of this interval is at most every number of the other."""
        return self.hi <= _interval(other).lo

    def certainly_gt(self, other: float | Interval) -> bool:
        """Whether every number of this interval is above every number of the other."""
        return self.lo > _interval(other).hi

    def certainly_ge(self, other: float | Interval) -> bool:
        """Whether every number of this interval is at least every number of the other."""
        return self.lo >= _interval(other).hi

    def __contains__(self, x: float) -> bool:
        return self.lo <= x <= self.hi

    def __repr__(self) -> str:
        return f"Interval({self.lo!r})" if self.lo == self.hi else f"Interval({self.lo!r}, {self.hi!r})"


def minimum(*values: float | Interval) -> Interval:
    """The least of several numbers."""
    all_of = [_interval(v) for v in values]
    return _make(min(v.lo for v in all_of), min(v.hi for v in all_of))


def maximum(*values: float | Interval) -> Interval:
    """The greatest of several numbers."""
    all_of = [_interval(v) for v in values]
    return _make(max(v.lo for v in all_of), max(v.hi for v in all_of))


def _interval(x: float | Interval) -> Interval:
    return x if isinstance(x, Interval) else _make(*_ends(x))


def _ends(x: float | Interval) -> tuple[float, float]:
    """The floats that enclose x: itself, or its neighbours for an int that is no float."""
    if isinstance(x, Interval):
        return x.lo, x.hi
    if isinstance(x, float):
        y = float(x)
        return (-_INF, _INF) if math.isnan(y) else (min(y, _MAX), max(y, -_MAX))
    if isinstance(x, int):
        try:
            y = float(x)
        except OverflowError:
            return (_MAX, _INF) if x > 0 else (-_INF, -_MAX)
        return (y if y <= x else math.nextafter(y, -_INF), y if y >= x else math.nextafter(y, _INF))
    raise TypeError(
        f"an Interval is made of floats, ints and Intervals. Got {type(x).__name__} instead: "
        "an estimate proves nothing, use a bound of equipoise.linalg (or .item() of an exact tensor)"
    )


def _make(lo: float, hi: float) -> Interval:
    """An Interval from ends already rounded outward; a NaN opens both sides, lo = ∞ becomes a float."""
    new = object.__new__(Interval)
    nan = lo != lo or hi != hi
    object.__setattr__(new, "lo", -_INF if nan else min(lo, _MAX) + 0.0)  # + 0.0 turns -0.0 into 0.0
    object.__setattr__(new, "hi", _INF if nan else max(hi, -_MAX) + 0.0)
    return new


def _add_down(a: float, b: float) -> float:
    """The greatest float ≤ a + b, by the sign of TwoSum's error (a NaN there counts as inexact)."""
    s = a + b
    if math.isinf(s):
        return s if s < 0 else _MAX
    t = s - a
    return s if (a - (s - t)) + (b - t) >= 0 else math.nextafter(s, -_INF)


def _mul_down(a: float, b: float) -> float:
    """A float ≤ a·b, with 0·∞ = 0: the infinite end of an interval is no member of it."""
    if a == 0 or b == 0:
        return 0.0
    if abs(a) == 1 or abs(b) == 1:
        return a * b
    p = a * b
    return 0.0 if p == 0 and (a > 0) == (b > 0) else math.nextafter(p, -_INF)


def _div_down(a: float, b: float) -> float:
    """A float ≤ a/b, b ≠ 0."""
    if a == 0:
        return 0.0
    if abs(b) == 1:
        return a / b
    q = a / b
    return 0.0 if q == 0 and (a > 0) == (b > 0) else math.nextafter(q, -_INF)


def _libm_up(f: Callable[[float], float], x: float) -> float:
    """A float ≥ f(x) for an f of the C library, which is exact where f(0) or f(±1) is 0 or ±1."""
    try:
        y = f(x)
    except OverflowError:
        return _INF
    if math.isinf(y) or (y == round(y) and abs(y) <= 1 and abs(x) in (0.0, 1.0)):
        return y
    for _ in range(LIBM_ULPS):
        y = math.nextafter(y, _INF)
    return y


def _ldexp_up(x: float, exponent: int) -> float:
    try:
        y = math.ldexp(x, exponent)
    except OverflowError:
        return _INF if x > 0 else -_MAX
    if x == 0 or abs(y) >= float_info.min:
        return y
    return 0.0 if y == 0 and x < 0 else math.nextafter(y, _INF)
