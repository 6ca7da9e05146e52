"""An environment server of the verifiers library as a reward service.

Such a server speaks ZeroMQ (a DEALER here, a ROUTER there): a request is two frames, an id and msgpack of

    {"request_type": "run_rollout", "model": …, "client_config": {"api_base_url": …, …}, "sampling_args": {},
     "input": {"prompt": [messages], "answer": …, "info": {…}, "example_id": 7}, …}

and its answer the same id and {"success": true, "output": {"reward": 0.5, "metrics": {"format": 1.0}, …}}. The rollout
is one of a "model" that says what the policy has said (replay.py), so environments of one turn are scored as they are;
those of several turns, or with tools, are refused by their own rollout's failure.

This is the protocol of the library's v0 environments, whose requests hold the row itself; its v1 tasksets hold their
own rows and are asked by number, so they can't be given ours. It needs argosy[reward-verifiers].
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgpack
import zmq
import zmq.asyncio

from argosy.config import Config
from argosy.config.schema.reward_adapters import VerifiersConfig
from argosy.reward.adapters.base import AdapterCore, ServerOptions
from argosy.reward.adapters.replay import ReplayEndpoint
from argosy.reward.custom import outcome_of
from argosy.reward.models.endpoint import EndpointError
from argosy.types.errors import ConfigError
from argosy.types.records import Failed, Outcome, ScoreRequest

_LOG = logging.getLogger(__name__)
_MAX_ANSWER_BYTES = 64 << 20


class VerifiersCore(AdapterCore):
    """Asks an environment server to run a rollout whose answer is known."""

    needs_messages = True

    def __init__(self, options: ServerOptions, verifiers: VerifiersConfig) -> None:
        """Raises ConfigError unless the URL is tcp://host:port."""
        super().__init__(options)
        parts = urlsplit(options.url)
        if parts.scheme != "tcp" or parts.hostname is None or parts.port is None:
            raise ConfigError(
                f"argosy.reward.server.url: got {options.url!r}, wants tcp://host:port for kind=verifiers"
            )
        self._task = verifiers.task
        self._slots = asyncio.Semaphore(options.config.concurrency)
        self._connecting = asyncio.Lock()
        self._waiting: dict[bytes, asyncio.Future[Any]] = {}
        self._replay: ReplayEndpoint | None = None
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._receiving: asyncio.Task[None] | None = None

    async def judge_one(self, item: ScoreRequest, deadline_s: float) -> Outcome:
        """One rollout, of which silence is the end: the server can't be told to stop it, so a second one would run
        beside it. Whether the sample is worth another is the controller's decision."""
        try:
            async with asyncio.timeout(deadline_s), self._slots, asyncio.timeout(self.options.config.timeout_s):
                return await self._rollout(item)
        except TimeoutError:
            raise EndpointError("timeout", f"{self.options.url} gave no answer in time") from None

    async def _rollout(self, item: ScoreRequest) -> Outcome:
        replay = await self._connected()
        name = replay.offer(item.response_text, whole=item.valid_response)
        asked = False
        try:
            answer = await self._call(request_of(item, name, replay.url, self._task))
        finally:
            asked = replay.withdraw(name)
        return outcome_of_rollout(answer, self.options.url, asked=asked)

    async def _call(self, request: Mapping[str, Any]) -> Any:
        assert self._socket is not None
        key = uuid.uuid4().hex.encode()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        try:
            await self._socket.send_multipart([key, msgpack.packb(request, use_bin_type=True)])
            return await future
        finally:
            del self._waiting[key]

    async def _connected(self) -> ReplayEndpoint:
        """Connect when first used: sockets belong to the event loop that uses them."""
        async with self._connecting:
            if self._replay is None or self._receiving is None or self._receiving.done():
                await self.close()
                replay = ReplayEndpoint()
                await replay.start()
                self._context = zmq.asyncio.Context()
                self._socket = self._context.socket(zmq.DEALER)
                self._socket.setsockopt(zmq.LINGER, 0)
                self._socket.setsockopt(zmq.MAXMSGSIZE, _MAX_ANSWER_BYTES)
                self._socket.connect(self.options.url)
                self._receiving = asyncio.create_task(self._receive(self._socket), name="receive rollouts")
                self._replay = replay
            return self._replay

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        """Hand answers to who waits for them. If that ends, all that wait are told; the next call connects anew."""
        why = "it was closed"
        try:
            while True:
                self._answered(*await socket.recv_multipart())
        except Exception as error:  # noqa: BLE001 -- whatever it was, nobody may wait for it in vain
            _LOG.exception("the connection to %s is lost", self.options.url)
            why = f"{type(error).__name__}: {error}"
        finally:
            for future in self._waiting.values():
                if not future.done():
                    message = f"the connection to {self.options.url} is lost: {why}"
                    future.set_exception(EndpointError("unavailable", message))

    def _answered(self, key: bytes, *frames: bytes) -> None:
        future = self._waiting.get(key)
        if future is None or future.done() or len(frames) != 1:
            return  # of an attempt that was given up
        try:
            future.set_result(msgpack.unpackb(frames[0], raw=False))
        except Exception as error:  # noqa: BLE001 -- it is the server's answer that can't be read, not a defect here
            future.set_exception(EndpointError("bad_return", f"{self.options.url} sent no msgpack: {error}"))

    async def close(self) -> None:
        """Close the connection."""
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.gather(self._receiving, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)
        if self._replay is not None:
            await self._replay.close()
        self._receiving, self._context, self._replay = None, None, None


def request_of(item: ScoreRequest, model: str, base_url: str, task: str | None) -> dict[str, Any]:
    """The request for one rollout."""
    truth, info = item.ground_truth, item.extra_info.get("info", item.extra_info)
    return {
        "request_type": "run_rollout",
        "input": {
            "prompt": [dict(message) for message in item.messages] or [{"role": "user", "content": item.prompt_text}],
            "answer": truth if isinstance(truth, str) else json.dumps(truth),
            "info": dict(info) if isinstance(info, Mapping) else info,
            "example_id": item.sample_id.position,
            **({} if task is None else {"task": task}),
        },
        "client_config": {
            "client_type": "openai_chat_completions",
            "api_key_var": "ARGOSY_NO_KEY",
            "api_base_url": base_url,
        },
        "model": model,
        "sampling_args": {},
        "max_retries": 0,
        "state_columns": [],
        "score": True,
    }


def outcome_of_rollout(answer: Any, label: str, *, asked: bool) -> Outcome:
    """What the server's answer means; its metrics become parts."""
    if not isinstance(answer, Mapping):
        return Failed("bad_return", f"{label} sent {type(answer).__name__} instead of an object")
    output = answer.get("output") or answer.get("state")
    if not answer.get("success") or not isinstance(output, Mapping):
        return Failed("environment", f"{label}: {answer.get('error') or 'it gave no rollout'}"[:1000])
    if output.get("error"):
        return Failed("environment", f"{label}: the rollout failed: {output['error']}"[:1000])
    if not asked:
        return Failed("environment", f"{label} gave a reward without asking for the answer: whose was it?")
    metrics = output.get("metrics")
    parts = {str(name): value for name, value in metrics.items()} if isinstance(metrics, Mapping) else {}
    parts.pop("reward", None)
    return outcome_of({**parts, "score": output.get("reward")}, label)


def build(config: Config) -> VerifiersCore:
    """For `argosy.reward.kind=verifiers`. Raises ConfigError."""
    return VerifiersCore(ServerOptions.of(config, "verifiers"), config.argosy.reward.verifiers)
