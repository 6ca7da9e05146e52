"""Python that the model writes, run in the sandbox (docs/sandbox.md): a process of its own for each call, no network,
no files of this machine but the interpreter's, bounded memory, time and output."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from argosy.controller.agents.parsers.base import Schema
from argosy.controller.agents.tools.base import BaseTool, ToolResponse
from argosy.sandbox.job import Job, Program
from argosy.sandbox.options import SandboxError, SandboxOptions
from argosy.sandbox.runner import Sandbox

_DEADLINE_FACTOR = 4.0
"""How much longer than its own time a program may be there while the machine is busy."""
_SHOWN_CHARACTERS = 20_000
"""More of the output isn't given back; multi_turn.max_tool_response_length cuts further."""


class PythonTool(BaseTool):
    """Runs a program and gives back what it prints.

    `config`: time_limit_s (5) of processor or waking time, memory_mb (512), processes (16), isolation ("required", or
    "allowed_without" for machines that can't isolate, as in argosy.reward.sandbox.isolation), max_concurrency (2).
    """

    schema: ClassVar[Schema | None] = {
        "type": "function",
        "function": {
            "name": "python",
            "description": "Runs a Python program and gives back what it prints.",
            "parameters": {
                "type": "object",
                "properties": {"code": {"type": "string", "description": "The program; print what you want to see."}},
                "required": ["code"],
            },
        },
    }

    def __init__(self, config: Mapping[str, Any], tool_schema: Schema) -> None:
        self.time_limit_s = float(config.get("time_limit_s", 5.0))
        super().__init__({"max_concurrency": 2, "timeout_s": 6 * self.time_limit_s + 30, **config}, tool_schema)
        self._options = SandboxOptions(
            isolation=str(config.get("isolation", "required")),
            memory_bytes=int(config.get("memory_mb", 512)) * 1024**2,
            process_count=int(config.get("processes", 16)),
            output_bytes=1024**2,
            sample_timeout_s=self.time_limit_s,
            test_timeout_s=self.time_limit_s,
        )
        self._idle: list[Sandbox] = []
        self._lock = threading.Lock()
        self._closed = False

    def execute(self, instance_id: str, parameters: Mapping[str, Any], **kwargs: Any) -> ToolResponse:  # type: ignore[override]
        """Blocks: the caller runs it on a thread."""
        sandbox = self._borrow()
        try:
            deadline = time.monotonic() + _DEADLINE_FACTOR * self.time_limit_s + 10
            with sandbox.run(Program(str(parameters["code"])), deadline=deadline) as job:
                job.feed(b"")
                job.pump(lambda: job.over, self.time_limit_s)
                return self._response(job)
        except SandboxError as error:  # nothing is known about the program, and the model is told so
            return ToolResponse(f"error: the sandbox failed: {error}", failed=True)
        finally:
            self._give_back(sandbox)

    def close(self) -> None:
        """End the sandboxes."""
        with self._lock:
            self._closed, idle = True, self._idle
            self._idle = []
        for sandbox in idle:
            sandbox.close()

    def _response(self, job: Job) -> ToolResponse:
        output = job.stdout.decode("utf-8", "replace")[:_SHOWN_CHARACTERS]
        ended = job.ended
        if ended is None or ended.how == "timeout":
            return ToolResponse(
                _joined(output, f"error: the program ran longer than {self.time_limit_s:g} s"), failed=True
            )
        if ended.how == "memory":
            mib = self._options.memory_bytes // 1024**2
            return ToolResponse(_joined(output, f"error: the program used more than {mib} MiB"), failed=True)
        if ended.how == "output":
            return ToolResponse(_joined(output, "error: the program printed more than 1 MiB"), failed=True)
        if ended.status != 0:
            errors = job.errors.decode("utf-8", "replace").strip() or f"exit status {ended.status}"
            return ToolResponse(_joined(output, errors), failed=True)
        return ToolResponse(output)

    def _borrow(self) -> Sandbox:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return Sandbox(self._options)

    def _give_back(self, sandbox: Sandbox) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(sandbox)
                return
        sandbox.close()


def _joined(output: str, error: str) -> str:
    return f"{output.rstrip()}\n{error}" if output.strip() else error
