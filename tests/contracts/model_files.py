"""Of every affine family: copies, files, and what is refused in words. A part of `ModelContract`."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import equipoise as eq
from equipoise.models import saving
from equipoise.models.affine import AffineFamily
from equipoise.models.saving import load

TIGHT = eq.Stop(rtol=1e-14, atol=1e-15, max_steps=5000)
D_IN, N = 4, 5


class FilesContract:
    """What needs nothing of a family but that it can be built."""

    # -- copies and files --------------------------------------------------------------------------------

    def test_copies_and_pickles_give_the_same_answers_without_the_records(self):
        model, X = self.build(), self.data()
        y = model(X)
        y.sum().backward()
        if self.iterates:
            assert model.last.forward.converged.all()
            assert model.last.adjoint.converged.all()
            assert not model.last.forward.value.requires_grad
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert twin.last.forward is None
            assert torch.equal(twin(X), y)
            assert all(a is not b for a, b in zip(twin.parameters(), model.parameters(), strict=True))
        assert model.state_dict().keys() == dict(model.named_parameters()).keys()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_file_holds_the_model_whole(self, tmp_path, dtype):
        model, X = self.build(2, dtype=dtype), self.data(dtype=dtype)
        path = tmp_path / "model.safetensors"
        model.save(path)
        assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
        for read in (load, AffineFamily.load, self.family.load):
            twin = read(path)
            assert type(twin) is type(model)
            assert twin.config() == model.config()
            assert torch.equal(twin(X), model(X))
        assert b"pickle" not in path.read_bytes()

    def test_files_that_are_no_such_model_are_refused_by_name(self, tmp_path, monkeypatch):
        from safetensors.torch import save_file

        path = tmp_path / "model.safetensors"
        self.build().save(path)
        other = type("Other", (AffineFamily,), {})
        with pytest.raises(ValueError, match=rf"must hold a Other\. Got a {self.family.__name__}"):
            other.load(path)
        monkeypatch.delitem(saving.Saved.families, self.family.__name__)
        with pytest.raises(ValueError, match=f"unknown family '{self.family.__name__}'. Known here: "):
            load(path)
        save_file({"W": torch.zeros(2)}, path)
        with pytest.raises(ValueError, match=r"written by model\.save .* Got format None"):
            load(path)
        path.write_bytes(b"not a tensor in sight")
        with pytest.raises(ValueError, match="is not a safetensors file"):
            load(path)
        with pytest.raises(FileNotFoundError, match=r"absent\.safetensors"):
            load(tmp_path / "absent.safetensors")

    def test_a_failed_write_leaves_the_old_file(self, tmp_path, monkeypatch):
        path = tmp_path / "model.safetensors"
        self.build().save(path)
        before = path.read_bytes()

        def broken(*_):
            raise OSError(28, "disk full")

        monkeypatch.setattr("os.replace", broken)
        with pytest.raises(OSError, match="disk full"):
            self.build(seed=1).save(path)
        assert path.read_bytes() == before
        assert len(list(tmp_path.iterdir())) == 1

    # -- words -------------------------------------------------------------------------------------------

    def test_what_cannot_be_used_is_refused_in_words(self):
        model, X, d = self.build(), self.data(), self.inputs
        with pytest.raises(
            ValueError, match=rf"X must be \(N, {d}\), one row for each sample\. Got shape \(5, {d - 1}\)"
        ):
            model(X[:, 1:])
        with pytest.raises(ValueError, match=r"A single sample is X\[None\]"):
            model(X[0])
        with pytest.raises(TypeError, match="X must be a tensor"):
            model(X.tolist())
        with pytest.raises(ValueError, match=r"X must be torch\.float64 .* Got torch\.float32"):
            model(X.float())
        bad = X.clone()
        bad[3, 0], bad[1, 1] = torch.nan, torch.inf
        for call in (model, model.equilibrium, model.solve):
            with pytest.raises(ValueError, match="NaN or infinity in row 1, row 3"):
                call(bad)
        with pytest.raises(ValueError, match=r"start must be \(5, 6\), 5 rows like X\. Got \(4, 6\)"):
            model.solve(X, start=torch.zeros(4, model.width, dtype=X.dtype))
        Z = model.solve(X).value
        with pytest.raises(ValueError, match=r"Z must be \(5, 6\), 5 rows like X\. Got \(4, 6\)"):
            model.masks(Z[:4], X)
        V = model.adjoint(Z, X)
        with pytest.raises(ValueError, match=r"R must be \(5.* like ŷ\. Got shape \(4,\)"):
            model.pullback(V, torch.ones(4, dtype=X.dtype), Z, X)
        for options in ({"outputs": 0}, {"outputs": 2.0}, {"outputs": True}):
            with pytest.raises(ValueError, match="outputs must be an integer ≥ 1"):
                self.build(**options)
        with pytest.raises(TypeError):
            self.build(wdith=3)
        with pytest.raises(TypeError):
            model(X, tolerance=1e-3)

    def test_a_solve_that_fails_names_rows_and_says_whether_the_weights_are_to_blame(self):
        if not self.iterates:
            pytest.skip("closed form")
        model, X = self.build(), self.data()
        hasty = eq.Stop(rtol=1e-13, max_steps=1)
        assert not model.solve(X, stop=hasty, solver=eq.Picard()).converged.any()
        with pytest.raises(
            eq.EquilibriumError, match=r"row 0: max_steps[\s\S]*weights are well-posed"
        ) as caught:
            model(X, stop=hasty, solver=eq.Picard())
        assert caught.value.solution.failed_rows == [0, 1, 2, 3, 4]
        assert model.last.forward is caught.value.solution

    def test_an_adjoint_that_fails_raises_and_is_never_a_gradient(self):
        if not self.iterates:
            pytest.skip("closed form")
        model, X = self.build(), self.data()
        Z = model.solve(X, stop=TIGHT).value
        hasty = eq.Stop(rtol=1e-13, max_steps=1)
        y = model(X, start=Z, stop=hasty, solver=eq.Picard())
        with pytest.raises(eq.EquilibriumError, match=r"adjoint solve: .*\n  row 0: max_steps"):
            y.sum().backward()
        assert all(model.get_parameter(name).grad is None for name in model.hidden_names)
        with pytest.raises(eq.EquilibriumError, match="adjoint solve"):
            model.adjoint(Z, X, stop=hasty, solver=eq.Picard())

    def test_the_repr_tells_the_equation(self):
        assert self.equation in repr(self.build(3))
        assert "k=3" in repr(self.build(3))
        assert self.family.__doc__.startswith(self.equation)
