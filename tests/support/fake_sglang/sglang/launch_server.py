"""SGLang's HTTP protocol as far as the adapter uses it, with the standard library.

The next token is (3 × last + 7) mod 250 + 3 with log-prob -1 (-2 where a sampling mask is asked for). FAKE_SGLANG names
a fault: never_ready, dies_at_start, unwell, refuses_weights, no_log_probs, other_version, refuses_requests.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FAULT = os.environ.get("FAKE_SGLANG", "")
STEP_S = 0.002


class State:
    """What all handlers share."""

    version = ""
    key = ""
    busy_flushes = 0
    aborted: set[str] = set()  # noqa: RUF012
    updates: list[str] = []  # noqa: RUF012


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        well = {"/ready": FAULT != "never_ready", "/health": FAULT != "unwell"}.get(self.path, False)
        self._answer(200 if well else 503, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if State.key and self.headers.get("Authorization") != f"Bearer {State.key}":
            self._answer(401, {"error": "Unauthorized"})
            return
        if self.path == "/generate":
            self._generate(body)
            return
        if self.path == "/flush_cache" and State.busy_flushes:
            State.busy_flushes -= 1  # as after an abort: the batch still has the request
            self._answer(400, {})
            return
        if self.path == "/abort_request":
            State.busy_flushes = 2
            State.aborted.add(body["rid"])
        if self.path == "/update_weights_from_disk":
            if FAULT == "refuses_weights":
                self._answer(400, {"success": False, "message": "bad weights"})
                return
            if not os.path.exists(os.path.join(body["model_path"], "model.safetensors")):
                self._answer(400, {"success": False, "message": "no file"})
                return
            State.version = body["weight_version"]
        self._answer(200, {"success": True})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _generate(self, body: dict[str, Any]) -> None:
        warm_up = "rid" not in body
        if FAULT == "refuses_requests" and not warm_up:
            self._answer(400, {"error": {"message": "top_z is unknown"}})
            return
        self.send_response(200)
        self.end_headers()
        params, masked = body["sampling_params"], bool(body.get("return_sampling_mask"))
        ids, stops = list(body["input_ids"]), set(params.get("stop_token_ids", ()))
        banned = set(map(int, params.get("logit_bias", {})))
        for count in range(1, params["max_new_tokens"] + 1):
            time.sleep(STEP_S)
            token = (3 * ids[-1] + 7) % 250 + 3
            while token in banned:
                token += 1
            ids.append(token)
            ended = not params.get("ignore_eos") and token in stops
            reason = {"type": "stop"} if ended else {"type": "length"} if count == params["max_new_tokens"] else None
            if body.get("rid") in State.aborted:
                reason = {"type": "abort", "message": "asked to"}
            if not self._send(token, reason, masked, warm_up=warm_up) or reason is not None:
                break
        self._write(b"data: [DONE]\n\n")

    def _send(self, token: int, reason: dict[str, str] | None, masked: bool, *, warm_up: bool) -> bool:
        told: dict[str, Any] = {
            "finish_reason": reason,
            "weight_version": "another" if FAULT == "other_version" and not warm_up else State.version,
            "output_token_logprobs": [[-1.0, token, None]],
            "cached_tokens": 1,
        }
        if masked:
            told["output_token_sampling_logprobs"] = [-2.0]
        if FAULT == "no_log_probs" and not warm_up:
            told["output_token_logprobs"] = []
        return self._write(b"data: " + json.dumps({"output_ids": [token], "meta_info": told}).encode() + b"\n\n")

    def _write(self, data: bytes) -> bool:
        try:
            self.wfile.write(data)
            self.wfile.flush()
        except OSError:
            return False
        return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--weight-version")
    parser.add_argument("--config", type=Path)
    known, rest = parser.parse_known_args()
    if FAULT == "dies_at_start":
        sys.exit(7)
    State.version = known.weight_version
    if known.config is not None:
        State.key = json.loads(known.config.read_text().removeprefix("api-key:"))
    print("fake sglang:", *rest, file=sys.stderr)
    server = ThreadingHTTPServer(("127.0.0.1", known.port), Handler)
    threading.Thread(target=server.serve_forever, daemon=False).start()


if __name__ == "__main__":
    main()
