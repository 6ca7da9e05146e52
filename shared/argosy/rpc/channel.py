"""Channels to our servers, and the one way to call them: sized, mapped, retried, all inside a total deadline.

caller = Caller("127.0.0.1:4711", what="reward-0")
stub = RewardServiceStub(caller.channel)
response = await caller.unary(stub.GetCapabilities, lambda left_s: pb.GetCapabilitiesRequest(...), deadline_s=10)
await caller.close()
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from argosy.rpc.errors import from_rpc_error
from argosy.rpc.fork import claim_process
from argosy.rpc.interceptors import check_message_size
from argosy.rpc.options import RpcOptions
from argosy.rpc.retry import RetryPolicy, retry
from argosy.types.errors import DeadlineError, UnavailableError

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Result = TypeVar("Result")


def open_channel(
    address: str, options: RpcOptions | None = None, interceptors: Iterable[grpc.aio.ClientInterceptor] = ()
) -> grpc.aio.Channel:
    """An insecure channel to host:port; connects when first used. StateError in a forked child."""
    claim_process()
    options = options or RpcOptions()
    return grpc.aio.insecure_channel(address, options=options.client(), interceptors=list(interceptors))


class Caller:
    """One server as seen by a client."""

    def __init__(
        self, address: str, *, what: str = "", options: RpcOptions | None = None, policy: RetryPolicy | None = None
    ) -> None:
        self.address = address
        self.what = f"{what} at {address}" if what else address
        self.options = options or RpcOptions()
        self.policy = policy or RetryPolicy()
        self.channel = open_channel(address, self.options)

    async def unary(
        self,
        method: Callable[..., grpc.aio.UnaryUnaryCall[Request, Response]],
        request: Callable[[float], Request],
        *,
        deadline_s: float,
        policy: RetryPolicy | None = None,
    ) -> Response:
        """One answer. `request` makes the message of each try from the seconds that are left.

        Only for calls that may be repeated: reads, and mutations with a request id.
        """

        async def attempt(timeout_s: float, left_s: float) -> Response:
            message = request(left_s)
            check_message_size(f"a request to {self.what}", message, self.options.max_message_bytes)
            return await method(message, timeout=timeout_s)

        return await self.retry(attempt, deadline_s=deadline_s, policy=policy)

    async def upload(
        self,
        method: Callable[..., grpc.aio.StreamUnaryCall[Request, Response]],
        requests: Callable[[float], Iterable[Request]],
        *,
        deadline_s: float,
        policy: RetryPolicy | None = None,
    ) -> Response:
        """One answer to a stream; `requests` makes the messages of each try anew. For calls that may be repeated."""

        async def attempt(timeout_s: float, left_s: float) -> Response:
            return await method(iter_async(requests(left_s)), timeout=timeout_s)

        return await self.retry(attempt, deadline_s=deadline_s, policy=policy)

    async def retry(
        self,
        attempt: Callable[[float, float], Awaitable[Result]],
        *,
        deadline_s: float,
        policy: RetryPolicy | None = None,
    ) -> Result:
        """Run `attempt(timeout_s, left_s)` with gRPC errors mapped, and again as the policy allows."""

        claim_process()

        async def mapped(timeout_s: float, left_s: float) -> Result:
            started = time.monotonic()
            try:
                return await attempt(timeout_s, left_s)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.INTERNAL and time.monotonic() - started >= timeout_s:
                    # A stream whose deadline passes while it sends ends as an error of gRPC's own core.
                    raise DeadlineError(f"{self.what}: no answer within {timeout_s:g} s") from error
                raise from_rpc_error(error, peer=self.what) from error
            except grpc.aio.UsageError as error:  # a call on a closed channel
                raise UnavailableError(f"{self.what}: the connection was closed here") from error
            except asyncio.CancelledError as error:
                # Closing a channel cancels its calls, which must not look as if the caller itself had been cancelled.
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                raise UnavailableError(f"{self.what}: the connection was closed here") from error

        return await retry(mapped, deadline_s=deadline_s, policy=policy or self.policy, what=self.what)

    async def close(self) -> None:
        """End the running calls and close the connection."""
        await self.channel.close()


async def iter_async(items: Iterable[Request]) -> AsyncIterator[Request]:
    """An iterable as the asynchronous iterator that grpc.aio streams want; lets other tasks run between items."""
    for item in items:
        yield item
        await asyncio.sleep(0)
