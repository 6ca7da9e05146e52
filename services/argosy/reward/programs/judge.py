"""Runs the tests of a sample and says how many passed. The expected outputs stay in this process.

Test by test, in their order. A test that runs out of time ends the sample: the rest counts as not passed, as do tests
that `sample_timeout_s` leaves no time for. After any other fault the next test is run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from argosy.reward.programs.compare import same_output, same_value
from argosy.reward.programs.tests import CallTest, ProgramTest, Tests
from argosy.sandbox import plain
from argosy.sandbox.job import Job, Program
from argosy.sandbox.languages import LANGUAGES
from argosy.sandbox.runner import Sandbox

_ENDS_SAMPLE = frozenset({"timeout", "syntax_error", "compile_error", "missing_function", "protocol"})
_TIMED_OUT_SIGNALS = (-24,)  # SIGXCPU: the limit of one process
_NOTE_CHARACTERS = 200
_HEAD_BYTES = 13


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a test didn't pass: "wrong_answer", "runtime_error", "timeout", "memory", "output_limit", "syntax_error",
    "compile_error", "missing_function", or "protocol" for a program that wrote where only the harness does."""

    reason: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Tests passed, and the first fault."""

    passed: int
    total: int
    fault: Fault | None = None


class QuotaError(Exception):
    """The sample takes more of its time than its quota."""


class Judge:
    """The verdict on one sample."""

    def __init__(self, sandbox: Sandbox, *, deadline: float, quota_s: float = math.inf) -> None:
        """`deadline`: by time.monotonic(), for SandboxBusyError. `quota_s`: after so much of the sample's time there is
        a QuotaError and no verdict."""
        self._sandbox = sandbox
        self._deadline = deadline
        self._quota_s = quota_s
        self._left_s = sandbox.options.sample_timeout_s

    def judge(self, language: str, code: str, tests: Tests) -> Verdict:
        """Raises SandboxError if the sandbox fails, QuotaError; then nothing is known about the code."""
        passed, first = 0, None
        faults = self._calls(code, tests) if tests.function is not None else self._programs(language, code, tests)
        for fault in faults:
            passed += fault is None
            first = first or fault
            if fault is not None and (fault.reason in _ENDS_SAMPLE or self._sandbox.options.credit == "all"):
                break
        return Verdict(passed, tests.count, first)

    @property
    def used_s(self) -> float:
        """Of the sample's time."""
        return self._sandbox.options.sample_timeout_s - self._left_s

    @property
    def _limit_s(self) -> float:
        return min(self._sandbox.options.test_timeout_s, self._left_s)

    def _programs(self, language: str, code: str, tests: Tests) -> Iterator[Fault | None]:
        chosen, source = LANGUAGES[language], code.encode("utf-8", "surrogatepass")
        if chosen.compiler is not None:
            compiled = self._compile(chosen.compiler(source, self._sandbox.options))
            if isinstance(compiled, Fault):
                yield compiled
                return
            source = compiled
        program = chosen.runner(source, self._sandbox.options)
        for test in tests.programs:
            yield self._program(program, test)

    def _compile(self, compiler: Program) -> bytes | Fault:
        with self._sandbox.run(compiler, deadline=self._deadline) as job:
            job.feed(b"")
            self._finish(job, self._left_s)
            if job.output is not None and _fault(job) is None:
                return job.output
            errors = [line for line in _text(job.errors).splitlines() if "error" in line]
            fault = _fault(job)
            reason = fault.reason if fault else "no program came out"
            return Fault("compile_error", _shown((errors or [reason])[0]))

    def _program(self, program: Program, test: ProgramTest) -> Fault | None:
        if self._left_s <= 0:
            return Fault("timeout", "the sample's time was spent")
        with self._sandbox.run(program, deadline=self._deadline) as job:
            job.feed(test.stdin.encode("utf-8", "surrogatepass"))
            self._finish(job, self._limit_s)
            fault = _fault(job)
            if fault is not None:
                return fault
            actual = job.stdout.decode("utf-8", "replace")
            return None if same_output(actual, test.stdout) else Fault("wrong_answer", _shown(actual))

    def _calls(self, code: str, tests: Tests) -> Iterator[Fault | None]:
        assert tests.function is not None
        waiting = list(reversed(tests.calls))
        while waiting:
            with self._sandbox.run(Program(code, tests.function), deadline=self._deadline) as job:
                job.feed(b"")
                kind, _ = self._claim(job, bytes(8))
                if kind != "R":
                    yield _refusal(job, kind, tests.function)
                    return
                while waiting and job.ended is None:
                    yield self._call(job, waiting.pop())

    def _call(self, job: Job, test: CallTest) -> Fault | None:
        """One call. A claim that is there before its question is forged, and so is one without the question's nonce; a
        forged one that is right would still have to be the hidden value."""
        job.look()
        if job.claims:
            return Fault("protocol", "something was written before the test began")
        nonce = os.urandom(8)
        job.request(len(test.arguments).to_bytes(4, "big") + nonce + test.arguments)
        kind, data = self._claim(job, nonce)
        if kind == "E":
            return Fault("runtime_error", _last_line(job) or _shown(data.decode("utf-8", "replace")))
        if kind == "N":
            return Fault("wrong_answer", _shown(data.decode("utf-8", "replace")))
        if kind != "V":
            return _refusal(job, kind, "")
        if len(data) > test.most_bytes:
            return Fault("wrong_answer", f"a value of {len(data)} bytes")
        try:
            value = plain.decode(data)
            right = any(same_value(value, accepted) for accepted in test.accepted)
        except (plain.NotPlainError, RecursionError, TypeError) as error:
            return Fault("protocol", _shown(str(error)))
        return None if right else Fault("wrong_answer", _shown(repr(value)[:_NOTE_CHARACTERS]))

    def _claim(self, job: Job, nonce: bytes) -> tuple[str, bytes]:
        """The next claim's kind and data; "" if none came, "?" if it is none of ours."""

        def whole() -> bool:
            return len(job.claims) >= _HEAD_BYTES and len(job.claims) >= _HEAD_BYTES + _length(job.claims)

        self._pump(job, whole, self._limit_s)
        if not whole():
            return "", b""
        end = _HEAD_BYTES + _length(job.claims)
        kind, data, right = chr(job.claims[12]), bytes(job.claims[_HEAD_BYTES:end]), job.claims[4:12] == nonce
        del job.claims[:end]
        return (kind, data) if right else ("?", b"")

    def _finish(self, job: Job, limit_s: float) -> None:
        self._pump(job, lambda: job.over, limit_s)

    def _pump(self, job: Job, done: Callable[[], bool], limit_s: float) -> None:
        before, quota_left_s = job.used_s, self._quota_s - self.used_s
        if quota_left_s <= 0:
            raise QuotaError
        try:
            job.pump(done, max(min(limit_s, quota_left_s), 0.01))
        finally:
            self._left_s -= job.used_s - before
        if job.ended is not None and job.ended.how == "timeout" and quota_left_s < limit_s:
            raise QuotaError


def _length(claims: bytearray) -> int:
    return int.from_bytes(claims[:4], "big")


def _refusal(job: Job, kind: str, function: str) -> Fault:
    """What it means that no value came."""
    if kind == "M":
        return Fault("missing_function", f"no function {function!r}")
    if kind == "?":
        return Fault("protocol", "a claim without the test's nonce")
    fault = _fault(job)
    return fault or Fault("runtime_error", "it ended before the tests did")


def _fault(job: Job) -> Fault | None:
    """What the way it ended says."""
    ended = job.ended
    if ended is None:
        return Fault("protocol", "it closed what the harness writes to")
    if ended.how != "exited":
        return Fault({"output": "output_limit"}.get(ended.how, ended.how))
    if ended.status == 0:
        return None
    last = _last_line(job)
    if ended.status in _TIMED_OUT_SIGNALS:
        return Fault("timeout", "out of processor time")
    if last.startswith("MemoryError"):
        return Fault("memory", last)
    if last.startswith(("SyntaxError", "IndentationError", "TabError")):
        return Fault("syntax_error", last)
    how = f"exit code {ended.status}" if ended.status > 0 else f"signal {-ended.status}"
    return Fault("runtime_error", f"{how}: {last}" if last else how)


def _last_line(job: Job) -> str:
    lines = _text(job.errors).strip().splitlines()
    return _shown(lines[-1]) if lines else ""


def _text(data: bytearray) -> str:
    return data.decode("utf-8", "replace")


def _shown(text: str) -> str:
    return text if len(text) <= _NOTE_CHARACTERS else text[: _NOTE_CHARACTERS - 1] + "…"
