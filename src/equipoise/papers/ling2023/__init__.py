"""The claims and the experiments of [ling2023]."""
