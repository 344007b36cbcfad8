"""Side by side with peers: `python -m bench [names] [--quick]`, and `python -m bench page` for the written
page.

A benchmark is a module with `run(quick=False)` that returns a list of `Row`s (or of dicts of a Row's fields).
It joins by a line in BENCHMARKS. Its docstring stands on the page above its rows. It may have `REASONS`, from
a part of the name of a work (or of its peer) to the reason why its target is missed, which is written only if
it is missed.
"""

BENCHMARKS = {  # name on the command line → module
    "forward": "bench.forward",
    "small": "bench.small",
    "residual": "bench.residual",
    "transformer": "bench.transformer",
    "monotone": "bench.monotone",
    "population": "bench.population",
    "training": "bench.training",
    "tangent": "bench.tangent",
    "linear": "bench.linear",
    "many": "bench.many",
    "convolution": "bench.convolution",
    "fit": "bench.fit",
    "certificate": "bench.certificate",
    "threads": "bench.threads",
}
