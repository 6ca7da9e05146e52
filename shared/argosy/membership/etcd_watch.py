"""List, then watch: the newest content of a key prefix, delivered to an event loop (cases F5, F6)."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc

from argosy.membership.etcd_client import EtcdClient, prefix_end
from argosy.types.errors import UnavailableError

_LOG = logging.getLogger(__name__)
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


class PrefixWatch:
    """A thread that follows one prefix and hands each new content to the loop.

    The loop sees the newest content only (one slot, no queue). After any break of the stream (a lost connection, a
    compaction, an etcd that came back with another history) the whole prefix is read again and watched from the
    revision of that reading, so that nothing, a delete least of all, is missed. While etcd is down the thread sleeps
    between tries, and the reader simply keeps what it has.
    """

    def __init__(self, client: EtcdClient, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._loop = asyncio.get_running_loop()
        self._fresh = asyncio.Event()
        self._content: dict[str, bytes] | None = None
        self._stop = threading.Event()
        self._call: Any = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"etcd-watch {prefix}", daemon=True)
        self._thread.start()

    async def contents(self) -> AsyncIterator[dict[str, bytes]]:
        """The prefix's content, first as it is, then after each change; ends after `stop`."""
        while not self._stop.is_set():
            await self._fresh.wait()
            self._fresh.clear()
            if self._content is not None and not self._stop.is_set():
                yield self._content

    def stop(self) -> None:
        """End the thread and the iteration. Returns at once; call it from the loop."""
        self._stop.set()
        with self._lock:
            if self._call is not None:
                self._call.cancel()
        self._fresh.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._stop.is_set():
            try:
                followed = self._list_and_follow()
                pause = _FIRST_PAUSE_S if followed else pause
            except (grpc.RpcError, UnavailableError) as error:
                if not self._stop.is_set():
                    _LOG.debug("watch of %s lost etcd, going on with the last snapshot: %s", self._prefix, error)
            self._stop.wait(pause * (0.5 + random.random()))
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _list_and_follow(self) -> bool:
        """Read everything, then apply events until the stream ends; whether the stream worked."""
        listed, revision = self._client.range(self._prefix, prefix=True)
        content = {kv.key: kv.value for kv in listed}
        self._publish(content)
        done = threading.Event()
        call = self._client.open_watch(self._requests(revision + 1, done))
        with self._lock:
            self._call = call
        if self._stop.is_set():  # stop() may have come before it could see the call
            call.cancel()
        worked = False
        try:
            for answer in call:
                if answer.canceled or answer.compact_revision:
                    _LOG.info(
                        "watch of %s was cancelled (compacted up to %d): reading it again",
                        self._prefix,
                        answer.compact_revision,
                    )
                    break
                worked = True
                if answer.events:
                    content = _apply(content, answer.events)
                    self._publish(content)
        finally:
            done.set()
            call.cancel()
        return worked

    def _requests(self, start_revision: int, done: threading.Event) -> Iterator[Any]:
        pb = self._client.pb
        create = pb.WatchCreateRequest(
            key=self._prefix.encode(), range_end=prefix_end(self._prefix), start_revision=start_revision
        )
        yield pb.WatchRequest(create_request=create)
        done.wait()  # the stream stays open for as long as its request side does

    def _publish(self, content: dict[str, bytes]) -> None:
        def deliver() -> None:
            if content != self._content:
                self._content = content
                self._fresh.set()

        try:
            self._loop.call_soon_threadsafe(deliver)
        except RuntimeError:  # the loop has closed: nobody is left to tell
            self._stop.set()


def _apply(content: dict[str, bytes], events: Any) -> dict[str, bytes]:
    """A new content with the events applied, in order."""
    changed = dict(content)
    for event in events:
        key = event.kv.key.decode()
        if event.type == event.DELETE:
            changed.pop(key, None)
        else:
            changed[key] = event.kv.value
    return changed
