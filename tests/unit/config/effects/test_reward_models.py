"""`argosy.reward.model.*`, `argosy.reward.judge.*` and verl's `reward_model.*`: the scorers built from them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from argosy.config import Config, load
from argosy.modeling.loading import ModelSource
from argosy.reward.build import build_core
from argosy.reward.models.judge.judge import JudgeScorer
from argosy.reward.models.local import ModelScorer
from argosy.reward.models.remote import RemoteScorer
from argosy.types.errors import ConfigError
from argosy.types.records import ScoreRequest
from support.model_server import Fault, ModelServer, model_server
from support.scoring import request, save_tiny_scorer
from unit.config.effects.support import problems

Made = Callable[..., Any]


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_scorer(tmp_path_factory.mktemp("reward") / "scorer")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as running:
        yield running


@pytest.fixture
async def make() -> AsyncIterator[Made]:
    """make(key=value texts): the core that the reward service would host, closed at the end."""
    made: list[Any] = []

    def build(*arguments: str) -> Any:
        made.append(build_core(load(arguments)))
        return made[-1]

    yield build
    for core in made:
        await core.close()


async def score(core: Any, *items: ScoreRequest) -> list[Any]:
    found = await core.score(items or (request(0, "four"),), deadline_s=20)
    return [result.outcome for result in found]


def local(scorer: Path, *arguments: str) -> list[str]:
    return [
        "argosy.reward.kind=model",
        f"argosy.reward.model.path={scorer}",
        "argosy.reward.model.device=cpu",
        *arguments,
    ]


def remote(server: ModelServer, scorer: Path, *arguments: str) -> list[str]:
    return [
        "argosy.reward.kind=model", f"argosy.reward.model.path={scorer}",
        f"argosy.reward.model.endpoint.url={server.url}", *arguments,
    ]  # fmt: skip


def judge(server: ModelServer, *arguments: str) -> list[str]:
    return [
        "argosy.reward.kind=judge", f"argosy.reward.judge.endpoint.url={server.url}/v1",
        "argosy.reward.judge.endpoint.model=big", *arguments,
    ]  # fmt: skip


@pytest.mark.parametrize("key", ["reward_model.enable", "reward.reward_model.enable"])
def test_enable(scorer: Path, make: Made, key: str) -> None:
    core = make(f"{key}=true", f"reward_model.model.path={scorer}")
    assert isinstance(core, ModelScorer)
    assert "either scores every sample" in problems(load([f"{key}=true", "custom_reward_function.path=x.py"]))
    assert "one service is one kind" in problems(load([f"{key}=true", "argosy.reward.kind=judge"]))
    assert "which of them is the model" in problems(load([f"{key}=true", "argosy.reward.services={a: {kind: rules}}"]))


@pytest.mark.parametrize(
    "key", ["argosy.reward.model.path", "reward_model.model.path", "reward.reward_model.model_path"]
)
async def test_path(scorer: Path, make: Made, key: str) -> None:
    core = make("argosy.reward.kind=model", f"{key}={scorer}")
    assert (await core.capabilities()).name == f"model:{scorer}"
    assert "argosy.reward.model.path: is needed" in problems(load(["argosy.reward.kind=model"]))


@pytest.mark.parametrize("key", ["argosy.reward.model.input_tokenizer", "reward_model.model.input_tokenizer"])
async def test_input_tokenizer(scorer: Path, make: Made, key: str) -> None:
    """null: the policy's ids as they are."""
    ids = make(*local(scorer, f"{key}=null"))
    texts = make(*local(scorer, f"{key}=models/policy"))
    assert [(await core.capabilities()).needs_messages for core in (ids, texts)] == [False, True]
    (outcome,) = await score(ids, request(0, "", prompt_ids=(5, 6), response_ids=(7, 8, 2)))
    assert outcome.parts["tokens"] == 5
    assert (await score(texts))[0].parts["tokens"] > 20


@pytest.mark.parametrize("inline", [True, False])
async def test_chat_template(scorer: Path, make: Made, tmp_path: Path, inline: bool) -> None:
    template = "{{ messages[-1].content }}"
    file = tmp_path / "chat.jinja"
    file.write_text(template)
    value = f"'{template}'" if inline else str(file)
    (outcome,) = await score(make(*local(scorer, f"argosy.reward.model.chat_template={value}")))
    assert outcome.parts["tokens"] == len("four")


@pytest.mark.parametrize("key", ["argosy.reward.model.trust_remote_code", "reward_model.model.trust_remote_code"])
def test_trust_remote_code(scorer: Path, monkeypatch: pytest.MonkeyPatch, make: Made, key: str) -> None:
    from argosy.reward.models import network

    seen: list[bool] = []
    real = network.load_network

    def watched(source: ModelSource) -> network.ScoringNetwork:
        seen.append(source.trust_remote_code)
        return real(source)

    monkeypatch.setattr(network, "load_network", watched)
    make(*local(scorer))
    make(*local(scorer, f"{key}=true"))
    assert seen == [False, True]


def test_dtype(scorer: Path, make: Made) -> None:
    model = make(*local(scorer, "argosy.reward.model.dtype=float64"))._network._model
    assert model.score.weight.dtype is torch.float64


def test_device(scorer: Path, make: Made) -> None:
    with pytest.raises(ConfigError, match="device 'cuda:77' can't be used"):
        make(*local(scorer), "argosy.reward.model.device=cuda:77")


async def test_threads(scorer: Path, make: Made) -> None:
    core = make(*local(scorer, "argosy.reward.model.threads=3"))
    assert await core._passes._thread.run(torch.get_num_threads) == 3


@pytest.mark.parametrize("key", ["argosy.reward.model.max_length", "reward_model.max_length"])
async def test_max_length(scorer: Path, make: Made, key: str) -> None:
    whole, cut = [(await score(make(*local(scorer, *more))))[0].parts for more in ([], [f"{key}=20"])]
    assert (whole["truncated"], cut["truncated"], cut["tokens"]) == (False, True, 20)
    with pytest.raises(ConfigError, match="has only 256 positions"):
        make(*local(scorer, f"{key}=257"))


async def test_truncation(scorer: Path, make: Made) -> None:
    """What is kept: the end, the start, or nothing."""
    item, length = request(0, "an answer"), "argosy.reward.model.max_length=20"
    left, right = (
        make(*local(scorer, length, f"argosy.reward.model.truncation={side}"))._writer.write(item).ids
        for side in ("left", "right")
    )
    whole = make(*local(scorer))._writer.write(item).ids
    assert (left, right) == (whole[-20:], whole[:20])
    (outcome,) = await score(make(*local(scorer, length, "argosy.reward.model.truncation=fail")), item)
    assert outcome.reason == "too_large"


def limits(core: ModelScorer) -> Any:
    return core._options.limits


@pytest.mark.parametrize("key", ["argosy.reward.model.max_batch_tokens", "reward_model.forward_max_token_len_per_gpu"])
def test_max_batch_tokens(scorer: Path, make: Made, key: str) -> None:
    assert limits(make(*local(scorer, f"{key}=99"))).max_tokens == 99


@pytest.mark.parametrize("key", ["argosy.reward.model.max_batch_rows", "reward_model.micro_batch_size_per_gpu"])
def test_max_batch_rows(scorer: Path, make: Made, key: str) -> None:
    assert limits(make(*local(scorer, f"{key}=3"))).max_rows == 3


def test_min_fill(scorer: Path, make: Made) -> None:
    assert limits(make(*local(scorer, "argosy.reward.model.min_fill=0.5"))).fill == 0.5


async def test_label(tmp_path: Path, make: Made) -> None:
    two = save_tiny_scorer(tmp_path / "two", labels=2)
    first, second = [
        (await score(make(*local(two, f"argosy.reward.model.label={label}"))))[0].score for label in (0, 1)
    ]
    assert first != second
    with pytest.raises(ConfigError, match=r"2 labels \(LABEL_0, LABEL_1\)"):
        make(*local(two))
    with pytest.raises(ConfigError, match="got 2"):
        make(*local(two, "argosy.reward.model.label=2"))


async def test_activation(scorer: Path, make: Made) -> None:
    raw, squashed = [
        (await score(make(*local(scorer, f"argosy.reward.model.activation={name}"))))[0].score
        for name in ("none", "sigmoid")
    ]
    assert squashed == pytest.approx(1 / (1 + 2.718281828459045**-raw))
    with pytest.raises(ConfigError, match="softmax"):
        make(*local(scorer, "argosy.reward.model.activation=softmax"))


@pytest.mark.parametrize("api", ["classify", "score", "pooling", "embeddings", "sglang", "chat"])
async def test_api(server: ModelServer, scorer: Path, make: Made, api: str) -> None:
    core = make(*remote(server, scorer, f"argosy.reward.model.api={api}"))
    (outcome,) = await score(core)
    path, body = server.requests[0]
    assert path == {"score": "/score", "pooling": "/pooling", "embeddings": "/v1/embeddings"}.get(api, "/classify")
    assert outcome.score == (
        4.0
        if api == "score"
        else len(body.get("input") or body.get("input_ids") or str(body["messages"]).replace("'", '"'))
    )


@pytest.mark.parametrize("key", ["argosy.reward.model.endpoint.url", "argosy.reward.judge.endpoint.url"])
def test_url(server: ModelServer, scorer: Path, make: Made, key: str) -> None:
    kind = key.split(".")[2]
    arguments = [f"argosy.reward.kind={kind}", f"argosy.reward.{kind}.endpoint.model=m", f"{key}={server.url}"]
    core = make(*arguments, f"argosy.reward.model.path={scorer}")
    assert isinstance(core, RemoteScorer if kind == "model" else JudgeScorer)
    assert f"{key}: wants http" in problems(load([*arguments, f"{key}=file:///etc"]))
    assert f"{key}: must hold no user" in problems(load([*arguments, f"{key}=http://me:word@host"]))


def endpoint_of(core: Any) -> Any:
    return core._endpoint if isinstance(core, RemoteScorer) else core._speaker._endpoint


def either(kind: str, server: ModelServer, scorer: Path, *arguments: str) -> list[str]:
    return remote(server, scorer, *arguments) if kind == "model" else judge(server, *arguments)


@pytest.mark.parametrize("key", ["argosy.reward.model.endpoint.model", "argosy.reward.judge.endpoint.model"])
async def test_model(server: ModelServer, scorer: Path, make: Made, key: str) -> None:
    await score(make(*either(key.split(".")[2], server, scorer, f"{key}=other")))
    assert server.requests[0][1]["model"] == "other"


@pytest.mark.parametrize(
    "key", ["argosy.reward.model.endpoint.api_key_env", "argosy.reward.judge.endpoint.api_key_env"]
)
async def test_api_key_env(
    server: ModelServer, scorer: Path, make: Made, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_KEY", "open sesame")
    await score(make(*either(key.split(".")[2], server, scorer, f"{key}=MODEL_KEY")))
    assert {name.lower(): value for name, value in server.headers[0].items()}["authorization"] == "Bearer open sesame"
    assert "wants the name of an environment variable" in problems(
        load(either(key.split(".")[2], server, scorer, f"{key}='sk-12 34'"))
    )


@pytest.mark.parametrize(
    "key", ["argosy.reward.model.endpoint.concurrency", "argosy.reward.judge.endpoint.concurrency"]
)
async def test_concurrency(server: ModelServer, scorer: Path, make: Made, key: str) -> None:
    server.delay_s = 0.03
    items = [request(k, f"answer {k}") for k in range(6)]
    await score(make(*either(key.split(".")[2], server, scorer, f"{key}=2")), *items)
    assert server.most_running == 2


@pytest.mark.parametrize(
    "key", ["argosy.reward.model.endpoint.requests_per_minute", "argosy.reward.judge.endpoint.requests_per_minute"]
)
async def test_requests_per_minute(server: ModelServer, scorer: Path, make: Made, key: str) -> None:
    """Of 60 a minute five may go at once, and the sixth a second later."""
    items = [request(k, f"answer {k}") for k in range(6)]
    await score(make(*either(key.split(".")[2], server, scorer, f"{key}=60")), *items)
    assert server.times[-1] - server.times[0] > 0.7


@pytest.mark.parametrize(
    "key", ["argosy.reward.model.endpoint.tokens_per_minute", "argosy.reward.judge.endpoint.tokens_per_minute"]
)
async def test_tokens_per_minute(server: ModelServer, scorer: Path, make: Made, key: str) -> None:
    """The server counts 50 (110) tokens a call: the second waits until the first one's are paid."""
    items = [request(k, f"answer {k}") for k in range(2)]
    kind = key.split(".")[2]
    more = ["argosy.reward.judge.max_tokens=10"] if kind == "judge" else []
    await score(
        make(*either(kind, server, scorer, f"{key}=600", f"argosy.reward.{kind}.endpoint.concurrency=1", *more)), *items
    )
    assert server.times[-1] - server.times[0] > 0.7


@pytest.mark.parametrize("key", ["argosy.reward.model.endpoint.timeout_s", "argosy.reward.judge.endpoint.timeout_s"])
async def test_timeout(server: ModelServer, scorer: Path, make: Made, key: str) -> None:
    server.faults = [Fault(hang_s=1.5)]
    (outcome,) = await score(make(*either(key.split(".")[2], server, scorer, f"{key}=0.2")))
    assert outcome.parts["requests"] == 2


@pytest.mark.parametrize("key", ["argosy.reward.model.endpoint.attempts", "argosy.reward.judge.endpoint.attempts"])
async def test_endpoint_attempts(server: ModelServer, scorer: Path, make: Made, key: str) -> None:
    server.faults = [Fault()] * 5
    (outcome,) = await score(make(*either(key.split(".")[2], server, scorer, f"{key}=2")))
    assert (outcome.reason, len(server.requests)) == ("unavailable", 2)


@pytest.mark.parametrize(
    "key", ["argosy.reward.model.endpoint.prompt_price", "argosy.reward.judge.endpoint.prompt_price"]
)
async def test_prompt_price(server: ModelServer, scorer: Path, make: Made, key: str) -> None:
    (outcome,) = await score(make(*either(key.split(".")[2], server, scorer, f"{key}=1e6")))
    assert outcome.parts["cost"] == (
        50.0 if "model." in key.removeprefix("argosy.reward.") and "judge" not in key else 100.0
    )


@pytest.mark.parametrize(
    "key", ["argosy.reward.model.endpoint.completion_price", "argosy.reward.judge.endpoint.completion_price"]
)
async def test_completion_price(server: ModelServer, scorer: Path, make: Made, key: str) -> None:
    (outcome,) = await score(make(*either(key.split(".")[2], server, scorer, f"{key}=1e6")))
    assert outcome.parts["cost"] == (0.0 if "judge" not in key else 10.0)


def test_rollouts(scorer: Path, make: Made) -> None:
    arguments = ["argosy.reward.kind=judge", f"argosy.reward.judge.tokenizer_path={scorer}"]
    core = make(*arguments, "argosy.reward.judge.rollouts=[localhost:1,localhost:2]")
    assert [rollout._address for rollout in core._speaker._rollouts] == ["localhost:1", "localhost:2"]
    assert "nobody is asked" in problems(load(arguments))
    assert "wants host:port" in problems(load([*arguments, "argosy.reward.judge.rollouts=[there]"]))


def test_tokenizer_path(scorer: Path, make: Made) -> None:
    arguments = ["argosy.reward.kind=judge", "argosy.reward.judge.rollouts=[localhost:1]"]
    assert make(*arguments, f"argosy.reward.judge.tokenizer_path={scorer}")._speaker.name == str(scorer)
    assert "argosy.reward.judge.tokenizer_path: is needed" in problems(load(arguments))


async def asked(server: ModelServer, make: Made, *arguments: str, **fields: Any) -> tuple[Any, list[dict[str, str]]]:
    """The outcome of one sample, and the messages of the first request."""
    (outcome,) = await score(make(*judge(server, *arguments)), request(0, "four", **fields))
    return outcome, server.requests[0][1]["messages"] if server.requests else []


async def test_prompt(server: ModelServer, make: Made, tmp_path: Path) -> None:
    file = tmp_path / "judge.jinja"
    file.write_text("Grade {{ response }} now")
    _, messages = await asked(server, make, f"argosy.reward.judge.prompt={file}")
    assert messages[-1]["content"].startswith("Grade ===== answer")
    from argosy.config import find_problems

    missing = load(judge(server, "argosy.reward.judge.prompt=nowhere.jinja"))
    assert any("argosy.reward.judge.prompt: there is no file" in line for line in find_problems(missing))


async def test_system(server: ModelServer, make: Made) -> None:
    _, messages = await asked(server, make, "argosy.reward.judge.system='You are {{ highest }}.'")
    assert messages[0] == {"role": "system", "content": "You are 10."}


async def test_rubric(server: ModelServer, make: Made) -> None:
    _, messages = await asked(server, make, "argosy.reward.judge.rubric='Be kind.'")
    assert "Be kind." in messages[-1]["content"]


async def test_lowest(server: ModelServer, make: Made) -> None:
    outcome, messages = await asked(server, make, "argosy.reward.judge.lowest=5")
    assert outcome.score == pytest.approx(0.4)
    assert "from 5 to 10" in messages[-1]["content"]
    assert "wants lowest < highest" in problems(load(judge(server, "argosy.reward.judge.lowest=10")))


async def test_highest(server: ModelServer, make: Made) -> None:
    outcome, _ = await asked(server, make, "argosy.reward.judge.highest=20")
    assert outcome.score == pytest.approx(0.35)


async def test_normalise(server: ModelServer, make: Made) -> None:
    outcome, _ = await asked(server, make, "argosy.reward.judge.normalise=false")
    assert outcome.score == 7


async def test_judgements(server: ModelServer, make: Made) -> None:
    outcome, _ = await asked(server, make, "argosy.reward.judge.judgements=3")
    assert (outcome.parts["requests"], len(server.requests)) == (3, 3)


async def test_attempts(server: ModelServer, make: Made) -> None:
    server.reply = lambda _: "hm"
    outcome, _ = await asked(server, make, "argosy.reward.judge.attempts=2")
    assert (outcome.reason, len(server.requests)) == ("unreadable_judgement", 2)


async def test_temperature(server: ModelServer, make: Made) -> None:
    await asked(server, make, "argosy.reward.judge.temperature=0.7")
    assert server.requests[0][1]["temperature"] == 0.7


async def test_top_p(server: ModelServer, make: Made) -> None:
    await asked(server, make, "argosy.reward.judge.top_p=0.9")
    assert server.requests[0][1]["top_p"] == 0.9


async def test_max_tokens(server: ModelServer, make: Made) -> None:
    await asked(server, make, "argosy.reward.judge.max_tokens=33")
    assert server.requests[0][1]["max_tokens"] == 33


async def test_max_prompt_characters(server: ModelServer, make: Made) -> None:
    outcome, messages = await asked(server, make, "argosy.reward.judge.max_prompt_characters=100")
    assert (outcome.reason, messages) == ("bad_request", [])


async def test_memory_size(server: ModelServer, make: Made) -> None:
    core = make(*judge(server, "argosy.reward.judge.memory_size=0"))
    await score(core)
    await asyncio.sleep(0)
    await score(core)
    assert len(server.requests) == 2


def test_config_without_models_builds_none_of_it() -> None:
    assert Config().reward_kind == "rules"


async def test_start_ready(tmp_path: Path) -> None:
    """A rollout server that serves its own weights at once; a training run refuses it."""
    from argosy.config import validate
    from argosy.modeling.tiny import save_tiny_model
    from argosy.rollout.__main__ import build

    model = save_tiny_model(tmp_path / "tiny")
    for arguments, state in (([], "stale"), (["argosy.rollout.start_ready=true"], "ready")):
        core = build(load([f"actor_rollout_ref.model.path={model}", "argosy.rollout.device=cpu", *arguments]))
        assert (await core.status()).state == state
        await core.close()
    with pytest.raises(ConfigError, match="start_ready: got true for a training run"):
        validate(load(["argosy.rollout.start_ready=true"]))
