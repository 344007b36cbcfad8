"""Certificate: what a theorem guarantees about this network on this data, and what that rests on."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .. import __version__
from ..files import write_atomically
from ..linalg import Interval
from ..models.saving import Saved
from .claim import Claim, ends_from_json, ends_to_json
from .shards import Shard, digest_of_rows
from .streams import Input, Stream, parts

Verdict = Literal["proved", "hypotheses_fail", "inconclusive"]
Kind = Literal["flow", "descent", "anchored", "static"]
FORMAT = 1

FLOAT64_TIER = "IEEE float64, round to nearest, conventional dot products; every bound rounded outward"
RIGOROUS_TIER = "products of matrices in ball arithmetic; scalar formulas in IEEE float64, rounded outward"
EXACT_GRADIENTS = "the theorem speaks of exact gradients; their measured error stands beside the run"


@dataclass(frozen=True)
class Seal:
    """What a certificate said when `certify` returned it, and how the model was built then."""

    digest: str
    form: str


@dataclass(frozen=True)
class Certificate:
    """The verdict of a theorem with the two sides of every claim it rests on.

    `verdict` is "proved" only if every claim holds for certain; "hypotheses_fail" if one is certainly
    violated, or if an obstacle (NaN, another family, …) makes the theorem inapplicable; else "inconclusive".
    """

    theorem: str
    claims: tuple[Claim, ...]
    kind: Kind = "static"
    promise: str = ""  # the conclusion, in words, when proved
    hypotheses: tuple[str, ...] = ()  # what is assumed and not checked here
    obstacle: str = ""  # why no claim could be formed at all (NaN, m < N, wrong loss …)
    exponent: float | None = None  # flow: exp(−exponent·t); descent: (1 − step·exponent)^k; a lower bound
    max_step_size: float | None = None  # exclusive
    step_sizes: Mapping[str, float] = field(default_factory=dict)  # {"readout": …, "hidden": …}
    factor: float | None = None  # L(k+1) ≤ factor·L(k) at the certified steps
    floor: float = 0.0  # L(k)/L(0) below which rounding decides
    loss: str = "half_square"
    movement: float | None = None  # bound of ‖Z − Z(0)‖_F / ‖Z(0)‖_F along the run, if proved
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # of the theorem, to certify again
    tier: str = "float64"
    fingerprint: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of weights and data
    version: str = __version__
    _seal: Seal | None = field(default=None, init=False, repr=False, compare=False)
    _witness: Any = field(default=None, init=False, repr=False, compare=False)  # what a run may begin from

    def __getstate__(self) -> dict[str, Any]:
        """Without the seal: a copy, or what a pickle holds, is not what `certify` returned."""
        return {name: value for name, value in vars(self).items() if name not in ("_seal", "_witness")}

    # -- what it says ---------------------------------------------------------------------------------------

    @property
    def verdict(self) -> Verdict:
        """What follows from the claims: it cannot be set."""
        counted = [c for c in self.claims if not c.printed]
        if self.obstacle or not counted:
            return "hypotheses_fail" if self.obstacle else "inconclusive"
        if all(c.holds for c in counted):
            return "proved"
        return "hypotheses_fail" if any(c.refuted for c in counted) else "inconclusive"

    @property
    def proved(self) -> bool:
        """Whether every claim holds and nothing stands in the way."""
        return self.verdict == "proved"

    @property
    def step_size(self) -> float | None:
        """.999 of the largest certified step."""
        return None if self.max_step_size is None else 0.999 * self.max_step_size

    def bound(self, k: float, step_size: float | None = None) -> float:
        """The promised L(k)/L(0) after k steps (or at time k of a flow), rounded up; ∞ if nothing is proved.

        For kawaguchi2021 it is about the gap to the optimal loss; for "anchored" it is F(k)/F(h₀, 0) after k
        checkpoints, relative to a start without a readout. It is never below `floor`, which belongs to the
        step of the certificate: a step that is c times smaller has a floor that is c² times higher.
        """
        if not self.proved:
            return math.inf
        if not 0 <= k < math.inf:
            raise ValueError(f"k must be finite and ≥ 0. Got {k} instead.")
        floor = self.floor
        if self.kind == "flow":
            assert self.exponent is not None
            promised = (-(self.exponent * Interval(float(k)))).exp()
        elif self.kind == "descent":
            promised = self._factor(step_size) ** min(float(k), 2.0**53)
            if step_size is not None and self.step_size is not None and step_size < self.step_size:
                floor = (floor * (Interval(self.step_size) / step_size) ** 2).hi
                floor = floor if floor < 1 else math.inf  # rounding may undo all of such a step
        elif self.kind == "anchored":
            assert self.factor is not None
            promised = Interval(1.0 if k == 0 else self.factor)
        else:
            raise ValueError(f"{self.theorem} promises no rate: it is about the network as it stands.")
        return max(min(promised.hi, 1.0), floor)

    @property
    def efold(self) -> float:
        """Steps of descent, or time of a flow, in which L is promised to fall by a factor e; ∞ if none is."""
        if not self.proved or self.kind in ("static", "anchored"):
            return math.inf
        if self.kind == "flow":
            return 1 / self.exponent if self.exponent else math.inf
        fall = (
            1 - self.factor if self.factor is not None else (self.step_size or 0.0) * (self.exponent or 0.0)
        )
        return math.inf if fall <= 0 else 0.0 if fall >= 1 else -1 / math.log1p(-fall)

    def _factor(self, step_size: float | None) -> Interval:
        if step_size is None and self.factor is not None:
            return Interval(self.factor)
        step = self.step_size if step_size is None else step_size
        if self.exponent is None or step is None or self.max_step_size is None:
            raise ValueError(
                f"{self.theorem} promises its rate only at its own step sizes, {dict(self.step_sizes)}."
            )
        if not 0 < step < self.max_step_size:
            raise ValueError(f"step_size must lie in (0, {self.max_step_size:.4g}). Got {step:.4g} instead.")
        return 1 - Interval(step) * self.exponent

    def claim(self, name: str) -> Claim:
        """The (corrected) claim of that label."""
        for claim in self.claims:
            if claim.name == name and not claim.printed:
                return claim
        raise KeyError(f"no claim {name!r} of {self.theorem} here, only {[c.name for c in self.claims]}.")

    def __getitem__(self, name: str) -> Claim:
        return self.claim(name)

    # -- once more ------------------------------------------------------------------------------------------

    def verify(self, model: nn.Module, X: Tensor, y: Tensor | None = None) -> Certificate:
        """Certify again with the same theorem, constants and tier; the new certificate, if it says the same.

        A ValueError says what differs: the weights or data, the verdict, or anything that is said.
        """
        from .verification import verified

        return verified(self, model, X, y)

    # -- to and from a file ---------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """All that is said, as JSON holds it."""
        return {
            "format": FORMAT,
            "library": {"name": "equipoise", "version": self.version},
            "theorem": self.theorem,
            "verdict": self.verdict,
            "kind": self.kind,
            "tier": self.tier,
            "promise": self.promise,
            "hypotheses": list(self.hypotheses),
            "obstacle": self.obstacle,
            "claims": [c.to_dict() for c in self.claims],
            "numbers": {name: _to_json(getattr(self, name)) for name in NUMBERS},
            "step_sizes": _to_json(dict(self.step_sizes)),
            "loss": self.loss,
            "constants": _to_json(dict(self.constants)),
            "options": _to_json(dict(self.options)),
            "fingerprint": dict(self.fingerprint),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Certificate:
        """The certificate of a dict; a ValueError if its verdict does not follow from its claims."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            got = data.get("format") if isinstance(data, Mapping) else type(data).__name__
            raise ValueError(f"a certificate of format {FORMAT} is required. Got {got!r} instead.")
        try:
            certificate = cls(
                theorem=data["theorem"],
                claims=tuple(Claim.from_dict(c) for c in data["claims"]),
                kind=data["kind"],
                promise=data["promise"],
                hypotheses=tuple(data["hypotheses"]),
                obstacle=data["obstacle"],
                step_sizes=_from_json(data["step_sizes"]),
                loss=data["loss"],
                constants=_from_json(data["constants"]),
                options=_from_json(data["options"]),
                tier=data["tier"],
                fingerprint=data["fingerprint"],
                version=data["library"]["version"],
                **{name: _from_json(data["numbers"][name]) for name in NUMBERS},
            )
        except KeyError as error:
            raise ValueError(f"a certificate must have {error}. It has none.") from None
        except (TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"this is no certificate: {error}") from None
        if certificate.verdict != data["verdict"]:
            raise ValueError(
                f"the file says {data['verdict']!r}, its claims say {certificate.verdict!r}: it was altered."
            )
        return certificate

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write JSON with a digest of it: whole, or not at all."""
        target, content = Path(path), self.to_dict()
        sealed = {**content, "sha256": digest_of(content)}
        write_atomically(target, json.dumps(sealed, indent=1, ensure_ascii=False).encode())
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Certificate:
        """Read JSON. A file that was altered, or whose claims do not follow from its numbers, is refused.

        That the numbers are those of a network, only `verify` can tell, which a run does before it relies on
        a certificate that was read.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{path} is not a certificate: {error}") from None
        if isinstance(data, dict) and data.pop("sha256", None) != digest_of(data):
            raise ValueError(f"{path} was altered: its content does not agree with its digest.")
        return cls.from_dict(data)

    # -- in words -------------------------------------------------------------------------------------------

    def explain(self, measured_movement: float | None = None) -> str:
        """What is proved, what it rests on, what failed by how much, and what to change."""
        from .explain import explain

        return explain(self, measured_movement)

    def __str__(self) -> str:
        from .explain import table

        return table(self)


NUMBERS = ("exponent", "max_step_size", "factor", "floor", "movement")


def digest_of(content: Mapping[str, Any]) -> str:
    """SHA-256 of what a certificate says."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _to_json(value: Any) -> Any:
    """Floats in hexadecimal under a tag, everything else as JSON has it."""
    if isinstance(value, bool | int | str | type(None)):
        return value
    if isinstance(value, float):
        return {"hex": value.hex()}
    if isinstance(value, Mapping):
        return {"map": {str(k): _to_json(v) for k, v in value.items()}}
    if isinstance(value, list | tuple):
        return [_to_json(v) for v in value]
    if hasattr(value, "lo") and hasattr(value, "hi"):
        return {"interval": ends_to_json(value)}
    raise TypeError(
        f"a certificate keeps numbers, words, lists and maps. Got {type(value).__name__} instead."
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(v) for v in value]
    if isinstance(value, dict):
        ((tag, content),) = value.items()
        if tag == "hex":
            return float.fromhex(content)
        if tag == "interval":
            return ends_from_json(content)
        return {k: _from_json(v) for k, v in content.items()}
    return value


def fingerprint(model: nn.Module, X: Input | None = None, y: Tensor | None = None) -> dict[str, str]:
    """SHA-256 of the weights and of the data: a certificate is about these and no others.

    The weights are the family, its exact settings (γ, μ, relu'(0), …) and every parameter. With a feature
    map, which may be any function, the features of X are included as well.
    """
    weights = hashlib.sha256(type(model).__name__.encode())
    known = isinstance(model, Saved) and not getattr(model, "any_cell", False)
    settings = model.config() if known else repr(model)  # type: ignore[operator]
    weights.update(json.dumps(settings, sort_keys=True).encode())
    for name, value in sorted(model.state_dict().items()):
        _update(weights, name, value)
    prints = {"weights": weights.hexdigest()}
    named = {"X": X, "y": y}
    if isinstance(X, Shard):
        own = {"X": X.rows} | ({} if y is None else {"y": y})
        return prints | {n: X.known.get(n) or digest_of_rows(T, X.whole) for n, T in own.items()}
    feature_map = getattr(model, "feature_map", None)
    if isinstance(X, Tensor) and feature_map is not None:
        with torch.no_grad():
            named["features"] = feature_map(X)
    for name, tensor in named.items():
        if isinstance(tensor, Tensor | Stream):
            digest = hashlib.sha256()
            _update(digest, name, tensor)
            prints[name] = digest.hexdigest()
    return prints


def _update(digest: Any, name: str, tensor: Tensor | Stream) -> None:
    digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
    for part in parts(tensor) if isinstance(tensor, Stream) else (tensor,):
        value = part.detach().cpu().contiguous()
        digest.update(value.reshape(-1).view(torch.uint8).numpy())
