"""An OpenAI-compatible endpoint that says what the policy has already said.

An environment server of the verifiers library runs a rollout itself, with a model that it is told to ask. Asked about a
finished answer, it is told to ask here: the "model" is a name that stands for one sample, and the answer is the
sample's. It listens on loopback, holds only answers that are being judged, and knows only POST …/chat/completions.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MAX_HEAD_BYTES = 64 << 10
_MAX_BODY_BYTES = 16 << 20
_READ_S = 30.0


@dataclass(slots=True)
class _Answer:
    text: str
    finish_reason: str
    asked: str = ""
    """The messages that it was given for; "" as long as nobody asked."""


class ReplayEndpoint:
    """Serves answers by the name of their "model"."""

    def __init__(self) -> None:
        self._answers: dict[str, _Answer] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen on a free port of loopback."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_MAX_HEAD_BYTES)

    @property
    def url(self) -> str:
        """What an OpenAI client takes as its base URL."""
        if self._server is None:
            raise RuntimeError("start it first")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    def offer(self, text: str, *, whole: bool) -> str:
        """Hold an answer ready; returns the model's name for it. `whole`: it wasn't cut by the length limit."""
        name = f"argosy-replay-{secrets.token_hex(12)}"
        self._answers[name] = _Answer(text, "stop" if whole else "length")
        return name

    def withdraw(self, name: str) -> bool:
        """Forget an answer; returns whether it was asked for."""
        return bool(self._answers.pop(name).asked)

    async def close(self) -> None:
        """Stop listening."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_READ_S):
                status, answer = self._respond(*await _read(reader))
            body = json.dumps(answer).encode()
            head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
            await writer.drain()
        except (TimeoutError, ValueError, OSError, EOFError, asyncio.LimitOverrunError):
            pass  # a peer that sends nonsense, or goes away, gets no answer: its own rollout fails, and says so
        finally:
            writer.close()

    def _respond(self, path: str, body: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        answer = self._answers.get(str(body.get("model")))
        if not path.split("?")[0].endswith("/chat/completions") or answer is None:
            return "404 Not Found", _error(f"there is no {path} for model {body.get('model')!r}")
        messages = json.dumps(body.get("messages"))
        if answer.asked not in ("", messages):
            return "409 Conflict", _error("the policy has given one answer; an environment of several turns needs more")
        answer.asked = messages
        message = {"role": "assistant", "content": answer.text}
        return "200 OK", {
            "id": f"chatcmpl-{body['model']}",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": answer.finish_reason, "logprobs": None}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }


async def _read(reader: asyncio.StreamReader) -> tuple[str, Mapping[str, Any]]:
    """Path and JSON object of a request. Raises ValueError on anything that isn't one."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    size = int(headers.get("content-length", "0"))
    if method != "POST" or not 0 < size <= _MAX_BODY_BYTES:
        raise ValueError(f"{method} with {size} bytes")
    body = json.loads(await reader.readexactly(size))
    if not isinstance(body, Mapping):
        raise ValueError("no JSON object")
    return path, body


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}
