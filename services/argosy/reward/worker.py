"""The process that runs scorers: `python -m argosy.reward.worker REQUEST_FD REPLY_FD PARENT_PID`, started by `pool`.

One request at a time, in the main thread. It may hang or be killed in the middle of one: everything around it is built
for that. It ends with its parent, whichever way the parent ends.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, BinaryIO

from argosy.reward.custom import CustomFunction, LoadedFunction
from argosy.reward.messages import decode, encode, outcome_to_json
from argosy.reward.verifiers import algebra, find_verifier
from argosy.reward.verifiers.base import Verifier
from argosy.reward.verifiers.budget import BUDGET, PutAsideError
from argosy.reward.verifiers.code import CODE
from argosy.reward.verifiers.scoring import score
from argosy.sandbox.options import read_options
from argosy.types.errors import ConfigError
from argosy.types.records import Failed, Outcome

_PR_SET_PDEATHSIG = 1


class _OutOfProcessorTime(BaseException):
    """Not an Exception, so that no library on the way takes it for its own."""


def main(arguments: list[str]) -> int:
    """Serve requests until the pipe closes."""
    request_fd, reply_fd, parent_pid = map(int, arguments)
    _end_with_parent(parent_pid)
    os.dup2(2, 1)  # what a scorer prints goes to the log
    for fd in (request_fd, reply_fd):
        os.set_inheritable(fd, False)  # a scorer's own children must not keep the pipes open
    with os.fdopen(request_fd, "rb") as requests, os.fdopen(reply_fd, "wb", buffering=0) as replies:
        settings = decode(requests.readline())
        try:
            scorer = _scorer(settings, replies)
        except ConfigError as error:
            replies.write(encode({"error": error.message}))
            return 1
        _limit_memory(int(settings["memory_limit_bytes"]))
        replies.write(encode({"ready": True, "traits": scorer.traits}))
        for line in requests:
            request = decode(line)
            started_s = time.process_time()
            try:
                outcomes = scorer.score(request)
            except PutAsideError:
                replies.write(encode({"id": request["id"], "put_aside": True}))
                continue
            used_s = time.process_time() - started_s + BUDGET.spent_s
            reply = {"id": request["id"], "outcomes": [outcome_to_json(one) for one in outcomes], "used_s": used_s}
            replies.write(encode(reply))
    return 0


def _scorer(settings: Mapping[str, Any], replies: BinaryIO) -> _Custom | _BuiltIn:
    custom = settings["custom"]
    if custom is not None:
        return _Custom(LoadedFunction(CustomFunction(**custom)))
    BUDGET.background = bool(settings["background"])
    sandbox = replace(read_options(settings["sandbox"]), background=BUDGET.background)
    CODE.configure(sandbox, timeout_s=float(settings["timeout_s"]))
    return _BuiltIn(float(settings["cpu_limit_s"]), replies)


class _Custom:
    """The user's function."""

    def __init__(self, function: LoadedFunction) -> None:
        self._function = function
        self.traits = function.plan.traits()

    def score(self, request: Mapping[str, Any]) -> list[Outcome]:
        return self._function.score_batch(request["samples"])


class _BuiltIn:
    """The verifiers of `argosy.reward.verifiers`, each prepared at its first use."""

    traits: Mapping[str, Any] = {}

    def __init__(self, cpu_limit_s: float, replies: BinaryIO) -> None:
        self._cpu_limit_s = cpu_limit_s
        self._replies = replies
        self._prepared: set[str] = set()
        signal.signal(signal.SIGVTALRM, _out_of_processor_time)

    def score(self, request: Mapping[str, Any]) -> list[Outcome]:
        """Raises PutAsideError. A quota is for messages of one sample."""
        limits = {"quota_s": request["quota_s"], "allowed_s": float(request["allowed_s"])}
        return [self._score(sample, **limits) for sample in request["samples"]]

    def _score(self, request: Mapping[str, Any], *, quota_s: float | None, allowed_s: float) -> Outcome:
        verifier = find_verifier(request["data_source"])
        if verifier is None:
            return Failed("unknown_data_source", f"no scorer for data_source {request['data_source']!r}")
        if verifier.name not in self._prepared:
            self._replies.write(encode({"loading": True}))
            verifier.prepare()
            algebra.use_isolation()  # again after each import, so that the children share what was loaded
            self._prepared.add(verifier.name)
            self._replies.write(encode({"loading": False}))
        with BUDGET.sample(quota_s=quota_s, allowed_s=allowed_s):
            return self._bounded(verifier, request)

    def _bounded(self, verifier: Verifier, request: Mapping[str, Any]) -> Outcome:
        """What the evaluation of an answer's own expression costs is measured where it is evaluated, in a child: too
        much of it is wrong, with the verifier's own score for that (case A11). What is measured here is our work for
        any answer, so that too much of it is our failure and never a score (case G11)."""
        if not verifier.bounds_itself:
            # It fires again and again, for a raise inside a destructor or a callback is lost.
            signal.setitimer(signal.ITIMER_VIRTUAL, self._cpu_limit_s, 0.05)
        algebra.begin_sample()
        try:
            return score(verifier, request["response_text"], request["ground_truth"], request["extra_info"])
        except _OutOfProcessorTime:
            return Failed(
                "costly", f"verifier {verifier.name!r} took more than {self._cpu_limit_s:g} s of processor time"
            )
        except MemoryError as error:
            return Failed("costly", f"verifier {verifier.name!r} ran out of memory: {error}"[:500])
        except Exception as error:  # noqa: BLE001 -- a verifier's defect is this sample's outcome, never a 0 (case G11)
            lines = traceback.format_exception(error)
            return Failed("exception", f"verifier {verifier.name!r} raised {''.join(lines[-3:]).strip()}"[:2000])
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _out_of_processor_time(_signal: int, _frame: object) -> None:
    raise _OutOfProcessorTime


def _end_with_parent(parent_pid: int) -> None:
    """SIGKILL when the thread that started us ends, even if it is killed (Linux; elsewhere the pipe's end must do)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)  # it died before we asked


def _limit_memory(limit_bytes: int) -> None:
    """Bound the heap. RLIMIT_DATA and not RLIMIT_AS, as some libraries reserve address space that they never use."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limit_bytes > 0:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, wanted))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
