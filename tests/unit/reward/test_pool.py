"""Cases A10, A11 and F2 through the worker processes: what hangs, dies, eats memory, or is left alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from argosy.reward.core import RewardOptions, RewardScorers
from argosy.reward.custom import CustomFunction
from argosy.reward.pool import PoolOptions
from argosy.reward.process import WorkerProcess
from argosy.types.errors import OverloadedError, StateError
from argosy.types.records import Failed, Outcome, Scored, ScoreRequest, ScoreResult

MakeScorers = Callable[..., RewardScorers]
MakeFunction = Callable[..., CustomFunction]
MakeRequest = Callable[..., ScoreRequest]

MATH = "lighteval/MATH"
POISON = (
    r"\boxed{\dfrac{7^{7^{7^{7^{7}}}}}{3}}",
    r"\boxed{((30!)!)!}",
    r"\boxed{10^{10^{10}}}",
    "(" * 50_000,
    "9" * 100_000,
)
SLOW_FORMULA = r"\sin^{-1}(\sqrt{\cos(x^{9}+\ln(y+x)) + \ln(\sin(y^{8}))}) \cdot \tan(x)^{7} + \sqrt{x+\sqrt{y}}"
"""Passes the checks on the text; sympy works on it for minutes."""

MISCHIEF = """
import os, subprocess, sys, time
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if solution_str == "spin":
        while True:
            pass
    if solution_str == "child":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)  # argosy-leftover"])
        time.sleep(300)
    if solution_str == "exit":
        os._exit(3)
    if solution_str == "kill":
        os.kill(os.getpid(), 9)
    if solution_str == "memory":
        return len(bytearray(8 * 1024**3))
    if solution_str == "long":
        return {"score": 1, **{str(key): "x" * 1000 for key in range(10_000)}}
    if solution_str == "sleep":
        time.sleep(0.5)
    return 1
"""


def reasons(results: list[ScoreResult]) -> list[str]:
    return [result.outcome.reason if isinstance(result.outcome, Failed) else "" for result in results]


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)


def reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # subprocess does it too, when it forgets one that has ended
        os.waitpid(pid, 0)


async def test_a11_poison_costs_nobody_a_worker(make_scorers: MakeScorers, make_request: MakeRequest) -> None:
    scorers = make_scorers(worker_count=2, timeout_s=20)
    pids = scorers.worker_pids
    started = time.monotonic()
    poison = [make_request(k, POISON[k % len(POISON)], source=MATH) for k in range(50)]
    results = await scorers.score(poison, deadline_s=60)
    assert [result.outcome.score for result in results if isinstance(result.outcome, Scored)] == [0.0] * 50
    normal = [make_request(k, rf"\boxed{{{k}}}", str(k - k % 2), source=MATH) for k in range(20)]
    results = await scorers.score(normal, deadline_s=60)
    assert [r.outcome.score for r in results if isinstance(r.outcome, Scored)] == [1.0, 0.0] * 10
    assert time.monotonic() - started < 20
    # The very same processes, idle, and no larger than a loaded math-verify.
    assert scorers.worker_pids == pids
    assert scorers.stats().worker_restarts == 0
    for pid in pids:
        process = psutil.Process(pid)
        assert process.memory_info().rss < 400 * 1024**2
        assert process.cpu_percent(interval=0.2) < 50


async def test_a11_an_overrun_is_killed_and_replaced(
    make_scorers: MakeScorers, make_function: MakeFunction, make_request: MakeRequest
) -> None:
    scorers = make_scorers(make_function(MISCHIEF), worker_count=2, timeout_s=0.6)
    first = set(scorers.worker_pids)
    items = [make_request(k, "spin") for k in range(8)] + [make_request(100 + k, "fine") for k in range(20)]
    started = time.monotonic()
    results = await scorers.score(items, deadline_s=60)
    assert time.monotonic() - started < 8 / 2 * 0.6 + 10
    assert reasons(results) == ["timeout"] * 8 + [""] * 20
    assert [result.outcome for result in results[8:]] == [Scored(1.0)] * 20
    assert "0.6 s" in results[0].outcome.message if isinstance(results[0].outcome, Failed) else False
    assert all(map(is_gone, first))
    assert scorers.stats().worker_restarts == 8
    assert len(scorers.worker_pids) == 2


async def test_a11_an_answer_that_takes_sympy_minutes_is_wrong(
    make_scorers: MakeScorers, make_request: MakeRequest
) -> None:
    scorers = make_scorers()
    items = [
        make_request(0, rf"\boxed{{{SLOW_FORMULA}}}", r"\sin^{-1}(x)", MATH),
        make_request(1, r"\boxed{\arcsin(x)}", r"\sin^{-1}(x)", MATH),
    ]
    started = time.monotonic()
    slow, normal = await scorers.score(items, deadline_s=60)
    assert time.monotonic() - started < 15
    assert isinstance(slow.outcome, Scored)
    assert slow.outcome.score == 0
    assert slow.outcome.parts["rule"] == "costly"
    assert isinstance(normal.outcome, Scored)
    assert (normal.outcome.score, normal.outcome.parts["rule"]) == (1.0, "math-verify")
    assert scorers.stats().worker_restarts == 0


async def test_an_overrun_takes_its_children_along(
    make_scorers: MakeScorers, make_function: MakeFunction, make_request: MakeRequest
) -> None:
    scorers = make_scorers(make_function(MISCHIEF), timeout_s=1.0)
    assert reasons(await scorers.score([make_request(0, "child")], deadline_s=60)) == ["timeout"]
    wait_until(lambda: not any("argosy-leftover" in " ".join(p.info["cmdline"] or []) for p in _processes()))


def _processes() -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline", "status"]) if p.info["status"] != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    ("what", "reason", "said"),
    [
        ("exit", "crashed", "exited with code 3"),
        ("kill", "crashed", "killed by SIGKILL"),
        ("long", "crashed", "longer than"),
        ("memory", "exception", "MemoryError"),
    ],
)
async def test_a_worker_that_dies_is_replaced(
    make_scorers: MakeScorers,
    make_function: MakeFunction,
    make_request: MakeRequest,
    what: str,
    reason: str,
    said: str,
) -> None:
    scorers = make_scorers(make_function(MISCHIEF), memory_limit_bytes=512 * 1024**2)
    bad, good = await scorers.score([make_request(0, what), make_request(1, "fine")], deadline_s=60)
    assert isinstance(bad.outcome, Failed)
    assert bad.outcome.reason == reason
    assert said in bad.outcome.message
    assert good.outcome == Scored(1.0)


async def test_a_worker_that_died_while_idle_costs_no_sample(
    make_scorers: MakeScorers, make_request: MakeRequest
) -> None:
    scorers = make_scorers()
    [pid] = scorers.worker_pids
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not scorers.worker_pids)
    [result] = await scorers.score([make_request(0, "#### 5")], deadline_s=60)
    assert isinstance(result.outcome, Scored)
    assert scorers.stats().worker_restarts == 1


async def test_the_calls_deadline_bounds_the_call(
    make_scorers: MakeScorers, make_function: MakeFunction, make_request: MakeRequest
) -> None:
    scorers = make_scorers(make_function(MISCHIEF), timeout_s=30)
    started = time.monotonic()
    items = [make_request(0, "fine"), *(make_request(k, "spin") for k in range(1, 40))]
    results = await scorers.score(items, deadline_s=1.5)
    assert time.monotonic() - started < 10
    assert reasons(results) == ["", *["timeout"] * 39]
    [after] = await scorers.score([make_request(99, "fine")], deadline_s=60)
    assert after.outcome == Scored(1.0)


async def test_cancelling_the_call_empties_the_queue(
    make_scorers: MakeScorers, make_function: MakeFunction, make_request: MakeRequest
) -> None:
    scorers = make_scorers(make_function(MISCHIEF))
    call = asyncio.ensure_future(scorers.score([make_request(k, "sleep") for k in range(100)], deadline_s=60))
    await asyncio.sleep(0.2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    started = time.monotonic()
    await scorers.score([make_request(0, "fine")], deadline_s=60)
    assert time.monotonic() - started < 20  # a hang guard
    assert scorers.stats().unfinished == 0


async def test_a_sample_that_cannot_be_encoded_fails_alone(
    make_scorers: MakeScorers, make_request: MakeRequest
) -> None:
    scorers = make_scorers()
    endless: list[object] = []
    endless.append(endless)
    odd: list[dict[Any, Any]] = [{(1, 2): "a key of two numbers"}, {"a": endless}]
    results = await scorers.score(
        [*(make_request(k, "#### 5", extra=extra) for k, extra in enumerate(odd)), make_request(9, "#### 5")],
        deadline_s=30,
    )
    assert reasons(results) == ["bad_request"] * 2 + [""]


async def test_a_defect_reaches_the_caller_and_ends_no_worker_thread(
    make_scorers: MakeScorers, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorers = make_scorers()

    def broken(*args: object) -> None:
        raise LookupError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr("argosy.reward.seat.outcome_from_json", broken)
        with pytest.raises(LookupError, match="a defect"):
            await scorers.score([make_request(0, "#### 5")], deadline_s=30)
    [result] = await scorers.score([make_request(1, "#### 5")], deadline_s=30)
    assert isinstance(result.outcome, Scored)


async def test_a_worker_that_cannot_be_ended_keeps_nobody_waiting(
    make_scorers: MakeScorers, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorers = make_scorers()
    [left] = scorers.worker_pids

    def broken(*args: object) -> None:
        raise OSError("not now")

    with monkeypatch.context() as patch:
        patch.setattr("argosy.reward.seat.outcome_from_json", broken)
        patch.setattr(WorkerProcess, "close", broken)
        with pytest.raises(OSError, match="not now"):
            await asyncio.wait_for(scorers.score([make_request(0, "#### 5")], deadline_s=300), timeout=30)
    [result] = await asyncio.wait_for(scorers.score([make_request(1, "#### 5")], deadline_s=300), timeout=60)
    assert isinstance(result.outcome, Scored)
    os.kill(left, signal.SIGKILL)
    await asyncio.to_thread(reap, left)


async def test_killing_does_not_wait_for_ever(
    make_scorers: MakeScorers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scorers = make_scorers()
    [pid] = scorers.worker_pids

    def stuck(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        assert timeout is not None, "it would wait for ever"
        raise subprocess.TimeoutExpired("worker", timeout)

    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "wait", stuck)
        scorers.shutdown()
    assert f"worker process {pid} is still there" in caplog.text
    await asyncio.to_thread(reap, pid)


@pytest.mark.timeout(30)
def test_settings_that_cannot_be_sent_are_told_at_the_start() -> None:
    with pytest.raises(TypeError, match="keys must be"):
        RewardScorers(RewardOptions(PoolOptions(worker_count=2), CustomFunction("f.py", "f", {"a": {(1, 2): 3}})))
    assert not [process for process in psutil.Process().children() if "argosy.reward.worker" in process.cmdline()]


async def test_a_full_queue_is_overload_and_takes_nothing(
    make_scorers: MakeScorers, make_function: MakeFunction, make_request: MakeRequest
) -> None:
    scorers = make_scorers(make_function(MISCHIEF), queue_size=10)
    first = asyncio.ensure_future(scorers.score([make_request(k, "sleep") for k in range(3)], deadline_s=60))
    await asyncio.sleep(0.05)
    with pytest.raises(OverloadedError, match="no room for 9 more"):
        await scorers.score([make_request(k, "fine") for k in range(9)], deadline_s=60)
    assert reasons(await first) == [""] * 3
    assert reasons(await scorers.score([make_request(k, "fine") for k in range(9)], deadline_s=60)) == [""] * 9


async def test_a10_scoring_works_from_every_thread(make_scorers: MakeScorers, make_request: MakeRequest) -> None:
    scorers = make_scorers()
    item = make_request(0, r"\boxed{\frac{2}{6}}", r"\frac{1}{3}", MATH)

    def outcome() -> Outcome:
        return asyncio.run(scorers.score([item], deadline_s=60))[0].outcome

    found: list[Outcome] = []
    thread = threading.Thread(target=lambda: found.append(outcome()))
    thread.start()
    await asyncio.to_thread(thread.join)
    with ThreadPoolExecutor(1) as pool:  # what a gRPC server runs its handlers in
        found.append(await asyncio.wrap_future(pool.submit(outcome)))
    found.append(await asyncio.get_running_loop().run_in_executor(None, outcome))
    found.append((await scorers.score([item], deadline_s=60))[0].outcome)
    assert [one.score for one in found if isinstance(one, Scored)] == [1.0] * 4


async def test_closing_ends_the_workers_and_what_waits(
    make_scorers: MakeScorers, make_function: MakeFunction, make_request: MakeRequest
) -> None:
    scorers = make_scorers(make_function(MISCHIEF), worker_count=2)
    pids = scorers.worker_pids
    call = asyncio.ensure_future(scorers.score([make_request(k, "spin") for k in range(10)], deadline_s=60))
    await asyncio.sleep(0.2)
    await scorers.close()
    await scorers.close()
    assert set(reasons(await call)) == {"aborted"}
    assert all(map(is_gone, pids))
    with pytest.raises(StateError):
        await scorers.score([make_request(0, "fine")], deadline_s=60)


PARENT = """
import asyncio, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background has it ignored
from argosy.reward.core import RewardOptions, RewardScorers
from argosy.reward.custom import CustomFunction
from argosy.types.ids import SampleId
from argosy.types.records import ScoreRequest
scorers = RewardScorers(RewardOptions(custom=CustomFunction(sys.argv[1])))
item = ScoreRequest(SampleId(0, 0, 0), "x", "", "spin", "1")
threading.Thread(target=lambda: asyncio.run(scorers.score([item], deadline_s=300)), daemon=True).start()
time.sleep(0.3)
print(*scorers.worker_pids, flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent(make_function: MakeFunction, how: signal.Signals) -> None:
    path = make_function(MISCHIEF).path
    with subprocess.Popen([sys.executable, "-c", PARENT, path], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.send_signal(how)
        parent.wait(timeout=20)
    wait_until(lambda: all(map(is_gone, pids)))


async def test_f2_the_pool_starts_and_restarts_after_grpc(
    make_scorers: MakeScorers, make_function: MakeFunction, make_request: MakeRequest
) -> None:
    grpc = pytest.importorskip("grpc")

    async def echo(data: bytes, _context: object) -> bytes:
        # From inside a handler: a new pool, a killed worker, and plain subprocesses.
        scorers = make_scorers(make_function(MISCHIEF), timeout_s=5)
        results = await scorers.score(
            [make_request(k, text) for k, text in enumerate(("fine", "kill", "fine"))], deadline_s=60
        )
        for _ in range(20):
            process = await asyncio.create_subprocess_exec("true")
            assert await process.wait() == 0
        return data + ",".join(reasons(results)).encode()

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Echo": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/test.Echo/Echo")
        assert await call(b"a", timeout=60) == b"a,crashed,"
        assert await call(b"b", timeout=60) == b"b,crashed,"
    await server.stop(None)


def test_importing_and_scoring_load_no_torch() -> None:
    code = textwrap.dedent("""
        import asyncio, sys
        from argosy.reward.core import RewardScorers
        from argosy.types.ids import SampleId
        from argosy.types.records import ScoreRequest
        scorers = RewardScorers()
        item = ScoreRequest(SampleId(0, 0, 0), "lighteval/MATH", "", r"\\boxed{2\\sqrt{3}}", r"\\sqrt{12}")
        [result] = asyncio.run(scorers.score([item], deadline_s=60))
        assert result.outcome.score == 1.0, result
        import psutil
        [maps] = [{m.path for m in psutil.Process(pid).memory_maps()} for pid in scorers.worker_pids[:1]]
        assert not any("torch" in path for path in maps)
        scorers.shutdown()
        import argosy.reward.build
        heavy = {"torch", "grpc", "sympy", "math_verify", "transformers"} & set(sys.modules)
        assert not heavy, heavy
    """)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
