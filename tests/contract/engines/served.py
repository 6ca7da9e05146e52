"""Real rollout servers for the engine contract suite, and what the tests ask of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from argosy.config.validate.engines import LIMITS
from argosy.roles.rollout import Rollout
from argosy.roles.weights import WeightSource
from argosy.types.errors import UnavailableError
from argosy.types.ids import PolicyVersion
from argosy.types.records import Completion, GenerateRequest, WeightChunk, WeightsManifest
from contract.forms import collect, mutation
from support.freezing import freeze

REPOSITORY = Path(__file__).parents[3]
ENGINES_PYTHON = Path(os.environ.get("ARGOSY_ENGINES_PYTHON", REPOSITORY / ".venvs/engines/bin/python"))
"""The interpreter that has vLLM and SGLang (`make install-engines`)."""
IN_OTHER_VENV = ("vllm", "sglang")
START_S = {"vllm": 240, "sglang": 240}
MAX_LEN = 1000
LONG = 900
"""Tokens of answers that a test means to interrupt: seconds of work."""


@dataclass
class Served:
    """A rollout server that is up."""

    engine: str
    model: Path
    process: subprocess.Popen[str]
    address: str
    told: list[str] = field(default_factory=list)
    """The last lines that it wrote."""

    @property
    def computes(self) -> bool:
        """Whether its log-probs are a model's."""
        return LIMITS[self.engine].computes

    @property
    def children(self) -> list[psutil.Process]:
        """Processes of the engine itself, if it has any."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def signal(self, number: signal.Signals, *, children: bool = False) -> None:
        """Send a signal to the server, or to the engine's own processes; after SIGSTOP they stand still."""
        for process in self.children if children else [psutil.Process(self.process.pid)]:
            if number == signal.SIGSTOP:
                freeze(process.pid)
            else:
                process.send_signal(number)

    def stop(self) -> None:
        """End it, its children with it."""
        descendants = self.children if self.process.poll() is None else []
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        for process in descendants:
            if process.is_running():
                process.kill()


def missing(engine: str) -> str:
    """Why an engine can't be run here; empty if it can."""
    if engine in IN_OTHER_VENV and not ENGINES_PYTHON.exists():
        return f"{engine} needs {ENGINES_PYTHON} (make install-engines), or ARGOSY_ENGINES_PYTHON"
    return ""


@contextmanager
def serving(engine: str, model: Path, **values: Any) -> Iterator[Served]:
    """A server over a model folder; `values` are keys of argosy.rollout, with dots as double underscores."""
    python = ENGINES_PYTHON if engine in IN_OTHER_VENV else Path(sys.executable)
    config = {
        "actor_rollout_ref.model.path": str(model),
        "actor_rollout_ref.rollout.name": engine,
        "actor_rollout_ref.rollout.max_model_len": MAX_LEN,
        "argosy.startup_timeout_s": 180,
        "argosy.rollout.device": "cpu",
        "argosy.rollout.threads": 1,
        "argosy.rollout.slot_count": 8,
        **{f"argosy.rollout.{name.replace('__', '.')}": value for name, value in values.items()},
    }
    if engine == "simulated":
        config = {"argosy.rollout.simulated.decode_ms": 1.0, "argosy.rollout.simulated.length_mean": 20.0} | config
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "VLLM_CPU_KVCACHE_SPACE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    environment.pop("PYTHONPATH", None)
    process = subprocess.Popen(
        [str(python), str(Path(__file__).with_name("serve.py")), json.dumps(config)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    told: list[str] = []
    threading.Thread(target=_keep_last, args=(process, told), daemon=True).start()
    served = Served(engine, model, process, "", told)
    waiting = threading.Timer(START_S.get(engine, 60), process.kill)
    waiting.start()
    try:
        served.address = _address(process, told)
        waiting.cancel()
        yield served
    finally:
        waiting.cancel()
        served.stop()


def _address(process: subprocess.Popen[str], told: Sequence[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith('{"address"'):
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return str(json.loads(line)["address"])
    process.wait()
    raise AssertionError(f"the server ended with {process.returncode}:\n" + "".join(told))


def _keep_last(process: subprocess.Popen[str], told: list[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        told.append(line)
        del told[:-60]


async def ask(rollout: Rollout, requests: Sequence[GenerateRequest]) -> list[Completion]:
    """Answers in the order of the requests; what must hold of every answer is checked here."""
    found = await collect(rollout, requests)
    for completion in found.values():
        assert len(completion.token_ids) == len(completion.log_probs)
        assert sum(run.token_count for run in completion.versions) == len(completion.token_ids)
        assert all(log_prob <= 1e-6 for log_prob in completion.log_probs)
        assert completion.error == "", completion.error
    return [found[request.key] for request in requests]


async def sync(rollout: Rollout, source: WeightSource, manifest: WeightsManifest, sync_id: str = "") -> PolicyVersion:
    """All four phases by the stream."""
    sync_id = sync_id or f"sync-{mutation().request_id}"
    await rollout.init_weight_transfer("stream", mutation())
    await rollout.start_weight_update(sync_id, manifest, mutation())
    await rollout.update_weights(sync_id, source, mutation())
    return await rollout.finish_weight_update(sync_id, mutation())


def greedy_ids(model: Path, prompt: Sequence[int], count: int) -> list[int]:
    """What the plain model says, token by token."""
    import torch
    from transformers import AutoModelForCausalLM

    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(network(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def plain_logits(model: Path | Mapping[str, Any], prompt: Sequence[int], output: Sequence[int], base: Path) -> Any:
    """What the plain model says before each output token, [tokens, V]; the model a folder, or weights for `base`."""
    import torch
    from transformers import AutoModelForCausalLM

    network: Any = AutoModelForCausalLM.from_pretrained(model if isinstance(model, Path) else base, dtype=torch.float32)
    if not isinstance(model, Path):
        network.load_state_dict(dict(model))
    with torch.inference_mode():
        logits = network.eval()(input_ids=torch.tensor([[*prompt, *output]]), use_cache=False).logits[0]
    return logits[len(prompt) - 1 : -1]


class CutOff:
    """A source whose sender dies half way."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source

    @property
    def address(self) -> str:
        return ""

    async def get_manifest(self) -> WeightsManifest:
        return await self._source.get_manifest()

    async def stream_weights(
        self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
    ) -> AsyncIterator[WeightChunk]:
        count = 0
        async for chunk in self._source.stream_weights(version, names, base=base):
            count += 1
            if count > 5:
                raise UnavailableError("the sender was killed")
            yield chunk
