"""Reward servers in other languages: each keeps the contract, and together they serve a real training run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from argosy.reward.conformance import Result, Sample, check_server, describe, failures
from support.reward_examples import EXAMPLES, LANGUAGES, REQUIRED, Language
from support.toy import ToyJob

pytestmark = pytest.mark.xdist_group("reward_languages")

SAMPLES = [
    Sample("numbers", "3 + 4 = 7", "7", score=1),
    Sample("numbers", "7, or rather 8", "7", score=0),
    Sample("numbers", "so 1,234.5", "1234.5", score=1),
    Sample("numbers", "it is -12.", "unused", score=None),
    Sample("numbers", "it is -12.", -12, score=1),
    Sample("numbers", "zero: 0", 0, score=1),
    Sample("numbers", "", "0", score=0),
    Sample("numbers", "答えは 42 です 𝟜", "42", score=1),
]


LISTENER = """
from argosy.reward.sdk import reward

@reward(batch=True)
async def listen(messages, response_ids):
    return [{"score": 0.0, "messages": len(said), "ids": len(ids)} for said, ids in zip(messages, response_ids)]
"""
PYTHON = LANGUAGES[0]


@pytest.fixture(scope="module", params=LANGUAGES, ids=lambda language: language.name)
def language(request: pytest.FixtureRequest) -> Language:
    found: Language = request.param
    found.make()
    return found


async def test_an_example_keeps_the_contract(language: Language) -> None:
    with language.serve(["numbers", "toy"]) as address:
        findings = await check_server(address, timeout_s=20, samples=SAMPLES)
    assert not failures(findings), describe(findings)
    warned = {finding.check for finding in findings if finding.result is Result.WARNED}
    assert warned <= ({"error_details"} if language.takes_sources else set()), describe(findings)


@pytest.fixture(scope="module")
def numbers(toy_job: ToyJob) -> ToyJob:
    """The toy job with a digit for each prompt to say."""
    rows = [json.loads(line) for line in (toy_job.folder / "train.jsonl").read_text().splitlines()]
    for index, row in enumerate(rows):
        row["data_source"] = "numbers"
        row["reward_model"]["ground_truth"] = str(index % 10)
    for name in ("train", "val"):
        (toy_job.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return toy_job


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    """Every example that can be built here, running."""
    there = [language for language in LANGUAGES if not language.missing()]
    with ExitStack() as stack:
        for language in there:
            language.make()
        yield {language.name: stack.enter_context(language.serve(["numbers"])) for language in there}


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service that asks for messages and ids, in batches; it adds nothing to the reward."""
    path = tmp_path_factory.mktemp("listener") / "listener.py"
    path.write_text(LISTENER)
    command = (*PYTHON.command[:-1], f"{path}:listen")
    with replace(PYTHON, command=command).serve([]) as address:
        yield address


def test_examples_serve_a_training_run_and_agree(numbers: ToyJob, addresses: dict[str, str], listener: str) -> None:
    services = ",".join(f"{name}:{{address:['{address}'],weight:0.5}}" for name, address in addresses.items())
    code, out, err = numbers.run(
        "languages",
        "custom_reward_function.path=null",
        f"argosy.reward.services={{{services},listener:{{address:['{listener}'],data_sources:[numbers]}}}}",
        "actor_rollout_ref.actor.use_kl_loss=False",
        "trainer.val_before_train=False",
        "trainer.logger=[file]",
        "argosy.export_hf=false",
        "data.max_response_length=16",
        "trainer.total_training_steps=2",
    )
    assert code == 0, out + err
    rows = numbers.metrics("languages")
    assert len(rows) == 2
    assert sum(row["critic/score/mean"] for row in rows) > 0, rows
    for row in rows:
        for name in addresses:
            own = row[f"reward/{name}/acc/mean"]
            # All judge the same answers, and agree on each: so their means are one number.
            assert own * 0.5 * len(addresses) == pytest.approx(row["critic/score/mean"])
        assert row["reward/listener/messages/mean"] == 1.0
        assert row["reward/listener/ids/mean"] == pytest.approx(row["response_length/mean"])


def test_a_missing_toolchain_skips_with_its_reason_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    language = replace(LANGUAGES[-1], tools=("no-such-compiler",))
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs no-such-compiler: run `make install-languages`"):
        language.make()
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="needs no-such-compiler"):
        language.make()


def test_no_lock_file_names_a_registry() -> None:
    for path in EXAMPLES.rglob("package-lock.json"):
        if "node_modules" not in path.parts:
            assert "resolved" not in path.read_text()
            assert not re.search(r"https?://(?!github\.com|opencollective\.com)", _without_funding(path)), path


def _without_funding(path: Path) -> str:
    packages = json.loads(path.read_text())["packages"]
    return json.dumps([{key: value for key, value in entry.items() if key != "funding"} for entry in packages.values()])
