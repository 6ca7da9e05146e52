"""What a check says: passed, warned, failed or skipped, what was wrong, and what to do about it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Result(enum.Enum):
    """The end of one check."""

    PASSED = "passed"
    WARNED = "warned"
    """The server works with Argosy; something that helps people is missing."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """The check doesn't apply to this server, or one that it builds on has failed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    about: str
    """What the check wants, in a line."""
    result: Result
    wrong: str = ""
    """What was wrong; empty when it passed."""
    advice: str = ""
    """What to do about it; empty when it passed."""
    seconds: float = 0.0


class CheckError(Exception):
    """The server doesn't keep the contract."""

    result = Result.FAILED

    def __init__(self, wrong: str, advice: str = "") -> None:
        """Without `advice`, the check's own is shown."""
        super().__init__(wrong)
        self.wrong = wrong
        self.advice = advice


class CheckWarning(CheckError):
    """Something that helps people is missing."""

    result = Result.WARNED


class CheckSkipped(CheckError):
    """The check doesn't apply."""

    result = Result.SKIPPED


def failures(findings: Sequence[Finding]) -> list[Finding]:
    """Those that failed."""
    return [finding for finding in findings if finding.result is Result.FAILED]


def describe(findings: Sequence[Finding]) -> str:
    """A line for each check that failed or warned, for a test's message."""
    shown = [finding for finding in findings if finding.result in (Result.FAILED, Result.WARNED)]
    return "\n".join(f"{finding.check} {finding.result.value}: {finding.wrong} → {finding.advice}" for finding in shown)
