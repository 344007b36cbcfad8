"""python -m false_words CASES [--start SEED], from the folder `tests`: look for false words, with progress.

Ten lines a run, each with the cases so far by kind and the processor's seconds; every false word is printed
with its seed as it is found, and the exit code is 1 if there was one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from . import false_words


def main() -> int:
    """The exit code."""
    ask = argparse.ArgumentParser(prog="python -m false_words", description=__doc__)
    ask.add_argument("cases", type=int)
    ask.add_argument("--start", type=int, default=0, help="the first seed")
    given = ask.parse_args()
    end, block = given.start + given.cases, max(1, given.cases // 10)
    cases: Counter[str] = Counter()
    said: Counter[str] = Counter()
    false: dict[int, str] = {}
    for first in range(given.start, end, block):
        found = false_words(range(first, min(first + block, end)))
        cases, said, false = cases + found[0], said + found[1], false | found[2]
        for seed, word in found[2].items():
            print(f"FALSE {seed}: {word}", flush=True)
        counts = ", ".join(f"{kind} {said[kind]}/{n}" for kind, n in cases.items())
        seconds = time.process_time()
        print(f"{cases.total()} cases, {len(false)} false, {seconds:.0f} CPU-s, said: {counts}", flush=True)
    return bool(false)


if __name__ == "__main__":
    sys.exit(main())
