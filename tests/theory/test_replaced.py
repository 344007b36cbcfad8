"""Replaced functions of torch, parameters of a class of their own, and calls compiled by hand."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import equipoise as eq
from equipoise.models.altered import altered

F64 = torch.float64
X = torch.randn(3, 4, dtype=F64, generator=torch.Generator().manual_seed(1))
ROOMS = [(F, "linear"), (F, "relu"), (torch, "relu"), (torch.Tensor, "relu")]


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.W, self.U = nn.Linear(4, 4, dtype=F64), nn.Linear(4, 4, dtype=F64)
        self.act = nn.ReLU()
        with torch.no_grad():
            self.W.weight.mul_(0.5 / torch.linalg.matrix_norm(self.W.weight, 2))

    def forward(self, z, x):
        return self.act(self.W(z) + self.U(x))


def cell():
    torch.manual_seed(0)
    return eq.Equilibrium(Cell())


def gaussian():
    generator = torch.Generator().manual_seed(0)
    return eq.GaussianReLU(4, 6, sigma_w2=0.05, dtype=F64, generator=generator)


@pytest.mark.parametrize("build", [cell, gaussian])
@pytest.mark.parametrize(("room", "name"), ROOMS)
def test_nothing_is_proved_where_a_function_of_torch_was_replaced(monkeypatch, build, room, name):
    before = getattr(room, name)
    for wrapped in (lambda *a, **k: 10 * before(*a, **k), functools.partial(before)):
        monkeypatch.setattr(room, name, wrapped)
        found = eq.certify(build(), X)
        assert found.verdict == "hypotheses_fail"
        assert f"{name} was replaced" in found.obstacle
        assert altered(build(), patched=False) == ""
    monkeypatch.undo()
    assert eq.certify(build(), X).proved


def test_functions_of_torch_that_compute_nothing_may_be_replaced(monkeypatch):
    for room, name in ((torch, "load"), (torch, "get_num_threads"), (torch.Tensor, "__repr__")):
        monkeypatch.setattr(room, name, lambda *a, **k: None)
    assert altered(gaussian()) == altered(cell()) == ""


class Loud(torch.Tensor):
    """Computes 10 times what torch does."""

    def __deepcopy__(self, memo):
        return nn.Parameter(self.detach().clone().as_subclass(Loud))

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        return 10 * out if getattr(func, "__name__", "") in ("linear", "matmul") else out


def test_nothing_is_proved_of_parameters_that_compute_by_themselves():
    layer, model = cell(), gaussian()
    layer.cell.W.weight = nn.Parameter(layer.cell.W.weight.detach().as_subclass(Loud))
    model.W = nn.Parameter(model.W.detach().as_subclass(Loud))
    for altered_model, name in ((layer, "weight"), (model, "W")):
        assert f"parameter {name} of a class of its own" in eq.certify(altered_model, X).obstacle


def test_a_compiled_call_is_that_of_its_module():
    layer = cell()
    layer.cell.compile()
    assert eq.certify(layer, X).proved
    layer.cell._compiled_call_impl = lambda z, x: 9 * z
    assert "compiled call" in eq.certify(layer, X).obstacle
