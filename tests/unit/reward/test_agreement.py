"""The verifiers agree with the independent grader of benchmarks/reward_agreement.py, on a few pairs of each family."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "reward_agreement.py"


def test_no_wrong_answer_is_paid_and_no_right_one_is_lost() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--pairs", "8", "--seed", "5"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = next(line for line in done.stdout.splitlines() if line.startswith("| **all**"))
    pairs, paid, unpaid, *disagreements = (int(cell) for cell in last.split("|")[2:8])
    assert pairs == paid + unpaid
    assert pairs > 1000
    assert disagreements == [0, 0, 0]
