"""A sample on its way through the servers: what it has, and how it goes on from there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from argosy.types.errors import ArgosyError
from argosy.types.records import Completion, Failed, FinishReason, Generated, GenerateRequest, TokenRun, VersionRun

log = logging.getLogger(__name__)

POISONOUS = "poisonous"
"""Of the outcome of a sample that its servers die of, or can't go on with."""


@dataclass(slots=True)
class Running:
    """A sample at a server, with the tokens that have come."""

    request: GenerateRequest
    member: str
    token_ids: list[int]
    log_probs: list[float]
    versions: list[VersionRun]
    scope: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))
    """Ends the call when its server is given up."""
    is_given_up: bool = False
    """Its call has been told to end: it can be told once only."""
    is_interrupted: bool = False
    """Its server was told to end it for new weights; the answer may come when that is long over."""

    @classmethod
    def of(cls, request: GenerateRequest, member: str) -> Running:
        """One that begins."""
        have = request.generated
        return cls(request, member, list(have.token_ids), list(have.log_probs), list(have.versions))

    def take(self, run: TokenRun) -> None:
        """Append tokens."""
        self.token_ids += run.token_ids
        self.log_probs += run.log_probs
        self.versions += run.versions

    def so_far(self) -> Generated:
        """What it has."""
        return Generated(tuple(self.token_ids), tuple(self.log_probs), merged(self.versions))


class Blame:
    """What has failed with one sample since it had a new token.

    Args:
        lost: Servers that failed with it before, in a row, whoever they were.
    """

    def __init__(self, lost: int = 0) -> None:
        self.tries = lost
        self.failed_by: set[str] = set()
        self._before = lost

    def add(self, member: str, *, afresh: bool) -> None:
        """This server has failed with it; `afresh`: after a new token."""
        if afresh:
            self.tries, self._before, self.failed_by = 0, 0, set()
        self.tries += 1
        self.failed_by.add(member)

    def servers(self, in_use: Collection[str]) -> int:
        """How many servers failed with it in a row. One that did so again counts once, unless there is no other."""
        if self.failed_by.issuperset(in_use):
            return self.tries
        return self._before + len(self.failed_by)


def poisonous(request: GenerateRequest, member: str, tries: int, failure: ArgosyError) -> Completion:
    """The end of a sample that is dropped, never a 0: it is masked, counted, and in the books with its reason."""
    error = (
        f"{tries} servers in a row failed with {request.key}, the last one ({member}) while no other suspect was there"
    )
    log.error("%s is dropped: %s: %s", request.key, error, failure)
    have = request.generated
    return Completion(
        request.sample_id,
        have.token_ids,
        have.log_probs,
        have.versions,
        FinishReason.FAILED,
        error=f"{error}: {failure}",
        purpose=request.purpose,
        member_id=member,
        outcome=Failed(POISONOUS, f"{error}: {failure}"),
    )


def partial_of(running: Running) -> Completion:
    """What it has, as an answer that was ended."""
    have = running.so_far()
    return Completion(
        running.request.sample_id,
        have.token_ids,
        have.log_probs,
        have.versions,
        FinishReason.ABORTED,
        purpose=running.request.purpose,
        member_id=running.member,
    )


def continue_from(request: GenerateRequest, partial: Completion) -> GenerateRequest:
    """The same sample, going on after the tokens it already has."""
    if not partial.token_ids:
        return request
    return replace(request, generated=Generated(partial.token_ids, partial.log_probs, partial.versions))


def merged(runs: list[VersionRun]) -> tuple[VersionRun, ...]:
    """Neighbours of one version as one.

    >>> from argosy.types.ids import PolicyVersion
    >>> one = PolicyVersion("l0", 1, "a")
    >>> [run.token_count for run in merged([VersionRun(one, 2), VersionRun(one, 3)])]
    [5]
    """
    found: list[VersionRun] = []
    for run in runs:
        if found and found[-1].version == run.version:
            run = VersionRun(run.version, found.pop().token_count + run.token_count)
        found.append(run)
    return tuple(found)
