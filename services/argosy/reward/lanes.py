"""Which sample a free worker takes next: a fast lane, and a slow one for samples that cost many times what others do.

Samples wait in the fast lane in their order. One that exceeds its quota there (`quota`) is put aside: workers of the
slow lane judge it again from the start, in processes to which the kernel gives what nobody else wants. Where that may
be nothing for long, for other programs keep the machine busy, fast workers without work take over. And when its
deadline comes near it goes back to the fast lane, before all others, so that nothing fails only because it was put
aside. In either case it is judged without a quota.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque

from argosy.reward.jobs import Job, abort

_PRESSED_S = 0.05
"""A sample that waited longer than this in the fast lane found no free worker."""
_QUIET_S = 1.0
"""Fast workers take over when this has not happened for so long,"""
_PATIENCE_S = 2.0
"""and a sample has waited for so long in the slow lane."""


class Lanes:
    """Jobs that wait. Safe for any number of threads.

    Args:
        timeout_s: Seconds that a job may take in a fast worker.
        worker_count: Fast workers.
        most_slow: Jobs that may wait in the slow lane; cancelled ones are thrown out when they are as many.
        processors: How many this machine has for us.
    """

    def __init__(self, *, timeout_s: float, worker_count: int, most_slow: int, processors: int) -> None:
        self._timeout_s, self._worker_count, self._most_slow = timeout_s, worker_count, most_slow
        self._spare = processors - worker_count
        self._changed = threading.Condition()
        self._fast: deque[Job] = deque()
        self._slow: list[tuple[float, int, Job]] = []
        self._running: dict[int, Job] = {}
        """Thread → what it judges in the slow lane."""
        self._free = self._count = 0
        self._pressed_at = self._slow_s = 0.0
        self._closed = False

    def put(self, jobs: list[Job]) -> None:
        """Into the fast lane, in their order. After `close` they are Failed("aborted")."""
        with self._changed:
            if not self._closed:
                self._fast.extend(jobs)
                self._changed.notify_all()
                return
        abort(jobs)

    def put_aside(self, job: Job) -> None:
        """Into the slow lane; before the others of the fast lane if it is hurried. As `put` after `close`."""
        with self._changed:
            if not self._closed:
                job.since = time.monotonic()
                if job.hurried:
                    self._fast.appendleft(job)
                else:
                    self._push(job)
                self._changed.notify_all()
                return
        abort([job])

    def take(self) -> Job | None:
        """The next one for a fast worker, waited for; None when they are closed."""
        with self._changed:
            self._free += 1
            try:
                while not self._closed:
                    job, wait_s = self._next(time.monotonic())
                    if job is not None:
                        return job
                    self._changed.wait(min(wait_s, threading.TIMEOUT_MAX))
                return None
            finally:
                self._free -= 1

    def take_slow(self) -> Job | None:
        """The next one for a slow worker, that whose deadline comes first; None when they are closed.

        While samples wait in the fast lane, only as many begin as there are processors that its workers leave.
        """
        with self._changed:
            self._running.pop(threading.get_ident(), None)
            while not self._closed:
                if self._slow and (not self._fast or len(self._running) < self._spare):
                    job = heapq.heappop(self._slow)[2]
                    job.since = time.monotonic()
                    self._running[threading.get_ident()] = job
                    return job
                self._changed.wait()
            return None

    def last_moment(self, job: Job) -> float:
        """When a job has to go to a fast worker so that it can still have all its time, and another one before it."""
        return job.end - 2 * self._timeout_s

    def took(self, slow_s: float) -> None:
        """A job of the slow lane was judged in so many seconds of processor time."""
        with self._changed:
            self._slow_s = slow_s if not self._slow_s else 0.9 * self._slow_s + 0.1 * slow_s

    @property
    def slow_waiting(self) -> int:
        """Jobs that wait in the slow lane."""
        return len(self._slow)

    def close(self) -> None:
        """Let all workers go; what nobody has taken is Failed("aborted"). May be called again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            left = [*self._fast, *(entry[2] for entry in self._slow)]
            self._fast.clear()
            self._slow.clear()
        abort(left)

    def _next(self, now: float) -> tuple[Job | None, float]:
        """A job for a fast worker, or the seconds after which to look again."""
        due = self._due()
        if due <= now:
            return self._hurry(heapq.heappop(self._slow)[2]), 0.0
        if self._fast:
            job = self._fast.popleft()
            if self._slow and not self._fast:
                self._changed.notify_all()
            if now - job.since > _PRESSED_S:
                self._pressed_at = now
            return job, 0.0
        if self._worker_count > 1 and self._free == 1:
            return None, due - now  # one stays free for what comes
        starved = self._starved()
        if starved is None:
            return None, due - now
        at = max(self._pressed_at + _QUIET_S, starved.since + _PATIENCE_S)
        if at > now:
            return None, min(due, at) - now
        if self._slow and starved is self._slow[0][2]:
            heapq.heappop(self._slow)
        return self._hurry(starved), 0.0

    def _starved(self) -> Job | None:
        """What a fast worker may take over: what waits, or is being judged and doesn't come to its end. The latter it
        judges too: whose verdict is there first counts."""
        if self._slow:
            return self._slow[0][2]
        running = [job for job in self._running.values() if not job.hurried and not job.future.done()]
        return min(running, key=lambda job: job.since, default=None)

    def _hurry(self, job: Job) -> Job:
        job.hurried = True
        return job

    def _push(self, job: Job) -> None:
        if len(self._slow) >= self._most_slow:
            self._slow = [entry for entry in self._slow if not entry[2].future.done()]
            heapq.heapify(self._slow)
        self._count += 1
        heapq.heappush(self._slow, (job.end, self._count, job))

    def _due(self) -> float:
        """When fast workers have to begin with the slow lane, so that all that waits in it can be judged in time."""
        if not self._slow:
            return float("inf")
        return self.last_moment(self._slow[0][2]) - self._slow_s * len(self._slow) / self._worker_count
