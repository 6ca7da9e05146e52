"""A small real HTTP server in the public shapes of vLLM, SGLang and OpenAI, for scoring models and judges."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Mapping[str, Any]


@dataclass
class Fault:
    """What a request meets in place of its answer."""

    status: int = 503
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"busy"
    hang_s: float = 0.0
    drop: bool = False
    """Close the connection without an answer."""


@dataclass
class ModelServer:
    """What it was asked, and how it answers."""

    url: str = ""
    values: Callable[[list[int]], list[float]] = lambda ids: [float(len(ids))]
    """Of a scoring model, from token ids."""
    reply: Callable[[list[dict[str, str]]], str] = lambda messages: "Score: 7"
    """Of a judge, from messages."""
    finish_reason: str | None = "stop"
    """Of a judge's replies."""
    faults: list[Fault] = field(default_factory=list)
    """For the next requests, in their order."""
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    delay_s: float = 0.0
    running: int = 0
    most_running: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        """By path and, for /classify, by the shape of the request."""
        if path.endswith("/chat/completions"):
            text = self.reply(body["messages"])
            usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": self.finish_reason,
            }
            return {"choices": [choice], "usage": usage}
        usage = {"prompt_tokens": 50, "total_tokens": 50}
        if path == "/classify" and "input_ids" in body:
            return {"embedding": self.values(body["input_ids"]), "meta_info": {}}
        if path == "/classify":
            ids = body.get("input") or list(json.dumps(body["messages"]).encode())
            data: Any = {"index": 0, "label": None, "probs": self.values(ids), "num_classes": 1}
        elif path == "/score":
            data = {"index": 0, "object": "score", "score": self.values(list(body["text_2"].encode()))[0]}
        elif path == "/pooling":
            data = {"index": 0, "data": [[0.0], self.values(body["input"])]}
        elif path == "/v1/embeddings":
            data = {"index": 0, "embedding": self.values(body["input"])}
        else:
            return None
        return {"object": "list", "data": [data], "usage": usage}


@contextmanager
def model_server() -> Iterator[ModelServer]:
    """Serve on a free port of loopback until the end."""
    server = ModelServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with server.lock:
                server.requests.append((self.path, body))
                server.headers.append(dict(self.headers))
                server.times.append(time.monotonic())
                fault = server.faults.pop(0) if server.faults else None
                server.running += 1
                server.most_running = max(server.most_running, server.running)
            time.sleep(server.delay_s)
            try:
                self._respond(fault, body)
            finally:
                with server.lock:
                    server.running -= 1

        def _respond(self, fault: Fault | None, body: dict[str, Any]) -> None:
            if fault is not None:
                time.sleep(fault.hang_s)
                if fault.drop:
                    self.close_connection = True
                    return
                self._send(fault.status, fault.body, fault.headers)
                return
            answer = server.answer(self.path, body)
            self._send(404 if answer is None else 200, json.dumps(answer).encode(), {})

        def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Clients that gave up are part of the tests."""

    httpd = Quiet(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{httpd.server_port}"
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()
