"""One rank of a trainer as a program; started by rank 0 only."""

from __future__ import annotations

import sys

from argosy.trainer.ranks.worker import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
