"""A small environment server as the verifiers library documents its own: ZeroMQ, msgpack, a rollout of a model.

Its environment: one turn; the reward is 1 if the answer is in the completion. It serves in a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgpack
import zmq
import zmq.asyncio


@dataclass
class EnvironmentServer:
    """What it was asked, and how it behaves."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    turns: int = 1
    """Times that it asks the model."""
    silent: int = 0
    """Requests that get no answer."""
    answer: Mapping[str, Any] | None = None
    """Given in place of a rollout's."""
    delay_s: float = 0.0
    model: httpx.AsyncClient | None = None
    running: int = 0
    most_running: int = 0

    async def rollout(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert request["request_type"] == "run_rollout"
        row, client = request["input"], request["client_config"]
        assert {"prompt", "answer", "info", "example_id"} <= row.keys()
        messages = list(row["prompt"])
        if self.model is None:  # one for all: making one takes 50 ms
            self.model = httpx.AsyncClient(headers={"authorization": "Bearer x"})
        for _ in range(self.turns):
            body = {"model": request["model"], "messages": messages, **request["sampling_args"]}
            response = await self.model.post(f"{client['api_base_url']}/chat/completions", json=body)
            if response.status_code != 200:
                return {"success": True, "error": None, "output": {"reward": 0.0, "error": response.text}}
            messages.append(response.json()["choices"][0]["message"])
            messages.append({"role": "user", "content": "go on"})
        text = messages[len(row["prompt"])]["content"]
        reward = float(row["answer"] in text)
        output = {
            "example_id": row["example_id"], "prompt": row["prompt"], "reward": reward,
            "completion": messages[len(row["prompt"]) : -1], "is_completed": True, "is_truncated": False,
            "metrics": {"contains": reward, "length": float(len(text))}, "timing": {},
        }  # fmt: skip
        return {"success": True, "error": None, "output": output}

    async def respond(self, socket: zmq.asyncio.Socket, client: bytes, key: bytes, payload: bytes) -> None:
        request = msgpack.unpackb(payload, raw=False)
        self.requests.append(request)
        if self.silent:
            self.silent -= 1
            return
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(self.delay_s)
        answer = self.answer if self.answer is not None else await self.rollout(request)
        self.running -= 1
        await socket.send_multipart([client, key, msgpack.packb(answer, use_bin_type=True)])


@contextmanager
def environment_server() -> Iterator[EnvironmentServer]:
    """Serve on a free port of loopback until the end."""
    made = EnvironmentServer()
    ready, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.ROUTER)
        made.url = f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
        tasks: set[asyncio.Task[None]] = set()

        async def receive() -> None:
            while True:
                client, key, payload = await socket.recv_multipart()
                tasks.add(asyncio.create_task(made.respond(socket, client, key, payload)))

        receiving = asyncio.create_task(receive())
        ready.set()
        await stop.wait()
        for task in (receiving, *tasks):
            task.cancel()
        await asyncio.gather(receiving, *tasks, return_exceptions=True)
        if made.model is not None:
            await made.model.aclose()
        context.destroy(linger=0)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
