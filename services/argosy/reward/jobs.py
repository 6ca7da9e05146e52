"""What waits for a worker, and who may say how it ended."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from argosy.types.records import Failed, Outcome


@dataclass(slots=True, eq=False)
class Job:
    """A message for a worker: a sample, or a batch for a function that takes batches."""

    message: Mapping[str, Any]
    end: float
    """The call's deadline, by time.monotonic()."""
    future: concurrent.futures.Future[list[Outcome]] = field(default_factory=concurrent.futures.Future)
    since: float = field(default_factory=time.monotonic)
    """When it came to where it is."""
    hurried: bool = False
    """It was put aside, and is now judged without a quota."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def source(self) -> str:
        """The data source of its first sample."""
        return str(self.message["samples"][0]["data_source"])

    def failed(self, reason: str, message: str) -> list[Outcome]:
        """The same for all its samples."""
        return [Failed(reason, message)] * len(self.message["samples"])

    def finish(self, outcomes: list[Outcome] | Exception) -> None:
        """Give the outcomes to whoever still waits for them; the first ones count."""
        with self._lock:  # two workers may judge the same job
            if self.future.done() or not self.future.set_running_or_notify_cancel():
                return
            if isinstance(outcomes, Exception):
                self.future.set_exception(outcomes)
            else:
                self.future.set_result(outcomes)


def abort(jobs: Iterable[Job]) -> None:
    """They aren't judged any more."""
    for job in jobs:
        job.finish(job.failed("aborted", "the reward workers were closed"))
