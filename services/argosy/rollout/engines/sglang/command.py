"""The server's command line and environment."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from argosy.rollout.engines.base import ModelFacts
from argosy.rollout.engines.sglang.options import SglangOptions
from argosy.rollout.engines.sglang.stub import write_stub
from argosy.types.errors import ConfigError, InvalidInputError

LOOPBACK = "127.0.0.1"
CONTEXT_MARGIN = 8
"""Tokens of its context that the server keeps for itself: it takes prompts up to 7 and answers up to 2 below it."""
_OURS = (
    "--model-path", "--host", "--port", "--dtype", "--device", "--context-length", "--max-running-requests",
    "--skip-tokenizer-init", "--weight-version", "--incremental-streaming-output",
    "--config", "--api-key", "--admin-api-key",
)  # fmt: skip
"""Flags that `argosy.rollout.sglang.arguments` may not repeat."""


def require_sglang() -> None:
    """Raise ConfigError, with the way out, where this interpreter has no SGLang."""
    if importlib.util.find_spec("sglang") is None:
        raise ConfigError(
            f"actor_rollout_ref.rollout.name=sglang, but {sys.executable} has no sglang: set "
            "argosy.services.rollout.python to an interpreter that has sglang and argosy (`make install-engines` makes "
            "one: .venvs/engines/bin/python)"
        )


def server_arguments(options: SglangOptions, facts: ModelFacts, port: int, version: str, *, on_cpu: bool) -> list[str]:
    """Arguments of `sglang.launch_server`. InvalidInputError if the options' own repeat one of ours."""
    repeated = [flag for flag in options.arguments if flag.partition("=")[0] in _OURS]
    if repeated:
        raise InvalidInputError(
            f"argosy.rollout.sglang.arguments has {repeated[0]}, which is set by other keys", field="arguments"
        )
    arguments = [
        *("--model-path", str(Path(options.model_path).expanduser())),
        *("--host", LOOPBACK, "--port", str(port)),
        *("--dtype", options.dtype),
        *("--context-length", str(facts.context_len + CONTEXT_MARGIN)),
        *("--max-running-requests", str(options.slot_count)),
        *("--chunked-prefill-size", str(options.prefill_token_budget)),
        *("--sampling-backend", "pytorch"),
        *("--sampling-mask-max-tokens", str(filter_tokens(options, facts))),
        *("--weight-version", version),
        *("--random-seed", str(options.seed)),
        *("--log-level", "warning"),
        "--skip-tokenizer-init",
        "--skip-server-warmup",
        "--sleep-on-idle",  # its loop would take a whole core while nothing runs
        "--incremental-streaming-output",
    ]
    if on_cpu:
        arguments += ["--device", "cpu", "--attention-backend", "torch_native", "--disable-overlap-schedule"]
    if kv_tokens(options, facts, on_cpu=on_cpu):
        arguments += ["--max-total-tokens", str(kv_tokens(options, facts, on_cpu=on_cpu))]
    if options.trust_remote_code:
        arguments.append("--trust-remote-code")
    return [*arguments, *options.arguments]


def key_arguments(folder: Path, key: str) -> list[str]:
    """Arguments by which the server asks every caller for `key`. It goes by a file in `folder`: a command line can be
    read by every user of the machine."""
    path = folder / "server.yaml"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"api-key: {json.dumps(key)}\n")
    return ["--config", str(path)]


def filter_tokens(options: SglangOptions, facts: ModelFacts) -> int:
    """Most tokens that filters may leave at a position."""
    return min(options.filter_tokens or facts.vocab_size, facts.vocab_size)


def kv_tokens(options: SglangOptions, facts: ModelFacts, *, on_cpu: bool) -> int:
    """Tokens of keys and values to ask for; 0 leaves it to SGLang."""
    return options.kv_tokens or (options.slot_count * (facts.context_len + CONTEXT_MARGIN) if on_cpu else 0)


def server_environment(options: SglangOptions, folder: Path) -> dict[str, str]:
    """The child's environment. `folder` is for the stub of torchvision."""
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "SGLANG_DISABLE_REQUEST_LOGGING": "1",
    }
    environment.pop("SGLANG_USE_CPU_ENGINE", None)  # it needs kernels that PyPI's build lacks
    if options.threads:
        environment["OMP_NUM_THREADS"] = str(options.threads)
    if importlib.util.find_spec("torchvision") is None:
        environment["PYTHONPATH"] = joined_path(write_stub(folder), os.environ)
    return environment


def joined_path(folder: Path, environment: Mapping[str, str]) -> str:
    """PYTHONPATH with `folder` before what was there."""
    before = environment.get("PYTHONPATH", "")
    return f"{folder}{os.pathsep}{before}" if before else str(folder)


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        return int(sock.getsockname()[1])
