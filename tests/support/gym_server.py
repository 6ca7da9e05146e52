"""A small resources server as NeMo Gym documents it: /seed_session and /verify, sessions by cookie, strict bodies.

Its task: the answer's last word must be `expected_answer`; `verifier_metadata.factor` multiplies the reward.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class GymServer:
    """What it was asked."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Of /verify."""
    sessions: list[str] = field(default_factory=list)
    """Of /verify, by cookie; "" without one."""
    seeded: dict[str, dict[str, Any]] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Put into each answer of /verify."""
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def verify(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Raises KeyError, TypeError or AssertionError on a body that isn't of the documented shape."""
        assert all({"role", "content"} <= message.keys() for message in body["responses_create_params"]["input"])
        response = body["response"]
        assert {"id", "created_at", "model", "object", "output", "tool_choice", "tools"} <= response.keys()
        assert response["object"] == "response"
        [message] = response["output"]
        assert (message["type"], message["role"]) == ("message", "assistant")
        text = "".join(part["text"] for part in message["content"] if part["type"] == "output_text")
        reward = float(text.split()[-1:] == [body["expected_answer"]])
        return {**body, "reward": reward * body.get("verifier_metadata", {}).get("factor", 1.0), **self.extra}


@contextmanager
def gym_server() -> Iterator[GymServer]:
    """Serve on a free port of loopback until the end."""
    gym = GymServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            cookie = SimpleCookie(self.headers.get("cookie", "")).get("session")
            session = "" if cookie is None else cookie.value
            if self.path == "/seed_session":
                session = f"s{next(gym.numbers)}"
                gym.seeded[session] = body
                self._send(200, {}, f"session={session}; path=/; HttpOnly")
                return
            gym.bodies.append(body)
            gym.sessions.append(session)
            try:
                self._send(200, gym.verify(body))
            except (KeyError, TypeError, AssertionError) as error:
                self._send(422, {"detail": repr(error)})

        def _send(self, status: int, body: Mapping[str, Any], cookie: str = "") -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            if cookie:
                self.send_header("set-cookie", cookie)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    gym.url = f"http://127.0.0.1:{httpd.server_port}"
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield gym
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()
