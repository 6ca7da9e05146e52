"""Cases G4 to G9 through the real sandbox, and G11 where it is down."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from argosy.reward.verifiers.code import CodeVerifier
from argosy.sandbox.options import SandboxError, SandboxUnavailableError
from argosy.sandbox.runner import Sandbox
from argosy.types.records import Failed, Scored

Run = Callable[..., Scored]
MakeVerifier = Callable[..., CodeVerifier]
ADD = {"inputs": ["1 2\n", "5 6\n"], "outputs": ["3\n", "11\n"]}
CALL = {"fn_name": "add", "inputs": [[1, 2], [5, 6]], "outputs": [[3], [11]]}
RIGHT = "a, b = map(int, input().split())\nprint(a + b)"


def marked(*marks: str) -> list[bytes]:
    """Command lines of live processes with one of the marks in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes()
            found += [line] if any(mark.encode() in line for mark in marks) else []
    return found


def reason(outcome: Scored) -> str:
    return str(outcome.parts["reason"])


@pytest.mark.parametrize(
    "code",
    [
        "print('x' * 300_000)",
        "import sys\nfor _ in range(50): sys.stderr.write('e' * 100_000)\nprint('x' * 300_000)",
        "import sys\nsys.stdin.read()\nprint('x' * 300_000)",
    ],
)
def test_g4_large_output_passes(run: Run, code: str) -> None:
    assert run(code, {"inputs": ["1" * 300_000], "outputs": ["x" * 300_000]}).score == 1.0


def test_g4_large_input_that_is_not_read(run: Run) -> None:
    assert run("print(1)", {"inputs": ["1" * 5_000_000], "outputs": ["1"]}).score == 1.0


def test_g4_endless_output_is_ended_at_the_cap(run: Run) -> None:
    start = time.monotonic()
    outcome = run("while True: print('x' * 1000)", ADD, output_bytes=300_000, test_timeout_s=60, sample_timeout_s=60)
    assert (outcome.score, reason(outcome)) == (0.0, "output_limit")
    assert time.monotonic() - start < 30, "the cap, not the time, should have ended it"


STAYERS = (
    "import subprocess\nsubprocess.Popen(['/bin/sleep', 'MARK'], start_new_session=True)",
    "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(300)\n os._exit(0)",
    "import signal, os, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nif os.fork() == 0: time.sleep(300)",
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(300)",
)


def test_g5_nothing_is_left_after_100_that_want_to_stay(make_verifier: MakeVerifier) -> None:
    """Forks of ours are known by the size of /tmp in the keeper's command line, `sleep` by its argument."""
    tmp_bytes = 2 * 1024**2 + random.randrange(1_000_000)
    marks = (f"\0{tmp_bytes}\0", f"300.{tmp_bytes}")
    verifier = make_verifier(test_timeout_s=0.2, sample_timeout_s=0.2, tmp_bytes=tmp_bytes)
    for index in range(100):
        code = STAYERS[index % 3].replace("MARK", marks[1]) if index % 10 else STAYERS[3]
        outcome = verifier.verify(f"```python\n{code}\n```", ADD, {})
        assert isinstance(outcome, Scored), outcome
        assert outcome.score == 0
    assert 1 <= len(marked(*marks)) <= 3, "the keeper, and the two processes of the cell that waits for the next sample"
    verifier.close()
    end = time.monotonic() + 30
    while marked(*marks) and time.monotonic() < end:
        time.sleep(0.02)
    assert not marked(*marks)


HOSTILE = {
    "reads the parent's environment": "print(open('/proc/1/environ').read(), open('/proc/2/environ').read())",
    "forks 1000 times": "import os, time\nfor _ in range(1000):\n if os.fork() == 0: time.sleep(100)",
    "takes 4 GB": "x = bytearray(4 << 30)\nprint(3)",
    "opens 10000 files": "f = [open(f'/tmp/{i}', 'w') for i in range(10000)]\nprint(3)",
    "kills its parent": "import os\nos.kill(os.getppid(), 9)\nos.kill(-1, 9)",
    "ends before the tests run": "import os\nos._exit(0)",
    "has its children take memory": (
        "import os, time\nfor _ in range(8):\n if os.fork() == 0:\n"
        "  x = bytearray(b'x') * (200 << 20)\n  time.sleep(9)\ntime.sleep(9)"
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_g6_hostile_programs_score_0_and_the_next_is_normal(run: Run, name: str) -> None:
    bounds = {"test_timeout_s": 2.0, "memory_bytes": 512 * 1024**2}
    assert run(HOSTILE[name], {"inputs": ["1 2"], "outputs": ["3 0"]}, **bounds).score == 0
    assert run(RIGHT, ADD, **bounds).score == 1.0


def test_g6_children_share_one_limit_of_memory(run: Run) -> None:
    code = HOSTILE["has its children take memory"]
    assert reason(run(code, ADD, memory_bytes=512 * 1024**2, test_timeout_s=20, sample_timeout_s=20)) == "memory"


EQUAL = """
class Equal(BASE):
    def __eq__(self, other): return True
    def __sub__(self, other): return 0
    def __abs__(self): return 0
    def __hash__(self): return 1
def add(a, b): return Equal()
"""


@pytest.mark.parametrize("base", ["object", "int", "float", "str", "list", "dict"])
def test_g7_objects_that_equal_everything(run: Run, base: str) -> None:
    outcome = run(EQUAL.replace("BASE", base), CALL)
    assert (outcome.score, reason(outcome)) == (0.0, "wrong_answer")


@pytest.mark.parametrize(
    "patch",
    [
        "import builtins\nbuiltins.abs = lambda x: 0\nbuiltins.all = builtins.any = lambda x: True",
        "import argosy.reward.programs.compare as c\nc.same_value = lambda a, b: True",
        "import gc\nfor f in gc.get_objects():\n"
        " if getattr(f, '__name__', '') == 'encode' and hasattr(f, '__code__'):\n"
        "  f.__code__ = (lambda v, d=0: b't').__code__",
        "import os\nfor n in range(9): os.write(4, (1).to_bytes(4, 'big') + bytes(8) + b'Vt')",
        "import sys\nsys.settrace(lambda f, e, a: f.f_locals.update(data=b'i3;', kind=b'V'))",
    ],
)
def test_g7_patched_helpers_and_forged_claims(run: Run, patch: str) -> None:
    assert run(f"{patch}\ndef add(a, b): return 0", CALL).score == 0


def test_g7_a_forged_claim_with_the_right_nonce_must_still_be_the_answer(run: Run) -> None:
    """What the program writes itself is only what it could have returned; and then it is out of step."""
    code = """
import os, sys
def add(a, b):
    nonce = sys._getframe(1).f_locals["nonce"]
    os.write(4, (3).to_bytes(4, "big") + nonce + b"V" + b"i3;")
    return 0
"""
    outcome = run(code, {"fn_name": "add", "inputs": [[1, 2], [1, 2], [1, 2]], "outputs": [3, 3, 3]})
    assert outcome.score == pytest.approx(1 / 3)
    assert reason(outcome) == "protocol"


def test_a_broken_test_is_one_test_and_not_the_sample(run: Run) -> None:
    """Partial credit: after a crash the next test is run in a new process."""
    code = "import os\ndef add(a, b):\n    if a == 1: os._exit(0)\n    return a + b"
    outcome = run(code, CALL)
    assert (outcome.score, outcome.parts["acc"], reason(outcome)) == (0.5, 0.0, "runtime_error")
    assert run(code, CALL, credit="all").score == 0.0
    assert run("def add(a, b): return a + b", CALL, credit="all").score == 1.0


BLOCKS: dict[str, tuple[str, float]] = {
    "one": (f"Here:\n```python\n{RIGHT}\n```\nDone.", 1.0),
    "draft, then final": (f"```python\nprint(0)\n```\nBetter:\n```python\n{RIGHT}\n```", 1.0),
    "final, then a run of it": (
        f"```python\n{RIGHT}\n```\nExample:\n```text\n1 2\n```\n```\n3\n```\n```bash\npython x\n```",
        1.0,
    ),
    "inside thinking": (f"<think>```python\n{RIGHT}\n```</think>It is easy.", 0.0),
    "thinking that never ends": (f"<think>\n```python\n{RIGHT}\n```", 0.0),
    "after thinking": (f"<think>```python\nprint(0)\n```</think>```text\n```\n```py\n{RIGHT}\n```", 1.0),
    "unclosed": (f"```python\n{RIGHT}", 1.0),
    "no fence": (RIGHT, 0.0),
    "no tag": (f"```\n{RIGHT}\n```", 1.0),
    "Python3": (f"```Python3\n{RIGHT}\n```", 1.0),
    "tildes": (f"~~~python\n{RIGHT}\n~~~", 1.0),
    "fences in a string": (f"````python\nx = '''\n```\n'''\n{RIGHT}\n````", 1.0),
    "indented": ("1. So:\n   ```python\n   a, b = map(int, input().split())\n   print(a + b)\n   ```", 1.0),
    "another language": ("```java\nclass A {}\n```", 0.0),
    "empty": ("```python\n\n```", 0.0),
    "nothing": ("", 0.0),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_g9_which_block(make_verifier: MakeVerifier, name: str) -> None:
    response, score = BLOCKS[name]
    outcome = make_verifier().verify(response, ADD, {})
    assert isinstance(outcome, Scored), outcome
    assert outcome.score == score
    if score == 0:
        assert outcome.parts["reason"] == "no_code"


def test_g9_the_solution_then_a_demonstration(run: Run) -> None:
    """For calls, the last block that defines the function."""
    solution, demonstration = "def add(a, b):\n    return a + b", "print(add(1, 2))"
    assert run(f"```python\n{solution}\n```\nUse:\n```python\n{demonstration}\n```", CALL).score == 1.0


def test_g11_no_isolation_is_a_failure_that_says_why(
    make_verifier: MakeVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: Sandbox) -> None:
        raise SandboxUnavailableError("programs can't be isolated here: namespaces: no")

    verifier = make_verifier()
    monkeypatch.setattr(Sandbox, "start", refuse)
    verifier.prepare()
    outcome = verifier.verify(f"```python\n{RIGHT}\n```", ADD, {})
    assert outcome == Failed("sandbox_unavailable", "programs can't be isolated here: namespaces: no")


@pytest.mark.parametrize("down", [1, 2])
def test_g11_a_sandbox_that_is_down(make_verifier: MakeVerifier, monkeypatch: pytest.MonkeyPatch, down: int) -> None:
    """For every sample, or for each second one: those are Failed, the others have their scores."""
    real, sample = Sandbox.run, 0

    def run(self: Sandbox, *arguments: Any, **rest: Any) -> Any:
        if sample % down == 0:
            raise SandboxError("it is down")
        return real(self, *arguments, **rest)

    verifier = make_verifier()
    monkeypatch.setattr(Sandbox, "run", run)
    outcomes = []
    for sample in range(4):  # noqa: B007 -- `run` looks at it
        outcomes.append(verifier.verify(f"```python\n{RIGHT}\n```", ADD, {}))
    expected = [Failed("sandbox_failed", "it is down") if index % down == 0 else 1.0 for index in range(4)]
    assert [outcome.score if isinstance(outcome, Scored) else outcome for outcome in outcomes] == expected


def test_a_job_knows_nothing_of_another(run: Run) -> None:
    code = "import os\nprint(os.getpid(), len(os.listdir('/proc')), os.listdir('/tmp'))\nopen('/tmp/left', 'w')"
    assert run(code, {"inputs": [""] * 3, "outputs": ["2 4 []"] * 3}).score == 1.0
