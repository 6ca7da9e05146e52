"""`argosy.openai.*`: an OpenAI-compatible endpoint in front of the rollout servers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OpenaiConfig:
    """The OpenAI-compatible endpoint of a run (docs/openai.md)."""

    enable: bool = False
    """Serve it while the run trains. Its address is in openai.json of the run folder."""
    source: str = "dataset"
    """What is trained: "dataset": answers to the data set's prompts, as ever, and the endpoint only serves the policy;
    "sessions": what agents do through the endpoint, rewarded by POST /v1/sessions/ID/reward."""
    host: str = "127.0.0.1"
    """Address to listen on. Other than loopback needs argosy.allow_remote_hosts=true and api_key_env."""
    port: int = 0
    """Port to listen on; 0 lets the system choose a free one."""
    api_key_env: str | None = None
    """Environment variable that holds the key which clients must send as `Authorization: Bearer …`; null asks for none.
    The key itself is never written anywhere."""
    model_name: str | None = None
    """The only model name that calls may ask for; null takes any, so that a client's own setting can stay."""
    sampling: str = "strict"
    """A call of a session that asks for another temperature (top_p, top_k, min_p, repetition_penalty, min_tokens) than
    the run samples with: "strict" refuses it; "run" answers it with the run's values."""
    train_branch: str = "last"
    """Which conversation of a session is trained where its client changed the history: "last": the one answered last;
    "longest": the one with most sampled tokens. Tokens of the others are counted as openai/untrained_branch_tokens."""
    min_rewarded: int = 0
    """Rewarded sessions that a group needs to be trained once all are over; the rest of it is masked. 0: all
    rollout.n. A group that can't get there any more is dropped as a whole, and another begins in its place."""
    session_timeout_s: float = 600.0
    """Seconds without a call after which a session is given up."""
    max_sessions: int = 4096
    """Sessions that may be open at once, and clients that may wait for one; more get 429."""
    max_calls: int = 256
    """Calls of one session; more are refused."""
    max_concurrency: int = 1024
    """Chat completions at once; more get 429 with a hint when to come again."""
    max_body_mb: int = 8
    """Largest request, MiB."""
    deadline_s: float = 600.0
    """Seconds that a call may take, waiting for admission and for new weights included."""
