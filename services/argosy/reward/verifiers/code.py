"""Code against hidden tests, in the sandbox: `codecontests`, `apps`, `codeforces`, `taco`, `livecodebench` and others.

The ground truth is verl's, as a mapping or as JSON text: `{"inputs": […], "outputs": […], "fn_name"?, "language"?}`.
Which block of the response is run: `argosy.reward.programs.blocks`; what counts as the expected output:
`argosy.reward.programs.compare`; what the sandbox holds against: docs/sandbox.md.

A fault of the code is a low score with the part `reason`; a fault of the sandbox is Failed, never a 0 (case G11).
"""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Mapping
from typing import Any

from argosy.reward.programs.blocks import TAGS, find_code
from argosy.reward.programs.judge import Fault, Judge, QuotaError, Verdict
from argosy.reward.programs.tests import Tests, read_tests
from argosy.reward.verifiers.base import bad_ground_truth, shorten
from argosy.reward.verifiers.budget import BUDGET, PutAsideError
from argosy.sandbox.languages import missing
from argosy.sandbox.options import SandboxBusyError, SandboxError, SandboxOptions, SandboxUnavailableError
from argosy.sandbox.runner import Sandbox
from argosy.types.records import Failed, Outcome, Scored

_log = logging.getLogger(__name__)
_MARGIN = 0.9
"""Share of the worker's time for a sample after which the sandbox gives up by itself."""


class CodeVerifier:
    """Keeps this process's sandbox. One sample at a time."""

    def __init__(self) -> None:
        self._options = SandboxOptions()
        self._timeout_s = 10.0
        self._sandbox: Sandbox | None = None

    def configure(self, options: SandboxOptions, *, timeout_s: float) -> None:
        """Set the limits; `timeout_s` is what a sample may take in all. A sandbox that runs with others is ended."""
        self.close()
        self._options, self._timeout_s = options, timeout_s

    def prepare(self) -> None:
        """Start the sandbox ahead of the first sample. If it can't, each sample says why."""
        try:
            self.sandbox.start()
        except SandboxError as error:  # `verify` meets it again, and its outcome carries the message
            _log.error("code can't be run: %s", error)
            return
        absent = [reason for name in self._options.languages if (reason := missing(name, self.sandbox.paths))]
        _log.info("the code sandbox: %s; not there: %s", self.sandbox.describe(), "; ".join(absent) or "nothing")

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox, made at its first use."""
        if self._sandbox is None:
            self._sandbox = Sandbox(self._options)
            atexit.register(self.close)
        return self._sandbox

    def close(self) -> None:
        """End the sandbox. The next sample starts another."""
        if self._sandbox is not None:
            atexit.unregister(self.close)
            self._sandbox.close()
            self._sandbox = None

    def verify(self, solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
        """The share of hidden tests that the response's code passes, or all or nothing."""
        try:
            tests = read_tests(ground_truth)
        except ValueError as error:
            return bad_ground_truth(ground_truth, str(error))
        language = _language(ground_truth, extra_info)
        problem = self._refusal(language, tests)
        if problem is not None:
            return Failed("language_unavailable", problem)
        code = find_code(solution, language, tests.function)
        if code is None:
            return self._scored(Verdict(0, tests.count, Fault("no_code")), "")
        try:
            return self._scored(self._judge(language, code, tests), code)
        except SandboxUnavailableError as error:
            return Failed("sandbox_unavailable", str(error))
        except SandboxBusyError as error:
            return Failed("timeout", str(error))
        except SandboxError as error:
            return Failed("sandbox_failed", str(error))

    def _judge(self, language: str, code: str, tests: Tests) -> Verdict:
        """Once more with a fresh sandbox if the first breaks. Raises PutAsideError at the sample's quota."""
        allowed_s = min(self._timeout_s, BUDGET.end - time.monotonic()) * _MARGIN
        deadline = BUDGET.end if BUDGET.background else time.monotonic() + allowed_s
        try:
            return self._once(language, code, tests, deadline)
        except (SandboxUnavailableError, SandboxBusyError):
            raise
        except SandboxError:
            self.close()
        return self._once(language, code, tests, deadline)

    def _once(self, language: str, code: str, tests: Tests, deadline: float) -> Verdict:
        judge = Judge(self.sandbox, deadline=deadline, quota_s=BUDGET.left_s)
        try:
            return judge.judge(language, code, tests)
        except QuotaError:
            raise PutAsideError from None
        finally:
            BUDGET.spend(judge.used_s)

    def _refusal(self, language: str, tests: Tests) -> str | None:
        if language not in self._options.languages:
            allowed = ", ".join(self._options.languages)
            return f"the row wants {language!r}; argosy.reward.sandbox.languages has {allowed}"
        if tests.function is not None and language != "python":
            return f"the row wants calls of {tests.function!r} in {language}; call-based tests are for Python"
        return missing(language, self.sandbox.paths)

    def _scored(self, verdict: Verdict, code: str) -> Scored:
        share = verdict.passed / verdict.total
        parts: dict[str, float | str | bool] = {
            "acc": float(verdict.passed == verdict.total),
            "format": float(bool(code)),
            "extracted": float(bool(code)),
            "passed": share,
            "tests": float(verdict.total),
            "pred": shorten(code),
            "rule": "tests" if code else "no code",
            "reason": verdict.fault.reason if verdict.fault else "",
        }
        if verdict.fault and verdict.fault.note:
            parts["note"] = verdict.fault.note
        return Scored(share if self._options.credit == "mean" else parts["acc"], parts)  # type: ignore[arg-type]


def _language(ground_truth: Any, extra_info: Mapping[str, Any]) -> str:
    """The row's language by any of its usual names; Python where it says nothing."""
    named = ground_truth.get("language") if isinstance(ground_truth, Mapping) else None
    name = str(named or (extra_info or {}).get("language") or "python").lower()
    return next((language for language, tags in TAGS.items() if name in tags), name)


CODE = CodeVerifier()
"""The worker's own."""
