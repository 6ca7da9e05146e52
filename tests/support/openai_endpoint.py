"""An endpoint over the real embedded engine and a real HTTP server, with an admission that the test holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
from openai import AsyncOpenAI

from argosy.config import Config
from argosy.controller.context import RunContext, Services
from argosy.controller.data.prompts import load_prompts, tokenizer_of
from argosy.controller.data.sampler import PromptSampler
from argosy.controller.groups import FinishedGroup, Ticket
from argosy.controller.ledger import Ledger
from argosy.controller.openai.endpoint import open_endpoint
from argosy.controller.openai.source import SessionSource
from argosy.controller.stages.rollout import RolloutStage
from argosy.membership.memory import MemoryMembership
from argosy.rollout.build import build_core
from argosy.text import TextTokenizer
from argosy.types.records import Completion, GenerateRequest


@dataclass
class Gate:
    """An admission that lets in as many groups as the test says."""

    room: int = 1000
    admitted: int = 0
    finished: list[FinishedGroup] = field(default_factory=list)
    given_up: list[Ticket] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def admit(self) -> Ticket:
        while self.room < 1:
            self.changed.clear()
            await self.changed.wait()
        self.room -= 1
        self.admitted += 1
        return Ticket(self.admitted, 0)

    def open(self, room: int) -> None:
        self.room = room
        self.changed.set()

    def finish(self, ticket: Ticket, group: FinishedGroup) -> None:
        self.finished.append(group)

    def give_up(self, ticket: Ticket) -> None:
        self.given_up.append(ticket)


@dataclass
class Served:
    """A running endpoint and what stands behind it."""

    address: str
    ctx: RunContext
    core: Any
    rollout: Any
    source: SessionSource
    gate: Gate
    tokenizer: TextTokenizer
    running: asyncio.Task[None]
    plain: httpx.AsyncClient
    clients: list[AsyncOpenAI] = field(default_factory=list)

    def client(self, base_url: str = "", api_key: str = "none", **fields: Any) -> AsyncOpenAI:
        """The real client; it doesn't repeat calls unless asked to."""
        client = AsyncOpenAI(
            base_url=base_url or f"{self.address}/v1", api_key=api_key, **({"max_retries": 0, "timeout": 60} | fields)
        )
        self.clients.append(client)
        return client

    async def http(self, method: str, path: str, body: Any = None, **fields: Any) -> httpx.Response:
        """One plain request."""
        return await self.plain.request(method, self.address + path, json=body, **fields)

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait for it, at most some seconds."""
        async with asyncio.timeout(30):
            while not await condition():  # noqa: ASYNC110 - what it looks at tells nobody
                await asyncio.sleep(0.01)

    async def is_running(self) -> bool:
        """Whether the engine has a sample."""
        return bool((await self.core.status()).running_count)

    async def is_idle(self) -> bool:
        """Whether it has none."""
        return not await self.is_running()

    def state_of(self, sample: object) -> str:
        """Of a sample in the books: its state, and why it was dropped."""
        for entry in (*self.ctx.ledger._open.values(), *self.ctx.ledger._ended.values()):
            if str(entry.sample) == str(sample):
                return f"{entry.state} {entry.reason or ''}".strip()
        return "not in the books"


class Recording:
    """The rollout stage, keeping what it was asked and what it gave."""

    def __init__(self, stage: RolloutStage) -> None:
        self.stage = stage
        self.requests: list[GenerateRequest] = []
        self.completions: list[Completion] = []

    async def generate_one(self, request: GenerateRequest, **fields: Any) -> Completion:
        self.requests.append(request)
        completion = await self.stage.generate_one(request, **fields)
        self.completions.append(completion)
        return completion


@asynccontextmanager
async def served(config: Config, folder: Path) -> AsyncIterator[Served]:
    """Serve the model's own weights while the block runs."""
    core = build_core(config, start_stale=False)
    ledger = Ledger(folder / "ledger", 1)
    services = Services(rollouts={"rollout-0": core}, reward=None, policy=None, reference=None)  # type: ignore[arg-type]
    ctx = RunContext(config, "run-test", 1, services, ledger, MemoryMembership())
    tokenizer = tokenizer_of(config)
    sampler = PromptSampler(load_prompts(config, "train", tokenizer, progress=False), 1, shuffle=False)
    source, gate = SessionSource(ctx, sampler, tokenizer), Gate()
    rollout = Recording(RolloutStage(ctx))
    running = asyncio.create_task(source.run(gate))
    producer = SimpleNamespace(source=source if config.argosy.openai.source == "sessions" else None)
    try:
        async with (
            open_endpoint(ctx, rollout, producer) as address,
            httpx.AsyncClient(timeout=60, verify=False) as plain,
        ):
            assert address is not None
            up = Served(address, ctx, core, rollout, source, gate, tokenizer, running, plain)
            yield up
            for client in up.clients:
                await client.close()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        ledger.close()
        await core.close()
