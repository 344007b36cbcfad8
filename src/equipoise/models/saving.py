"""A model as one safetensors file: parameters, family and configuration. Nothing is pickled."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, ClassVar, Self

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..files import Damaged, in_fixed_order, parse_json, write_atomically
from .altered import family_of, seal

_FORMAT = "equipoise.model.1"


class Saved(nn.Module):
    """What a family needs to be written to a file and read back: `config()`, its constructor's keywords."""

    families: ClassVar[dict[str, type[Saved]]] = {}
    settings: ClassVar[tuple[str, ...]] = ()  # keywords of the constructor that are attributes as well
    described: ClassVar[str] = ""  # what repr says of the model; {0.width} stands for its attribute

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        seal(cls)
        known = Saved.families.get(cls.__name__, cls)
        if family_of(known) is not known or family_of(cls) is cls:  # ours keep their names
            Saved.families[cls.__name__] = cls

    def __setattr__(self, name: str, value: Any) -> None:
        """Call the setter of a property, past which torch would store a module or a parameter."""
        if isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def config(self) -> dict[str, Any]:
        """The keywords that construct this model again, as JSON holds them: those of `settings`, and more."""
        if not self.settings:
            raise NotImplementedError(
                f"{type(self).__name__} must have config(), which returns the keywords that construct it "
                f"again: files and certificates identify a model by them."
            )
        values = {name: getattr(self, name) for name in self.settings}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def extra_repr(self) -> str:
        """The equation and the sizes of the model, as its repr shows them."""
        return self.described.format(self)

    def save(self, path: str | Path) -> None:
        """Write parameters and configuration to one safetensors file: whole, or not at all.

        What does not change z is not kept: which solver finds the equilibria, how their exact gradient is
        solved for, and the failure policy. Give them again by `load(path, solver=…, gradient=…,
        on_failure=…)`. The tolerance is kept, and so are unrolled steps, SAM and phantom gradients.
        """
        kind, known = type(self), Saved.families.get(type(self).__name__)
        if known is not kind and known is not None and family_of(known) is known:
            raise ValueError(
                f"a file that names {kind.__name__} holds a {known.__module__}.{kind.__name__}. Got another "
                f"class of that name instead: give yours a name of its own."
            )
        tensors = {name: t.detach().contiguous() for name, t in self.state_dict().items()}
        config = json.dumps(self.config(), sort_keys=True)
        about = {"format": _FORMAT, "family": type(self).__name__, "config": config}
        write_atomically(path, in_fixed_order(safetensors.torch.save(tensors, about)))

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu", **overrides: Any) -> Self:
        """The model that `save` wrote. `overrides` are keywords no file can hold, such as a function."""
        model = load(path, device, **overrides)
        if not isinstance(model, cls):
            raise ValueError(f"{path} must hold a {cls.__name__}. Got a {type(model).__name__} instead.")
        return model


def load(path: str | Path, device: torch.device | str = "cpu", **overrides: Any) -> Saved:
    """The model that `save` wrote, of whichever family the file names.

    A file whose configuration does not fit its tensors is `Damaged`; it is refused before anything larger
    than the file is allocated.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} does not exist.")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            about = file.metadata() or {}
            if about.get("format") != _FORMAT:
                raise ValueError(
                    f"{path} must be a model written by model.save (format {_FORMAT!r}). "
                    f"Got format {about.get('format')!r} instead."
                )
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    except SafetensorError as error:
        raise Damaged(f"{path} is not a safetensors file: {error}") from None
    family = Saved.families.get(about.get("family", ""))
    if family is None:
        known = ", ".join(sorted(name for name in Saved.families if not name.startswith("_")))
        raise Damaged(f"{path} holds an unknown family {about.get('family')!r}. Known here: {known}.")
    config = parse_json(about.get("config", ""), f"the configuration in {path}") | overrides
    floating = [t.dtype for t in tensors.values() if t.is_floating_point()]
    try:
        with _Within(8 * sum(t.numel() for t in tensors.values()) + 10_000):
            model = family(**config, dtype=floating[0] if floating else None, device=device)
        for name, own in model.state_dict().items():
            if name in tensors and tensors[name].is_floating_point() != own.is_floating_point():
                raise RuntimeError(f"{name} holds {tensors[name].dtype} in place of {own.dtype}.")
        model.load_state_dict(tensors)
    except (TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        if overrides or "must be" in str(error):
            raise  # the caller's overrides are wrong, or the family itself says what is missing
        raise Damaged(
            f"{path} is damaged: its configuration is not that of a {family.__name__} with these tensors. "
            f"{error}"
        ) from None
    return model


class _Within(TorchDispatchMode):
    """Refuses to make tensors of more entries than `most` in all, before they are made."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.left = most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__.startswith(_MAKERS):
            given = dict(zip((a.name for a in func._schema.arguments), args, strict=False))
            shape = given.get("size", [given.get("n", 0), given.get("m", given.get("n", 0))])
            self.left -= math.prod(shape)
            if self.left < 0:
                raise RuntimeError(f"A tensor of shape {tuple(shape)} is larger than the whole file.")
        return func(*args, **(kwargs or {}))


_MAKERS = ("empty", "new_", "rand", "zeros", "ones", "full", "normal", "eye")
