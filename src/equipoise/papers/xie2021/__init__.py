"""The claims and the experiments of [xie2021]."""
