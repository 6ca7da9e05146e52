"""Limits of a program are limits of all its processes together, and only of what is theirs (cases G5, G6)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from argosy.types.records import Scored

Run = Callable[..., Scored]
CHURN = """
import os, signal, time
{ignore}
end = time.time() + 20
while time.time() < end:
    try:
        if os.fork() == 0:
            end = time.perf_counter() + 0.003
            while time.perf_counter() < end: pass
            os._exit(0)
    except OSError:
        try: os.waitpid(-1, os.WNOHANG)
        except OSError: pass
print(3)
"""
"""All the time as many short-lived children as there may be, each too short to be looked at."""
IGNORE = {
    "SIG_IGN": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "SA_NOCLDWAIT": (  # struct sigaction: handler, mask, flags, restorer
        "import ctypes, struct\n"
        "action = struct.pack('Q128xiiQ', 0, 2, 0, 0)\n"
        "if ctypes.CDLL(None).sigaction(17, action, None): raise PermissionError('sigaction')"
    ),
}


@pytest.mark.parametrize("how", IGNORE)
def test_g5_no_program_can_have_the_time_of_its_children_forgotten(run: Run, how: str) -> None:
    """The kernel adds a child's time to its parent's unless the parent ignores SIGCHLD."""
    outcome = run(CHURN.format(ignore=IGNORE[how]), {"inputs": [""], "outputs": ["3"]})
    assert (outcome.score, outcome.parts["reason"]) == (0.0, "runtime_error")
    assert "PermissionError" in str(outcome.parts["note"])


@pytest.mark.parametrize("language", ["python", "bash"])
def test_g5_short_lived_children_take_the_time_of_all(run: Run, language: str) -> None:
    """Where they must be allowed to ignore it, waiting for each other is no excuse."""
    code = CHURN.format(ignore=f"try: {IGNORE['SIG_IGN']}\nexcept PermissionError: pass")
    if language == "bash":
        code = f"exec python3 - <<'END'\n{code}\nEND"
    tests = {"inputs": [""], "outputs": ["3"], "language": language}
    start = time.monotonic()
    outcome = run(
        f"```{language}\n{code}\n```", tests, languages=("python", "bash"), test_timeout_s=1.0, sample_timeout_s=1.0
    )
    assert (outcome.score, outcome.parts["reason"]) == (0.0, "timeout")
    if language == "python":
        return  # by processor time, however long that takes on a busy machine
    assert time.monotonic() - start < 60, "1 s was allowed"  # a hang guard


def test_g6_memory_that_children_share_counts_once(run: Run) -> None:
    code = """
import os, time
x = bytearray(b'x') * (200 << 20)
for _ in range(6):
    if os.fork() == 0:
        {child}
        time.sleep(0.4)
        os._exit(0)
for _ in range(6): os.wait()
print(3)
"""
    tests = {"inputs": [""], "outputs": ["3"]}
    limits = {"memory_bytes": 512 * 1024**2, "test_timeout_s": 20, "sample_timeout_s": 20}
    outcome = run(code.format(child="pass"), tests, **limits)
    assert outcome.score == 1.0, outcome
    assert run(code.format(child="x[::4096] = b'y' * len(x[::4096])"), tests, **limits).parts["reason"] == "memory"
