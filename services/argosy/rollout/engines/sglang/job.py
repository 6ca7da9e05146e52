"""A sample in flight, and the request that it is at the server now."""

from __future__ import annotations

import asyncio

from argosy.rollout.engines.sampling.sample import Sample


class Job:
    """A sample and the request that it is at the server now."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.request_id = ""
        """Of the segment under way; empty between two."""
        self.aborted = False
        """By a caller: it ends with what it has."""
        self.interrupted = False
        """The segment is ended on purpose; the sample may go on in another."""
        self.idle = asyncio.Event()
        """Set while nothing of it is at the server."""
        self.idle.set()
        self.task: asyncio.Task[None] | None = None


def stream_interval(sample: Sample) -> int:
    """Tokens that the server may hold back: none where they decide about the end, or are to be told at once."""
    if sample.stops is not None or (sample.request.params.ignore_eos and sample.stop_ids):
        return 1
    return max(1, min(sample.interval or 8, 8))
