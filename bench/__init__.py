"""Side by side with peers: `python -m bench [names] [--quick]`.

A benchmark is a module with `run(quick=False)` that returns a list of `Row`s (or of dicts of a Row's fields).
It joins by a line in BENCHMARKS.
"""

BENCHMARKS = {  # name on the command line → module
    "forward": "bench.forward",
    "small": "bench.small",
    "monotone": "bench.monotone",
    "population": "bench.population",
    "training": "bench.training",
    "tangent": "bench.tangent",
    "linear": "bench.linear",
    "many": "bench.many",
    "convolution": "bench.convolution",
    "fit": "bench.fit",
    "certificate": "bench.certificate",
}
