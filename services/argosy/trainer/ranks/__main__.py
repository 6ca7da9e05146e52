"""One rank of a trainer as a program; started by rank 0 only."""

from __future__ import annotations

import os
import sys

from argosy.trainer.ranks.worker import main

if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # nothing is left to do, and taking torch apart takes seconds
