"""Cases C3, C9, D6, D8, D11, D14 and F15 on the stream, over real engines, trainers and servers."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from argosy.cli.main import main
from argosy.config import Config, load
from argosy.controller import placement as placements
from argosy.controller import run as run_module
from argosy.controller.context import Services
from argosy.controller.data.prompts import load_prompts
from argosy.controller.ledger import read_segment, steps_in
from argosy.controller.placement import Placement
from argosy.controller.stages.prompt import make_requests, training_params
from argosy.controller.stages.single import WHOLE
from argosy.controller.stages.validation import validate
from argosy.roles.rollout import Rollout
from argosy.rollout.build import build_core as build_rollout
from argosy.rollout.core import RolloutCore
from argosy.rpc.clients.policy import PolicyClient
from argosy.rpc.clients.rollout import RolloutClient
from argosy.rpc.retry import RetryPolicy
from argosy.rpc.server import RpcServer
from argosy.text.tokenizer import load_tokenizer
from argosy.trainer.build import build_core as build_trainer
from argosy.trainer.core import Trainer
from argosy.trainer.service import add_to_server
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import UnavailableError
from argosy.types.ids import SampleId
from argosy.types.records import Completion, GenerateRequest, StepResult, UpdateConfig
from contract.engines.served import serving
from contract.forms import Form, mutation
from contract.test_policy import SlowFirstAnswer
from support.streamed import streamed
from support.toy import ToyJob, write_rows

pytestmark = pytest.mark.xdist_group("async")

SHORT = (
    "argosy.placement=inprocess", "argosy.deterministic=false", "actor_rollout_ref.actor.use_kl_loss=False",
    "trainer.val_before_train=False", "trainer.logger=[file]", "argosy.export_hf=false",
)  # fmt: skip


def arguments(job: ToyJob, run: str, *overrides: str) -> list[str]:
    words = job.command(run, *SHORT, *overrides)
    return words[words.index("train") :]


def ledger_rows(job: ToyJob, run: str, steps: int) -> list[dict[str, Any]]:
    return [row for step in range(1, steps + 1) for row in read_segment(job.folder / run / "ledger", step)]


class Batches:
    """What trainer cores are given, and what they say to it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: list[TrajectoryBatch] = []
        self.configs: list[UpdateConfig] = []
        self.results: list[StepResult] = []
        real = Trainer.update

        async def update(core: Trainer, batch: TrajectoryBatch, config: Any, ctx: Any) -> StepResult:
            result = await real(core, batch, config, ctx)
            self.seen.append(batch)
            self.configs.append(config)
            self.results.append(result)
            return result

        patch.setattr(Trainer, "update", update)


# -- C3: exactly what was sampled ------------------------------------------------------------------------------------


def test_c3_what_is_trained_is_what_was_sampled_through_every_interruption(
    toy_job: ToyJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two engines whose samples are ended by each sync, and go on anywhere: ids and log-probs are the engines' own, and
    what an earlier engine has sampled stays as it was. Their text would give other ids."""
    pieces: dict[str, list[Completion]] = defaultdict(list)
    real = RolloutCore.generate_runs

    async def noting(core: RolloutCore, requests: Any, **more: Any) -> AsyncIterator[Any]:
        events: Any = real(core, requests, **more)
        try:
            async for event in events:
                if isinstance(event, Completion) and event.purpose == "train":
                    pieces[str(event.sample_id)].append(event)
                yield event
        finally:
            await events.aclose()

    monkeypatch.setattr(RolloutCore, "generate_runs", noting)
    batches = Batches(monkeypatch)
    words = (
        "argosy.max_staleness=2", "argosy.weight_sync.while_generating=abort", "argosy.rollout.slot_count=2",
        "data.max_response_length=24", "argosy.pools={all: {count: 2}}", "trainer.total_training_steps=4",
    )  # fmt: skip
    assert main(arguments(toy_job, "c3", *words)) == 0
    tokenizer = load_tokenizer(f"{toy_job.folder}/model")
    changed = 0
    for batch in batches.seen:
        columns = zip(
            batch.sample_ids, batch.ragged("response_ids"), batch.ragged("rollout_log_probs"), strict=True
        )  # fmt: skip
        for sample, ids, log_probs in columns:
            parts = pieces[str(sample)]
            assert tuple(ids) == parts[-1].token_ids
            assert np.array_equal(log_probs, np.array(parts[-1].log_probs, np.float32))
            for before, after in itertools.pairwise(parts):
                count = len(before.token_ids)
                assert after.token_ids[:count] == before.token_ids
                assert after.log_probs[:count] == pytest.approx(before.log_probs, abs=1e-6)
            changed += tokenizer.encode_rendered(parts[-1].text) != tuple(ids)
    assert sum(len(batch) for batch in batches.seen) == 4 * 64
    assert any(len(parts) > 1 and parts[0].token_ids for parts in pieces.values()), "some were interrupted"
    assert changed > 0, "decoding and encoding again would show"


# -- C9: numbers that don't divide -----------------------------------------------------------------------------------


def test_c9_a_step_that_nothing_divides_is_trained_as_it_is(toy_job: ToyJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 prompts of 3 samples over 4 servers, in micro-batches of 4 (the last has 2); 12 rows, so that 2 are left over
    in each data epoch; 7 held-out prompts. The gradient is that of the 30 samples in one piece."""
    write_rows(toy_job.folder / "twelve.jsonl", [f"say something {i}" for i in range(12)])
    batches = Batches(monkeypatch)
    words = (
        "argosy.max_staleness=1", "argosy.pools={all: {count: 4}}", f"data.train_files={toy_job.folder}/twelve.jsonl",
        "data.train_batch_size=10", "actor_rollout_ref.actor.ppo_mini_batch_size=10", "actor_rollout_ref.rollout.n=3",
        "actor_rollout_ref.actor.use_dynamic_bsz=False", "trainer.total_training_steps=3", "trainer.test_freq=3",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={}",
    )  # fmt: skip
    assert main(arguments(toy_job, "c9", *words[:-1], words[-1].format(4))) == 0
    assert [len(batch) for batch in batches.seen] == [30] * 3
    trained = [str(sample) for batch in batches.seen for sample in batch.sample_ids]
    wanted = [f"e{epoch}-p{place}-k{k}-a0" for epoch in range(3) for place in range(10) for k in range(3)]
    assert sorted(trained) == sorted(wanted), "each once"
    rows = ledger_rows(toy_job, "c9", 3)
    assert Counter(row["state"] for row in rows) == {"trained": 90}
    lines = (toy_job.folder / "c9" / "metrics.jsonl").read_text().splitlines()
    assert any("val-core" in line for line in lines)
    # What a trainer that takes all 30 at once makes of the first batch.
    config = load(arguments(toy_job, "c9-whole", *words[:-1], words[-1].format(30))[1:])
    trainer = build_trainer(config)
    again = asyncio.run(trainer.update(batches.seen[0], batches.configs[0], mutation(expected_step=0)))
    trainer.close()
    for name in ("actor/grad_norm", "actor/pg_loss"):
        assert batches.results[0].metrics[name] == pytest.approx(again.metrics[name], rel=1e-4, abs=1e-7), name


# -- D6: dead and stuck engines --------------------------------------------------------------------------------------

ILL = {"decode_ms": 1.0, "length_mean": 6.0, "failure_after": 6}
DEADLINE_S = 6.0


@asynccontextmanager
async def failing(job: ToyJob, failure: str) -> AsyncIterator[Rollout]:
    """A rollout server that answers six samples, and then fails: a process, or an engine in this one behind gRPC."""
    model = f"{job.folder}/model"
    async with AsyncExitStack() as stack:
        if failure in ("kill", "freeze"):
            values = {f"simulated__{name}": value for name, value in (ILL | {"failure": failure}).items()}
            served = await asyncio.to_thread(stack.enter_context, serving("simulated", Path(model), **values))
            client = RolloutClient(served.address)
            stack.push_async_callback(client.close)
            yield client
        else:
            keys = {f"argosy.rollout.simulated.{name}": value for name, value in (ILL | {"failure": failure}).items()}
            keys |= {"actor_rollout_ref.model.path": model, "actor_rollout_ref.rollout.name": "simulated"}
            core = build_rollout(Config().with_values(keys), start_stale=False)
            await core.start()
            stack.push_async_callback(core.close)
            yield await Form("grpc", stack).rollout(core)


@pytest.mark.parametrize("failure", ["kill", "freeze", "hang", "error", "fail"])
async def test_d6_a_stream_goes_on_past_a_server_that_fails(toy_job: ToyJob, failure: str) -> None:
    """Three steps of whole groups, though one of two servers is killed in the middle of its samples, stands still,
    never answers, or answers an error each time: in the time of one deadline, and nothing half-filled is trained."""
    words = arguments(
        toy_job, f"d6-{failure}", "argosy.rollout.slot_count=4", f"argosy.rpc.deadline_s={DEADLINE_S}"
    )[1:]  # fmt: skip
    async with failing(toy_job, failure) as ill, streamed(words, 3, {"rollout-ill": ill}) as run:
        began = time.monotonic()
        records = [await run.take(step) for step in (1, 2, 3)]
        assert time.monotonic() - began < DEADLINE_S + 60
        assert run.rollout.usable == {"rollout-0"}
        for step, record in enumerate(records, 1):
            assert Counter(sample.group for sample in record.completions) == Counter(
                {prompt.group: 8 for prompt in record.prompts}
            )
            assert {row.finish_reason for row in record.completions.values()} <= set(WHOLE)
            assert all(row.token_ids for row in record.completions.values())
            assert run.states(step) == {"trained": 64}
        rows = [row for step in (1, 2, 3) for row in run.rows(step)]
        assert any(row["dispatch_count"] > 1 for row in rows), "what it had was sent again"
        assert {row["member"] for row in rows} == {"rollout-0", "rollout-ill"}


@pytest.mark.parametrize("failure", ["hang", "error"])
def test_d6_without_any_server_left_a_run_ends_with_the_cause(
    toy_job: ToyJob, capsys: pytest.CaptureFixture[str], failure: str
) -> None:
    run = f"alone-{failure}"
    words = (
        "argosy.max_staleness=1", "trainer.total_training_steps=3", "actor_rollout_ref.rollout.name=simulated",
        f"argosy.rollout.simulated.failure={failure}", "argosy.rollout.simulated.failure_after=90",
        "argosy.rpc.deadline_s=4", "argosy.rollout.slot_count=8", "argosy.parity.enabled=false",
    )  # fmt: skip
    began = time.monotonic()
    assert main(arguments(toy_job, run, *words)) == 1
    assert time.monotonic() - began < 90
    err = capsys.readouterr().err
    assert ("deadline" if failure == "hang" else "failed on demand") in err
    rows = [row for step in steps_in(toy_job.folder / run / "ledger") for row in ledger_rows(toy_job, run, step)]
    assert Counter(Counter(SampleId.parse(row["sample_id"]).group for row in rows).values()).keys() <= {8}


# -- D8, D14: seeds, and what moves them -----------------------------------------------------------------------------


async def test_d8_d14_samples_differ_and_are_the_same_again_wherever_they_are_made(toy_job: ToyJob) -> None:
    """One seed, n=8, T=1, two servers. Asked for one by one in a stream, in whole batches, on the other server, and
    with a validation pass in the middle of it: always the same eight, and never two alike."""
    words = (
        "argosy.pools={all: {count: 2}}", "argosy.rollout.slot_count=3", "argosy.seed=7", "data.shuffle=false",
        f"data.val_files={toy_job.folder}/val.jsonl",
    )  # fmt: skip
    made: list[dict[SampleId, tuple[int, ...]]] = []
    for run in ("first", "again"):
        async with streamed(arguments(toy_job, f"d8-{run}", *words)[1:], 2) as one:
            config = one.ctx.config
            exam: asyncio.Task[Any] | None = None
            if run == "again":
                held_out = list(load_prompts(config, "val", progress=False).in_order())
                exam = asyncio.create_task(validate(one.ctx, one.rollout, held_out, 0))
            records = [await one.take(step) for step in (1, 2)]
            found = {sample: row.token_ids for record in records for sample, row in record.completions.items()}
            made.append(found)
            if exam is not None:
                result = await exam
                assert len(result.completions) == len(held_out), "n is 1"
            assert {row["member"] for step in (1, 2) for row in one.rows(step)} == {"rollout-all-0", "rollout-all-1"}
            if run == "first":
                prompts = [prompt for record in records for prompt in record.prompts]
                for server in one.ctx.services.rollouts.values():
                    asked = make_requests(prompts, 8, training_params(config), "train")
                    whole = {c.sample_id: c.token_ids async for c in server.generate(asked, deadline_s=60)}
                    assert whole == found
    assert made[0] == made[1]
    assert len(made[0]) == 2 * 64
    groups: dict[Any, set[tuple[int, ...]]] = defaultdict(set)
    for sample, tokens in made[0].items():
        groups[sample.group].add(tokens)
    assert {len(different) for different in groups.values()} == {8}


# -- D11: a server that comes back with base weights -----------------------------------------------------------------


class Replaceable:
    """A rollout server that can be lost, and come back as a process that was started anew does."""

    def __init__(self, core: RolloutCore) -> None:
        self.core: RolloutCore | None = core
        self.answered: list[Completion] = []
        """For training, by whoever is here now."""

    def __getattr__(self, name: str) -> Any:
        if self.core is None:
            raise UnavailableError("connection refused")
        return getattr(self.core, name)

    async def generate(self, requests: Sequence[GenerateRequest], **more: Any) -> AsyncIterator[Completion]:
        core = self.core
        if core is None:
            raise UnavailableError("connection refused")
        async for completion in core.generate(requests, **more):
            if self.core is not core:
                raise UnavailableError("connection reset")
            if completion.purpose == "train":
                self.answered.append(completion)
            yield completion


def with_services(patch: pytest.MonkeyPatch, change: Callable[[Services, AsyncExitStack], Awaitable[Services]]) -> None:
    """Let `argosy train` find other services than those that it started."""
    real = placements.open_placement

    @asynccontextmanager
    async def opened(config: Config, folder: Path) -> AsyncIterator[Placement]:
        async with real(config, folder) as placement, AsyncExitStack() as stack:
            yield replace(placement, services=await change(placement.services, stack))

    patch.setattr(run_module, "open_placement", opened)


def test_d11_a_server_that_comes_back_answers_nothing_before_it_has_the_current_weights(
    toy_job: ToyJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two servers is lost while step 3 is trained, and is there again, with the weights of the model's folder,
    while step 4 is: what streams in meanwhile is made by the other one, and nothing trained is older than it may be."""
    servers: dict[str, Replaceable] = {}
    words = (
        "argosy.max_staleness=2", "argosy.weight_sync.while_generating=abort", "argosy.rollout.slot_count=2",
        "argosy.pools={all: {count: 2}}", "data.max_response_length=16", "trainer.total_training_steps=8",
    )  # fmt: skip
    arguments_of_run = arguments(toy_job, "d11", *words)
    config = load(arguments_of_run[1:])
    real = Trainer.update

    async def change(services: Services, stack: AsyncExitStack) -> Services:
        servers.update({name: Replaceable(core) for name, core in services.rollouts.items()})  # type: ignore[arg-type]

        async def close() -> None:
            if (core := servers["rollout-all-1"].core) is not None:
                await core.close()

        stack.push_async_callback(close)
        return replace(services, rollouts=servers)

    async def update(core: Trainer, batch: TrajectoryBatch, settings: Any, ctx: Any) -> StepResult:
        step = (await core.status()).step + 1
        lost, other = servers["rollout-all-1"], servers["rollout-all-0"]
        if step == 3:
            gone, lost.core = lost.core, None
            assert gone is not None
            await gone.close()
            lost.answered.clear()
        if step == 4:
            newcomer = await asyncio.to_thread(build_rollout, config.for_pool("all"), start_stale=False)
            await newcomer.start()
            lost.core = newcomer
            before = len(other.answered)
            async with asyncio.timeout(60):
                while len(other.answered) < before + 16:  # noqa: ASYNC110 - continuous requests, of which it gets none
                    await asyncio.sleep(0.01)
            assert not lost.answered
        return await real(core, batch, settings, ctx)

    monkeypatch.setattr(Trainer, "update", update)
    with_services(monkeypatch, change)
    assert main(arguments_of_run) == 0
    back = servers["rollout-all-1"].answered
    assert back, "it is used again"
    assert min(run.version.step for completion in back for run in completion.versions) >= 2, "resumed ones were begun"
    assert min(completion.versions[-1].version.step for completion in back) >= 3
    rows = ledger_rows(toy_job, "d11", 8)
    assert Counter(row["state"] for row in rows) == {"trained": 8 * 64}
    assert max(row["staleness/max"] for row in toy_job.metrics("d11")) <= 2


# -- F15: a step whose answer is lost --------------------------------------------------------------------------------


def test_f15_an_update_whose_answers_come_too_late_is_one_step_of_one_batch(
    toy_job: ToyJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer does the work and keeps its first two answers to itself; the stream goes on as if nothing were."""
    batches, slow = Batches(monkeypatch), SlowFirstAnswer(2, 60.0)

    async def change(services: Services, stack: AsyncExitStack) -> Services:
        server = RpcServer.listen("127.0.0.1", interceptors=[slow])
        names = add_to_server(services.policy, server.server, server.gate)  # type: ignore[arg-type]
        await server.start()
        stack.push_async_callback(server.stop, 0)
        await server.serve(names)
        client = PolicyClient(server.address, policy=RetryPolicy(attempt_timeout_s=5.0, first_backoff_s=0.01))
        stack.push_async_callback(client.close)
        return replace(services, policy=client)

    with_services(monkeypatch, change)
    words = ("argosy.max_staleness=1", "trainer.total_training_steps=3", "argosy.weight_sync.transport=stream")
    assert main(arguments(toy_job, "f15", *words)) == 0
    assert slow.calls >= 5, "three updates, and two that were asked for again"
    assert [result.step for result in batches.results] == [1, 2, 3]
    trained = [sample for batch in batches.seen for sample in batch.sample_ids]
    assert len(trained) == len(set(trained)) == 3 * 64
    assert Counter(row["state"] for row in ledger_rows(toy_job, "f15", 3)) == {"trained": 3 * 64}
