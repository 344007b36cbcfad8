"""The claims and the experiments of [kawaguchi2021]."""
