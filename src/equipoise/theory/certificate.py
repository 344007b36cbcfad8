"""Certificate: what a theorem guarantees about this network on this data, and what that rests on."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from .. import __version__
from .claim import Claim, ends_from_json, ends_to_json

Verdict = Literal["proved", "hypotheses_fail", "inconclusive"]
Kind = Literal["flow", "descent", "static"]
FORMAT = 1

FLOAT64_TIER = "IEEE float64, round to nearest, conventional dot products; every bound rounded outward"
EXACT_GRADIENTS = "the theorem speaks of exact gradients; their measured error stands beside the run"


@dataclass(frozen=True)
class Certificate:
    """The verdict of a theorem with the two sides of every claim it rests on.

    `verdict` is "proved" only if every claim holds for certain; "hypotheses_fail" if one is certainly
    violated; "inconclusive" otherwise, and always where a number is not finite.
    """

    theorem: str
    claims: tuple[Claim, ...]
    kind: Kind = "static"
    promise: str = ""  # the conclusion, in words, when proved
    hypotheses: tuple[str, ...] = ()  # what is assumed and not checked here
    obstacle: str = ""  # why no claim could be formed at all (NaN, m < N, wrong loss …)
    exponent: float | None = None  # flow: exp(−exponent·t); descent: (1 − step·exponent)^k
    max_step_size: float | None = None  # exclusive
    step_sizes: Mapping[str, float] = field(default_factory=dict)  # {"readout": …, "hidden": …}
    factor: float | None = None  # L(k+1) ≤ factor·L(k) at the certified steps
    floor: float = 0.0  # L(k)/L(0) below which rounding decides
    loss: str = "half_square"
    movement: float | None = None  # certified bound of ‖Z − Z(0)‖_F / ‖Z(0)‖_F
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # of the theorem, to certify again
    tier: str = "float64"
    fingerprint: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of weights and data
    version: str = __version__

    # -- what it says ---------------------------------------------------------------------------------------

    @property
    def verdict(self) -> Verdict:
        counted = [c for c in self.claims if not c.printed]
        if self.obstacle or not counted:
            return "hypotheses_fail" if self.obstacle else "inconclusive"
        if all(c.holds for c in counted):
            return "proved"
        return "hypotheses_fail" if any(c.refuted for c in counted) else "inconclusive"

    @property
    def proved(self) -> bool:
        return self.verdict == "proved"

    @property
    def step_size(self) -> float | None:
        """.999 of the largest certified step."""
        return None if self.max_step_size is None else 0.999 * self.max_step_size

    def bound(self, k: float, step_size: float | None = None) -> float:
        """The promised L(k)/L(0) after k steps (or at time k of a flow); ∞ where nothing is proved.

        Of the gap to the optimal loss for kawaguchi2021. Never below `floor`.
        """
        if not self.proved:
            return math.inf
        if k < 0:
            raise ValueError(f"k must be ≥ 0. Got {k} instead.")
        if self.kind == "flow":
            assert self.exponent is not None
            promised = math.exp(-self.exponent * k)
        elif self.kind == "descent":
            promised = self._factor(step_size) ** k
        else:
            raise ValueError(f"{self.theorem} promises no rate: it is about the network as it stands.")
        return max(promised, self.floor)

    def _factor(self, step_size: float | None) -> float:
        if step_size is None and self.factor is not None:
            return self.factor
        step = self.step_size if step_size is None else step_size
        if self.exponent is None or step is None or self.max_step_size is None:
            raise ValueError(
                f"{self.theorem} promises its rate only at its own step sizes, {dict(self.step_sizes)}."
            )
        if not 0 < step < self.max_step_size:
            raise ValueError(f"step_size must lie in (0, {self.max_step_size:.4g}). Got {step:.4g} instead.")
        return 1 - step * self.exponent

    def claim(self, name: str) -> Claim:
        """The (corrected) claim of that label."""
        for claim in self.claims:
            if claim.name == name and not claim.printed:
                return claim
        raise KeyError(f"{self.theorem} has no claim {name!r}; it has {[c.name for c in self.claims]}.")

    def __getitem__(self, name: str) -> Claim:
        return self.claim(name)

    # -- to and from a file ---------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
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
            "numbers": {name: _to_json(getattr(self, name)) for name in _NUMBERS},
            "step_sizes": _to_json(dict(self.step_sizes)),
            "loss": self.loss,
            "constants": _to_json(dict(self.constants)),
            "options": _to_json(dict(self.options)),
            "fingerprint": dict(self.fingerprint),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Certificate:
        if data.get("format") != FORMAT:
            raise ValueError(
                f"a certificate of format {FORMAT} is required. Got {data.get('format')!r} instead."
            )
        numbers = {name: _from_json(value) for name, value in data["numbers"].items()}
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
            **numbers,
        )
        if certificate.verdict != data["verdict"]:
            raise ValueError(
                f"the file says {data['verdict']!r}, its claims say {certificate.verdict!r}: it was altered."
            )
        return certificate

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write JSON, atomically."""
        target = Path(path)
        with tempfile.NamedTemporaryFile(
            "w", dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as file:
            json.dump(self.to_dict(), file, indent=1, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, target)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Certificate:
        """Read JSON. Every claim is decided again from its numbers; a file that disagrees is refused."""
        try:
            data = json.loads(Path(path).read_text())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not a certificate: {error}") from None
        return cls.from_dict(data)

    # -- in words -------------------------------------------------------------------------------------------

    def explain(self, measured_movement: float | None = None) -> str:
        """What is proved, what it rests on, what failed by how much, and what to change."""
        from .explain import explain

        return explain(self, measured_movement)

    def __str__(self) -> str:
        from .explain import table

        return table(self)


_NUMBERS = ("exponent", "max_step_size", "factor", "floor", "movement")


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


def fingerprint(model: nn.Module, X: Tensor | None = None, y: Tensor | None = None) -> dict[str, str]:
    """SHA-256 of the weights and of the data: a certificate is about these and no others."""
    weights = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        _update(weights, name, value)
    weights.update(repr(model).encode())
    prints = {"weights": weights.hexdigest()}
    for name, tensor in (("X", X), ("y", y)):
        if tensor is not None:
            digest = hashlib.sha256()
            _update(digest, name, tensor)
            prints[name] = digest.hexdigest()
    return prints


def _update(digest: Any, name: str, tensor: Tensor) -> None:
    value = tensor.detach().cpu().contiguous()
    digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
    digest.update(np.ascontiguousarray(value.view(torch.uint8) if value.numel() else value).tobytes())
