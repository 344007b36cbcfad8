"""Whether a certificate is what `certify` returned; and if it is not, what `certify` returns now.

Only `certify` and `verify` seal a certificate, with a digest of all that it says. A copy, a file, a pickle or
a `replace` has no seal, and a certificate whose numbers were changed in place no longer agrees with it. What
relies on a certificate asks `relied_on`, which certifies such a one again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ..linalg import Interval
from ..models.altered import altered, tied
from .certificate import NUMBERS, Certificate, Seal, digest_of, fingerprint
from .claim import Claim
from .streams import Input

_AGREES = 1e-6  # relative: other machines round otherwise
_SOLVED = 1e-3  # relative: the optimum of a readout is only found to a tolerance
_PRINTED = 0.02  # relative: numbers in words have three digits or more
_ROUNDED = ("error", "least")  # numbers of the size of rounding: machines agree on their order only
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?")


def sealed(certificate: Certificate, model: nn.Module) -> Certificate:
    """The certificate with a seal, which tells that `certify` returned it and that nothing in it changed."""
    with suppress(TypeError):  # a user's theorem may keep what no file can hold: then there is no seal
        seal = Seal(digest_of(certificate.to_dict()), form_of(model))
        object.__setattr__(certificate, "_seal", seal)
    return certificate


def intact(certificate: Certificate, model: nn.Module) -> bool:
    """Whether it says what `certify` returned, of a model that is still built as it was then."""
    seal = certificate._seal
    return isinstance(seal, Seal) and seal == Seal(digest_of(certificate.to_dict()), form_of(model))


def form_of(model: nn.Module) -> str:
    """What is set in the modules of a model besides weights: strides, paddings, whether a head normalises.

    A fingerprint covers only the settings that the model was built with, and the tensors of its modules.
    """
    return repr([(name, type(part), _plain(vars(part))) for name, part in model.named_modules()])


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    kinds = (bool, int, float, str, tuple, list)
    return {n: v for n, v in values.items() if n[0] != "_" and n != "training" and isinstance(v, kinds)}


def relied_on(certificate: Certificate, model: nn.Module, X: Input, y: Tensor) -> Certificate:
    """A proved certificate of this model and these data, certified again unless `certify` just returned it.

    A ValueError says what keeps a run from relying on it.
    """
    if not certificate.proved:
        raise ValueError(
            f"the certificate must be proved. Got {certificate.verdict}:\n{certificate.explain()}"
        )
    _check_fingerprint(certificate, fingerprint(model, X, y))
    if why := altered(model) or tied(model):  # since it was certified
        raise ValueError(why)
    return certificate if intact(certificate, model) else verified(certificate, model, X, y)


def verified(certificate: Certificate, model: nn.Module, X: Input, y: Tensor | None) -> Certificate:
    """What `certify` returns now with the same theorem, constants and tier, if it says the same."""
    again = certified_again(certificate, model, X, y)
    if again.verdict != certificate.verdict:
        raise ValueError(
            f"the certificate says {certificate.verdict!r}. Certified again, it is {again.verdict!r}:\n"
            f"{again.explain()}"
        )
    for what, old, new in differences(certificate, again):
        raise ValueError(f"the certificate says {what} = {old}. Certified again, it is {new}.")
    return sealed(replace(again, options=certificate.options), model)


def certified_again(certificate: Certificate, model: nn.Module, X: Input, y: Tensor | None) -> Certificate:
    """What `certify` returns now of the same weights and data with the same theorem, constants and tier."""
    from .certify import certify, constants_of

    y = y if "y" in certificate.fingerprint else None
    _check_fingerprint(certificate, fingerprint(model, X, y))
    constants = constants_of(certificate)
    try:
        return certify(model, X, y, theorem=certificate.theorem, tier=certificate.tier, **constants)
    except TypeError as error:
        raise ValueError(f"the certificate cannot be certified again: {error}") from None


def _check_fingerprint(certificate: Certificate, now: Mapping[str, str]) -> None:
    known = certificate.fingerprint
    if differ := [name for name in {**known, **now} if known.get(name) != now.get(name)]:
        raise ValueError(
            f"the certificate is about other {' and '.join(differ)}: certify this model on these data."
        )


# -- what two certificates say -------------------------------------------------------------------------------


def differences(old: Certificate, new: Certificate) -> Iterator[tuple[str, Any, Any]]:
    """Where two certificates differ: the name of what differs, and what each of them says."""
    near = _SOLVED if old.kind == "anchored" else _AGREES
    for name in ("kind", "loss", "tier", "obstacle", "promise", *NUMBERS):
        if not _same(getattr(old, name), getattr(new, name), near):
            yield name, getattr(old, name), getattr(new, name)
    for name in ("hypotheses", "step_sizes", "constants"):
        yield from _within(name, getattr(old, name), getattr(new, name), near)
    if len(old.claims) != len(new.claims):
        yield "the number of claims", len(old.claims), len(new.claims)
    for ours, theirs in zip(old.claims, new.claims, strict=False):
        if not _same_claim(ours, theirs, near):
            yield "a claim", ours, theirs


def _within(name: str, old: Any, new: Any, near: float) -> Iterator[tuple[str, Any, Any]]:
    pair = [dict(v) if isinstance(v, Mapping) else dict(enumerate(v)) for v in (old, new)]
    for key in {**pair[0], **pair[1]}:
        a, b = (values.get(key) for values in pair)
        if not (_alike(a, b) if key in _ROUNDED else _same(a, b, near)):
            yield f"{name}[{key!r}]", a, b


def _same(a: Any, b: Any, near: float = _AGREES) -> bool:
    if isinstance(a, Interval) and isinstance(b, Interval):
        return _same(a.lo, b.lo, near) and _same(a.hi, b.hi, near)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_same(x, y, near) for x, y in zip(a, b, strict=True))
    if isinstance(a, str) and isinstance(b, str):
        numbers = [[float(x) for x in _NUMBER.findall(words)] for words in (a, b)]
        return _NUMBER.sub("#", a) == _NUMBER.sub("#", b) and all(
            math.isclose(x, y, rel_tol=_PRINTED) for x, y in zip(*numbers, strict=True)
        )
    if _is_number(a) and _is_number(b):
        return a == b or math.isclose(a, b, rel_tol=near)
    return type(a) is type(b) and a == b


def _alike(a: Any, b: Any) -> bool:
    """Whether two numbers that rounding made are of one order of magnitude."""
    return _same(a, b) or (_is_number(a) and _is_number(b) and max(a, b) <= 100 * min(a, b))


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _same_claim(a: Claim, b: Claim, rel: float) -> bool:
    words = [(c.name, c.relation, c.printed, c.holds, c.refuted) for c in (a, b)]
    if words[0] != words[1] or not _same(a.statement, b.statement):
        return False
    ends = [[c.left.lo, c.left.hi, c.right.lo, c.right.hi] for c in (a, b)]
    near = 1e-9 * max((abs(x) for x in ends[1] if math.isfinite(x)), default=0.0)
    return all(x == y or math.isclose(x, y, rel_tol=rel, abs_tol=near) for x, y in zip(*ends, strict=True))
