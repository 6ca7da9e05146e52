"""What a worker's seat is told: by the fast lane's desk, or the slow lane's."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from argosy.reward.jobs import Job
from argosy.reward.lanes import Lanes
from argosy.reward.quota import Quotas
from argosy.types.records import Outcome


class Fast:
    """Implements `seat.Desk`: jobs in their order, those that are due first, each within `timeout_s` on the clock.

    Args:
        quotas: None if nothing is put aside.
        put_aside: Takes a job for the slow lane.
    """

    def __init__(
        self, lanes: Lanes, quotas: Quotas | None, *, timeout_s: float, put_aside: Callable[[Job], None]
    ) -> None:
        self._lanes, self._quotas, self._timeout_s, self._put_aside = lanes, quotas, timeout_s, put_aside

    def take(self) -> Job | None:
        """The next job."""
        return self._lanes.take()

    def allowed_s(self, job: Job) -> float:
        """`timeout_s`, or until the call's deadline."""
        return min(self._timeout_s, job.end - time.monotonic())

    def quota_s(self, job: Job) -> float | None:
        """None for one that came back from the slow lane, or would have no time there."""
        if self._quotas is None or job.hurried or self._lanes.last_moment(job) <= time.monotonic():
            return None
        return self._quotas.quota_s(job.source)

    def judged(self, job: Job, used_s: float) -> None:
        """The quotas learn of it. Not of one that came back: what was put aside has counted already."""
        if self._quotas is not None and not job.hurried:
            self._quotas.note(job.source, used_s)

    def overran(self, job: Job, problem: str) -> list[Outcome] | None:
        """The sample's end."""
        return job.failed("timeout", problem)

    def unserved(self, job: Job, problem: str) -> list[Outcome] | None:
        """The sample's end."""
        return job.failed("crashed", problem)

    def put_aside(self, job: Job) -> None:
        """Into the slow lane."""
        self._put_aside(job)


class Slow:
    """Implements `seat.Desk`: jobs that were put aside. What doesn't come to an end goes back to the fast lane.

    Args:
        taken: Called when somebody took a job: another one may be wanted for what still waits.
    """

    def __init__(self, lanes: Lanes, taken: Callable[[], None]) -> None:
        self._lanes, self._taken = lanes, taken

    def take(self) -> Job | None:
        """The next job."""
        return self._lanes.take_slow()

    def allowed_s(self, job: Job) -> float:
        """Until it has to go back."""
        self._taken()
        return self._lanes.last_moment(job) - time.monotonic()

    def quota_s(self, job: Job) -> float | None:
        """There is none."""
        return None

    def judged(self, job: Job, used_s: float) -> None:
        """So that fast workers begin in time with what still waits."""
        if math.isfinite(used_s):
            self._lanes.took(used_s)

    def overran(self, job: Job, problem: str) -> list[Outcome] | None:
        """It goes back."""
        self.put_aside(job)
        return None

    def unserved(self, job: Job, problem: str) -> list[Outcome] | None:
        """It goes back."""
        self.put_aside(job)
        return None

    def put_aside(self, job: Job) -> None:
        """Back to the fast lane, where it is judged before the others and without a quota."""
        job.hurried = True
        self._lanes.put_aside(job)
