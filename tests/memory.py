"""How much memory autograd holds on to."""

import weakref

import torch


class _Saved:
    """A tensor that autograd keeps, for as long as it does."""

    def __init__(self, tensor):
        self.tensor = tensor.detach()


def sizes(tensors) -> dict[int, int]:
    """The bytes behind tensors, by address: each memory once, however many tensors share it."""
    storages = [t.untyped_storage() for t in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def stored_bytes(run) -> int:
    """Bytes that autograd keeps for the output of `run`: of graphs dropped on the way nothing is left."""
    kept = weakref.WeakSet()

    def pack(t):
        kept.add(saved := _Saved(t))
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        out = run()
    assert out.requires_grad
    return sum(sizes(saved.tensor for saved in kept).values())
