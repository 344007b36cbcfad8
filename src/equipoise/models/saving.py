"""A model as one safetensors file: parameters, family and configuration. Nothing is pickled."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

_FORMAT = "equipoise.model.1"


class Saved(nn.Module):
    """What a family needs to be written to a file and read back: `config()`, its constructor's keywords."""

    families: ClassVar[dict[str, type[Saved]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Saved.families[cls.__name__] = cls

    def __setattr__(self, name: str, value: Any) -> None:
        """As of any object: torch would keep a module or parameter aside, past the property of that name."""
        if isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def config(self) -> dict[str, Any]:
        """The keywords that construct this model again, as JSON holds them."""
        raise NotImplementedError

    def save(self, path: str | Path) -> None:
        """Write parameters and configuration to one safetensors file: whole, or not at all.

        What z does not depend on is not kept: which solver finds the equilibria, how their exact gradient is
        solved for, and the failure policy. `load(path, solver=…, gradient=…, on_failure=…)` says them again.
        The tolerance is kept, and so are unrolled steps, SAM and phantom gradients.
        """
        path = Path(path)
        tensors = {name: t.detach().contiguous() for name, t in self.state_dict().items()}
        metadata = {"format": _FORMAT, "family": type(self).__name__, "config": json.dumps(self.config())}
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            save_file(tensors, part, metadata)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu", **overrides: Any) -> Self:
        """The model that `save` wrote. `overrides` are keywords no file can hold, such as a function."""
        model = load(path, device, **overrides)
        if not isinstance(model, cls):
            raise ValueError(f"{path} must hold a {cls.__name__}. Got a {type(model).__name__} instead.")
        return model


def load(path: str | Path, device: torch.device | str = "cpu", **overrides: Any) -> Saved:
    """The model that `save` wrote, of whichever family the file names."""
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} does not exist.")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from None
    if metadata.get("format") != _FORMAT:
        raise ValueError(
            f"{path} must be a model written by model.save (format {_FORMAT!r}). "
            f"Got format {metadata.get('format')!r} instead."
        )
    family = Saved.families.get(metadata["family"])
    if family is None:
        known = ", ".join(sorted(Saved.families))
        raise ValueError(f"{path} holds an unknown family {metadata['family']!r}. Known here: {known}.")
    floating = [t.dtype for t in tensors.values() if t.is_floating_point()]
    config = json.loads(metadata["config"]) | overrides
    model = family(**config, dtype=floating[0] if floating else None, device=device)
    model.load_state_dict(tensors)
    return model
