"""The claims and the experiments of [gao2022]."""
