"""python -m bench.scale: what a certified training would take on a cluster, in flops, bytes and hours.

Nothing is measured here. The sizes of the reductions are those that `tests/train/test_scale_plan.py` counts
in processes that train together; the speed of the machines and the number of solver steps are assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """A GaussianReLU of width m on N rows of d numbers with k outputs, trained by R ranks."""

    N: float = 1e9
    m: float = 1e4
    d: float = 100
    k: float = 1
    ranks: int = 64
    batch: int = 65_536
    epochs: int = 12
    checks: int = 5  # the start among them
    forward: int = 10  # evaluations of a solve while training, and of its adjoint
    tight: int = 25  # evaluations of a solve that something is proved of
    single: float = 2e13  # float32 operations per second and rank
    double: float = 1e13  # float64 operations per second and rank
    network: float = 2.5e10  # bytes per second and rank
    disk: float = 2e9  # bytes per second and rank
    passes: int = 8  # over the features of a check, to solve for the readout and to enclose F there

    @property
    def parameters(self) -> float:
        """W, U and a."""
        return self.m**2 + self.m * self.d + self.m * self.k

    @property
    def step_bytes(self) -> float:
        """What each rank puts into the one reduction of a step: every gradient, in float64."""
        return 8 * self.parameters

    @property
    def training_flops(self) -> float:
        """Solves, adjoints and gradients of all epochs: 2 m² for each row and evaluation."""
        return self.epochs * self.N * 2 * self.m**2 * (2 * self.forward + 1)

    @property
    def check_flops(self) -> float:
        """Tight solves and ZᵀZ, at every check."""
        return self.checks * self.N * 2 * self.m**2 * (self.tight + 1)

    @property
    def steps(self) -> float:
        """Steps of all epochs."""
        return self.epochs * -(-self.N // self.batch)

    @property
    def feature_bytes(self) -> float:
        """What each rank holds at a check, on its disk: every feature, as two numbers of float32."""
        return 8 * self.N * self.m / self.ranks

    def hours(self) -> dict[str, float]:
        """By what they are spent on; a ring sends each number about twice."""
        return {
            "training": self.training_flops / (self.ranks * self.single) / 3600,
            "checks": self.check_flops / (self.ranks * self.double) / 3600,
            "features": self.checks * (1 + self.passes) * self.feature_bytes / self.disk / 3600,
            "reductions": 2 * self.steps * self.step_bytes / self.network / 3600,
        }

    def lines(self) -> list[str]:
        """The plan as the rows of a table."""
        hours, each = self.hours(), f"{self.step_bytes:.2g} bytes each"
        return [
            f"| training | {self.training_flops:.2g} flops | {hours['training']:.1f} h |",
            f"| {self.checks} checks | {self.check_flops:.2g} flops | {hours['checks']:.1f} h |",
            f"| features on a rank's disk | {self.feature_bytes:.2g} bytes | {hours['features']:.1f} h |",
            f"| {self.steps:.3g} reductions | {each} | {hours['reductions']:.1f} h |",
            f"| rows on a rank | {4 * self.N * self.d / self.ranks:.2g} bytes | |",
        ]


if __name__ == "__main__":
    print("\n".join(Plan().lines()))
