"""Cases G5 and G6 at once: hostile programs through the real sandbox, honest ones between and beside them."""

from __future__ import annotations

import glob
import os
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from argosy.reward.verifiers.code import CodeVerifier
from argosy.sandbox.options import SandboxOptions
from argosy.types.records import Failed, Scored
from support.hostile import MARK, REASONS, programs, without_order

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

OPTIONS = SandboxOptions(
    test_timeout_s=1.0, sample_timeout_s=2.0, memory_bytes=256 * 1024**2, tmp_bytes=8 * 1024**2, output_bytes=1024**2
)
WHERE_MARKS_WOULD_BE = (
    "/",
    "/tmp",
    "/var/tmp",
    "/dev",
    "/dev/shm",
    "/usr/lib",
    "/etc",
    "/root",
    "/home",
    "/run",
    "/work",
)
LONGEST_S = 60.0
"""On the clock, of a program that may use 2 s: what is counted is less the waiting on a busy machine."""


SORTING = {source for _, source in without_order()}


def verifier() -> CodeVerifier:
    made = CodeVerifier()
    made.configure(OPTIONS, timeout_s=120)
    return made


def fenced(code: str) -> str:
    return f"```python\n{code}```\n"


def hidden(source: str) -> dict[str, object]:
    """Tests with an answer that nobody can guess."""
    if source in SORTING:
        numbers = random.sample(range(10**6), 40)
        assert numbers != sorted(numbers)
        return {"fn_name": "solve", "inputs": [[numbers]], "outputs": [sorted(numbers)]}
    answer = f"hidden {secrets.token_hex(16)}"
    if "def solve" in source:
        return {"fn_name": "solve", "inputs": [[1], [2]], "outputs": [[answer], [answer]]}
    return {"inputs": ["1\n"], "outputs": [answer]}


def honest(chosen: CodeVerifier) -> None:
    """A right and a wrong program with the verdicts that they must have, whatever happens around them."""
    number = random.randrange(10**9)
    tests = {"inputs": [f"{number}\n", "5\n"], "outputs": [str(number + 1), "6"]}
    right = "import os\nassert os.listdir('.') == [] and os.getpid() == 2\nprint(int(input()) + 1)\n"
    assert_score(chosen, right, tests, 1.0)
    assert_score(chosen, "print(6)\n", tests, 0.5)
    calls = {"fn_name": "f", "inputs": [[number], [[1, 2]]], "outputs": [[[number]], [[[1, 2]]]]}
    assert_score(chosen, "def f(x): return [x]\n", calls, 1.0)


def assert_score(chosen: CodeVerifier, code: str, tests: Mapping[str, object], score: float) -> None:
    outcome = chosen.verify(fenced(code), tests, {})
    assert isinstance(outcome, Scored), outcome
    assert outcome.score == score, outcome


def foreign_processes() -> set[int]:
    """Processes in another pid namespace than ours: what is in a sandbox, or has left one. Not those of a sandbox that
    another program, such as a test beside this one, holds."""
    found = set()
    for name in os.listdir("/proc"):
        try:
            if name.isdecimal() and not _in_our_namespace(int(name)) and not _held_by_others(int(name)):
                found.add(int(name))
        except (OSError, psutil.NoSuchProcess):
            continue
    return found


def _in_our_namespace(pid: int) -> bool:
    return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")


def _held_by_others(pid: int) -> bool:
    outside = [above.pid for above in psutil.Process(pid).parents() if above.pid != 1 and _in_our_namespace(above.pid)]
    return bool(outside) and os.getpid() not in outside


def listening() -> set[str]:
    lines = [line for kind in ("tcp", "tcp6") for line in Path("/proc/net", kind).read_text().splitlines()[1:]]
    return {line.split()[1] for line in lines if line.split()[3] == "0A"}


@pytest.fixture
def nothing_left() -> Iterator[None]:
    processes, mounts = foreign_processes(), Path("/proc/self/mountinfo").read_text()
    descriptors = len(os.listdir("/proc/self/fd"))
    yield
    end = time.monotonic() + 30
    while foreign_processes() - processes and time.monotonic() < end:
        time.sleep(0.05)
    assert foreign_processes() <= processes
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert not [path for folder in WHERE_MARKS_WOULD_BE for path in glob.glob(f"{glob.escape(folder)}/*{MARK}*")]


@pytest.mark.timeout(170)
def test_g5_g6_hostile_programs(nothing_left: None) -> None:
    """None gets a reward, none changes another's verdict, none leaves a process, a file, a mount or a port."""
    hostile = programs() + without_order()
    assert len(hostile) >= 200
    ports_of_programs = {f"{port:04X}" for port in (8080, 50051)} - {name.split(":")[1] for name in listening()}
    stop, complaints, ran = threading.Event(), [], Counter[str]()

    def beside() -> None:
        """Honest work in another worker, all the time."""
        own = verifier()
        try:
            while not stop.is_set():
                honest(own)
                ran["honest"] += 3
        except BaseException as error:  # noqa: BLE001 -- shown by the test
            complaints.append(f"beside: {error!r}")
        finally:
            own.close()

    def attack(share: list[tuple[str, str]]) -> None:
        own = verifier()
        try:
            for index, (name, source) in enumerate(share):
                start = time.monotonic()
                outcome = own.verify(fenced(source), hidden(source), {})
                if time.monotonic() - start > LONGEST_S:
                    complaints.append(f"{name}: took {time.monotonic() - start:.0f} s")
                if not isinstance(outcome, Scored) or outcome.score != 0:
                    complaints.append(f"{name}: {outcome}")
                    continue
                reason = str(outcome.parts["reason"])
                if not all(reason in allowed for begin, allowed in REASONS.items() if name.startswith(begin)):
                    complaints.append(f"{name}: {reason}, {outcome.parts.get('note')}")
                ran[reason] += 1
                if index % 5 == 0:
                    honest(own)
                    ran["honest"] += 3
        except BaseException as error:  # noqa: BLE001 -- shown by the test
            complaints.append(f"between: {error!r}")
        finally:
            own.close()

    threads = [threading.Thread(target=attack, args=(hostile[start::2],)) for start in range(2)]
    neighbour = threading.Thread(target=beside)
    for thread in (*threads, neighbour):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    neighbour.join()
    assert not complaints, "\n".join(complaints)
    assert not {name.split(":")[1] for name in listening()} & ports_of_programs
    print(dict(ran))
    assert ran["honest"] > 100
    assert ran["timeout"] < len(hostile) / 2


def test_g11_a_sandbox_that_dies_is_no_wrong_answer(nothing_left: None) -> None:
    """Its keeper killed between samples, and in the middle of one: started again, or Failed, and never a 0."""
    chosen = verifier()
    honest(chosen)
    keeper = chosen.sandbox._keeper
    assert keeper is not None
    keeper.kill()
    honest(chosen)
    keeper = chosen.sandbox._keeper
    assert keeper is not None
    killer = threading.Timer(0.1, keeper.kill)
    killer.start()
    tests = {"inputs": ["1\n"] * 40, "outputs": ["2"] * 40}
    outcome = chosen.verify(fenced("print(int(input()) + 1)\n"), tests, {})
    killer.join()
    assert isinstance(outcome, Failed) or (isinstance(outcome, Scored) and outcome.score == 1.0), outcome
    honest(chosen)
    chosen.close()
