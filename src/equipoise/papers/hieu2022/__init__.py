"""The claims and the experiments of [hieu2022]."""
