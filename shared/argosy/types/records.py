"""Frozen records that travel between the controller and the services, whatever the transport."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from argosy.types.ids import GroupId, PolicyVersion, SampleId


@dataclass(frozen=True, slots=True)
class Prompt:
    """One dataset row, templated and ready to send.

    >>> prompt = Prompt(GroupId(0, 0), (1, 5, 9), "gsm8k", "4", {"index": 7}, "What is 2+2?")
    >>> prompt.group.position, len(prompt.token_ids)
    (0, 3)
    """

    group: GroupId
    token_ids: tuple[int, ...]
    """The very ids that are sent to the engine: the chat template is already applied, exactly one BOS at most."""
    data_source: str
    """Names the scorer, and the validation metrics' group."""
    ground_truth: Any
    """`reward_model.ground_truth` of the row: a string, or any JSON value."""
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    """`extra_info` of the row: any JSON object."""
    text: str = ""
    """The templated prompt as text, for rewards and dumps; never encoded again."""
    index: int = 0
    """Row in the dataset, from 0, before shuffling and filtering."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """The chat messages that the text was made of, for reward services that ask for them."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas of the tools that the template was given, in OpenAI's form."""
    agent_name: str = ""
    """Which agent loop answers it; empty: the run's default."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to draw tokens. A field set to zero means zero; only None means "not set" (case F11)."""

    max_tokens: int
    """Most tokens to generate, ≥ 1; 0 is refused."""
    temperature: float = 1.0
    """Logits are divided by it. 0 is greedy; the reported log-prob is then of the argmax under temperature 1."""
    top_k: int = -1
    """Keep the k likeliest tokens. -1, 0 and ≥ vocabulary mean off; other negatives are refused."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens whose probability reaches p, in (0, 1]; 1 is off. 0 keeps one token."""
    min_p: float = 0.0
    """Drop tokens less likely than min_p × the likeliest, in [0, 1); 0 is off."""
    repetition_penalty: float = 1.0
    """Divide positive, multiply negative logits of tokens already seen (prompt and output); 1 is off (Keskar 2019)."""
    min_tokens: int = 0
    """No stop id or stop string ends a sample before this many tokens; stop ids are masked out until then."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end a sample besides the model's EOS ids; the id itself is part of the output."""
    stop: tuple[str, ...] = ()
    """Strings that end a sample. The token that completes one stays in the ids; empty strings are refused."""
    include_stop_str_in_output: bool = False
    """Whether `text` keeps the stop string. Ids and log-probs always describe the same tokens either way."""
    ignore_eos: bool = False
    """Go on past the model's EOS ids (not past stop_token_ids)."""
    seed: int = 0
    """Noise is a function of (seed, purpose, sample id, token position): the same on every server, in every batch."""


@dataclass(frozen=True, slots=True)
class VersionRun:
    """`token_count` tokens in a row sampled by one policy version."""

    version: PolicyVersion
    token_count: int


def versions_after(runs: Sequence[VersionRun], count: int) -> tuple[VersionRun, ...]:
    """Run lengths over what follows the first `count` tokens.

    >>> old, new = PolicyVersion("main", 0, "a"), PolicyVersion("main", 1, "b")
    >>> [run.token_count for run in versions_after([VersionRun(old, 3), VersionRun(new, 2)], 4)]
    [1]
    """
    left: list[VersionRun] = []
    for run in runs:
        skipped = min(count, run.token_count)
        count -= skipped
        if run.token_count > skipped:
            left.append(VersionRun(run.version, run.token_count - skipped))
    return tuple(left)


@dataclass(frozen=True, slots=True)
class Generated:
    """Tokens already generated, from which a server goes on (a dead server's partial answer)."""

    token_ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    versions: tuple[VersionRun, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One sample to generate."""

    sample_id: SampleId
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    purpose: str = "train"
    """"train", "val" or "warmup". Part of the noise key and of `key`, so that validation never moves training."""
    generated: Generated = Generated()
    priority: int = 0
    """Of the samples that wait, those with more go first; equal ones in the order in which they came. It decides only
    when a sample is drawn, never what."""
    turn_start: int = 0
    """Where in the output the present turn begins, ≤ len(generated.token_ids): the tokens before it are earlier turns
    and what others said in between, at which neither end ids nor stop strings end the sample. max_tokens and min_tokens
    count the whole output."""

    @property
    def key(self) -> str:
        """Unique among the requests in flight on a server: `purpose:sample_id`."""
        return f"{self.purpose}:{self.sample_id}"


class FinishReason(enum.Enum):
    """Why a sample ended."""

    STOP = "stop"
    """EOS, a stop id or a stop string."""
    LENGTH = "length"
    """max_tokens or the server's context limit. With no tokens at all: `Completion.overlong_prompt`."""
    ABORTED = "aborted"
    """Ended on purpose; the partial tokens are kept."""
    FAILED = "failed"
    """The server could not go on; `Completion.error` says why."""


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Tokens of a running sample since the last run: what a stream sends at intervals, so that a dead server's partial
    answer can go on elsewhere."""

    sample_id: SampleId
    purpose: str
    """As in its request."""
    offset: int
    """Index of the first token in the sample's output, tokens that came with the request included."""
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    versions: tuple[VersionRun, ...]
    """Run lengths over these tokens."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A generated sample: exactly the sampled ids, and the log-probs of the distribution really sampled from."""

    sample_id: SampleId
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    """One per token: after penalties, temperature, top-k, top-p and min-p, renormalised."""
    versions: tuple[VersionRun, ...]
    """Run lengths over the tokens; they sum to len(token_ids)."""
    finish_reason: FinishReason
    text: str = ""
    """Decoded for rewards and people; cut at a stop string unless include_stop_str_in_output."""
    error: str = ""
    purpose: str = "train"
    cached_prompt_tokens: int = 0
    """Prompt tokens whose keys and values were reused from another sample (prefix sharing)."""
    member_id: str = ""
    """The server that finished it; empty in-process."""
    response_mask: tuple[int, ...] = ()
    """One per token: 1 = sampled by the policy, 0 = written by a tool or a user (its log-prob is 0). Empty: all 1."""
    turn_count: int = 1
    """Turns that the policy had."""
    turn_rewards: tuple[tuple[int, float], ...] = ()
    """(index of a token, reward) given on the way, beside the outcome."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """What the prompt's messages were followed by, as chat messages; empty for a plain answer."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Figures of this sample (tool calls …), which become means over the step."""
    outcome: Outcome | None = None
    """A verdict that came with the trajectory; None: a reward service is asked."""

    @property
    def mask(self) -> tuple[int, ...]:
        """`response_mask`, written out."""
        return self.response_mask or (1,) * len(self.token_ids)

    @property
    def message_count(self) -> int:
        """Chat messages of the conversation, the first prompt being one (verl's num_turns): 2 for a plain answer."""
        return 2 * self.turn_count + int(bool(self.response_mask) and not self.response_mask[-1])

    @property
    def overlong_prompt(self) -> bool:
        """The prompt alone leaves no room in the server's context: nothing was generated, `error` says the lengths, and
        no other try would help. It is neither scored nor trained."""
        return self.finish_reason is FinishReason.LENGTH and not self.token_ids


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """One completed sample for the reward service: text and truth; ids only if the service asks for them."""

    sample_id: SampleId
    data_source: str
    prompt_text: str
    response_text: str
    ground_truth: Any
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    prompt_ids: tuple[int, ...] = ()
    response_ids: tuple[int, ...] = ()
    valid_response: bool = True
    """False when the response was cut by the length limit."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """The chat messages, as JSON objects; sent only if the service asks for them. After the prompt's come those of an
    answer with several turns."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The verifier has a number."""

    score: float
    """Finite."""
    parts: Mapping[str, float | str | bool] = field(default_factory=dict)
    """Named parts that become metrics ("acc", "format", "pred" …)."""
    token_scores: tuple[float, ...] = ()
    """Optional dense rewards, one per response token; empty: the score lands on the last response token."""


@dataclass(frozen=True, slots=True)
class Abstained:
    """The verifier says that it can't judge this sample: leaves the group's mean and spread, advantage 0."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The verifier itself failed (raised, timed out, returned nonsense). Never a 0 (case G11)."""

    reason: str
    """A short stable code: "timeout", "exception", "bad_return", "unknown_data_source", "bad_ground_truth" …"""
    message: str = ""


Outcome = Scored | Abstained | Failed


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """The outcome for one sample, matched by id."""

    sample_id: SampleId
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class RewardCapabilities:
    """What a reward server can do."""

    data_sources: tuple[str, ...]
    """Data sources with a scorer; ("*",) = any (a custom function)."""
    needs_token_ids: bool = False
    max_batch_size: int = 256
    needs_messages: bool = False
    """Whether requests must carry the prompt's chat messages."""
    repeat_forbidden: bool = False
    """Whether a sample must not be sent again after a failure: scoring costs money, or counts."""
    name: str = ""
    """What the server is, for people and logs; empty: not told."""
    version: str = ""
    """Which version of its scorers answers; empty: not told."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a weights manifest."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """torch's name without the prefix: "float32", "bfloat16", …"""
    checksum: str
    """Hex crc32 (8 digits) of the little-endian bytes."""
    tied_to: str = ""
    """Name of the tensor that this one shares storage with; such a tensor sends no bytes of its own."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor as it is sent."""
        width = {"float64": 8, "float32": 4, "int64": 8, "int32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "uint8": 1}
        count = 1
        for extent in self.shape:
            count *= extent
        return count * width[self.dtype]


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """A LoRA adapter on top of a version: a module computes with W + alpha / rank · B·A."""

    base: PolicyVersion
    """The weights without it. A receiver must hold weights of that digest, whatever their lineage and step."""
    rank: int
    """Of every module, ≥ 1."""
    alpha: float
    target_modules: tuple[str, ...]
    """Full names ("model.layers.0.self_attn.q_proj"). Each has two tensors in the manifest: MODULE.lora_A.weight,
    [rank, in], and MODULE.lora_B.weight, [out, rank]."""

    @property
    def scaling(self) -> float:
        """alpha / rank."""
        return self.alpha / self.rank


@dataclass(frozen=True, slots=True)
class WeightsManifest:
    """What one policy version consists of; its digest names the version."""

    version: PolicyVersion
    tensors: tuple[TensorSpec, ...]
    """In sending order."""
    adapter: AdapterSpec | None = None
    """The tensors are an adapter's, and the version is that adapter on top of its base. None: they are all there is."""


@dataclass(frozen=True, slots=True)
class WeightChunk:
    """A piece of one tensor's bytes, at most about 1 MiB."""

    name: str
    offset: int
    data: bytes | memoryview
    """The bytes, or a delta (`argosy.weightsync.delta`) that makes them of those of a version that is held."""
    checksum: int
    """crc32 of `data`."""
    delta_size_bytes: int = 0
    """Bytes of the tensor that a delta stands for; 0: `data` is no delta."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor that it brings."""
        return self.delta_size_bytes or len(self.data)


class WeightsForm(enum.Enum):
    """What of a model's weights a version holds."""

    MERGED = "merged"
    """All; an adapter is merged into them."""
    ADAPTER = "adapter"
    """The LoRA adapter alone, on top of its base."""
    BASE = "base"
    """All, without the adapter."""


@dataclass(frozen=True, slots=True)
class TransferOffer:
    """One receiver's ticket to an open transfer: what the sender says, and the receiver needs, to get the bytes.

    >>> version = PolicyVersion("main", 3, "d")
    >>> TransferOffer("collective", "main-3", version, "127.0.0.1:4711", rank=1, world_size=2).rank
    1
    """

    transport: str
    """A name in `argosy.weightsync.transports.TRANSPORTS`."""
    sync_id: str
    """The sync that it is for; good for no other."""
    version: PolicyVersion
    """The version whose bytes these are."""
    endpoint: str
    """stream: host:port of the WeightsService ("": the source's own); collective: host:port of a TCPStore, where an
    empty host is the sender's; shared_memory: path of the memory file; disk: folder."""
    rank: int = 0
    """The receiver's rank in its group; the sender is rank 0. 0 where there are no groups."""
    world_size: int = 0
    """Ranks of its group, the sender's included. 0 where there are no groups."""
    options: Mapping[str, str] = field(default_factory=dict)
    """What else the transport's receiver must know: sizes, a group's name, how many streams."""


class MemberState(enum.Enum):
    """The life of a member: JOINING → STALE → READY → DRAINING; QUARANTINED after failures."""

    JOINING = "joining"
    STALE = "stale"
    """Must receive weights before it may answer."""
    READY = "ready"
    DRAINING = "draining"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class Member:
    """One service process as membership sees it."""

    member_id: str
    """Unique in the fleet, stable over its life: "rollout-0"."""
    role: str
    """"rollout", "reward", "reference", "trainer", "critic" or "controller"."""
    address: str
    """host:port of its gRPC server."""
    incarnation: str
    """One life of the member: a random token made at process start."""
    pool: str = "default"
    engine: str = ""
    """"hf", "vllm", "sglang"; empty where it has no meaning."""
    capabilities: Mapping[str, str] = field(default_factory=dict)
    state: MemberState = MemberState.JOINING
    version: PolicyVersion | None = None
    """The policy version that it holds."""
    sample_count: int = 0
    """Samples that it has; this and what follows is what a controller has seen of it, and not in membership."""
    idle_s: float = 0.0
    """Seconds since it last gave tokens of them; 0 where it has none."""
    error: str = ""
    """What last went wrong between the controller and it; empty: nothing has."""
    error_at: float = 0.0
    """When that was, seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a run: what servers fence by."""

    run_id: str
    term: int
    """Rises with each leader of the run; 0: nobody in particular, who is not fenced."""


NO_LEADER = Leader("", 0)


@dataclass(frozen=True, slots=True)
class Mutation:
    """What every mutating call carries, so that it can be fenced, retried and traced."""

    run_id: str
    term: int
    """The leader's fencing number; a server refuses a lower one than it has seen (FencedError)."""
    request_id: str
    """A repeat of the same id returns the first answer and does nothing again (AIP-155)."""
    deadline_s: float
    """Total seconds for the call, all tries included."""
    expected_step: int | None = None
    """On trainer mutations: optimizer steps that the trainer must have done; else StepMismatchError."""


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """How a rollout server is doing."""

    version: PolicyVersion | None
    state: str
    """"ready", "paused", "stale", "asleep", "draining", or "stuck": the engine has stood still for longer than it
    may."""
    running_count: int
    waiting_count: int
    slot_count: int
    generated_token_count: int
    cached_token_count: int
    """Prompt tokens held for prefix sharing; 0 right after a weight update."""
    max_model_len: int
    engine: str = ""
    """"hf", "vllm" …; empty: not told."""
    capabilities: Mapping[str, str] = field(default_factory=dict)
    """What the engine can do (`argosy.rollout.engines.base.Capabilities`): flags "true" or "false", lists with commas
    between; empty: not told."""
    kv_used_tokens: int = 0
    """Tokens whose keys and values are held for running samples."""
    kv_total_tokens: int = 0
    """Tokens of keys and values that there is room for; 0: not told."""
    tokens_per_second: float = 0.0
    """Generated, over the last ten seconds."""
    prompt_token_count: int = 0
    """Prompt tokens of the samples admitted since the process began."""
    prompt_cached_token_count: int = 0
    """How many of those were not computed again, since their keys and values were held."""
    overlong_prompt_count: int = 0
    """Samples ended at once, since their prompts leave no room in the context."""
    refused_sample_count: int = 0
    """Samples refused for want of room."""


@dataclass(frozen=True, slots=True)
class TrainerStatus:
    """Where a trainer is."""

    step: int
    """Optimizer steps of the loop done (update calls finished), from 0."""
    version: PolicyVersion | None
    """The last published version."""
    parameter_count: int
    has_value_head: bool = False
    host_id: str = ""
    """`argosy.weightsync.hosts.host_id` of its process: equal ids can share memory; "" if it is not known."""
    transports: tuple[str, ...] = ()
    """Transports by which it can send weights."""


@dataclass(frozen=True, slots=True)
class LossConfig:
    """Everything that shapes the objective of one update; names as in verl's `actor_rollout_ref.actor`."""

    loss_mode: str = "vanilla"
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    clip_ratio_c: float = 3.0
    loss_agg_mode: str = "token-mean"
    loss_scale_factor: float | None = None
    """Divisor of seq-mean-token-sum-norm; None = data.max_response_length, filled in by the controller."""
    entropy_coeff: float = 0.0
    use_kl_loss: bool = False
    kl_loss_coef: float = 0.001
    kl_loss_type: str = "low_var_kl"
    temperature: float = 1.0
    """The rollout's sampling temperature: log-probs are of logits / temperature (case B8)."""
    options: Mapping[str, float | str | bool] = field(default_factory=dict)
    """Keys of particular loss modes."""


@dataclass(frozen=True, slots=True)
class GlobalNormalizer:
    """Denominators of the global mini-batch, so that any split into micro-batches or ranks adds up (case B4)."""

    token_count: float
    """Σ response mask over the mini-batch."""
    sequence_count: float
    """Sequences with at least one trained token in the mini-batch."""


@dataclass(frozen=True, slots=True)
class UpdateConfig:
    """How one `Update` walks over its batch."""

    loss: LossConfig
    mini_batch_size: int
    """Sequences per optimizer step (verl's ppo_mini_batch_size × rollout.n)."""
    ppo_epochs: int = 1
    shuffle: bool = False
    seed: int = 0
    """Shuffling of the mini-batches is keyed by (seed, trainer step, ppo epoch)."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a trainer mutation did."""

    step: int
    metrics: Mapping[str, float]
    """verl's names: actor/pg_loss, actor/grad_norm, actor/lr …"""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run as `argosy status` and ControllerService show it."""

    run_id: str
    state: str
    """"starting", "running", "paused", "stopping", "finished", "failed"."""
    step: int
    total_steps: int
    term: int
    version: PolicyVersion | None
    stage: str
    """What the loop is waiting for right now."""
    metrics: Mapping[str, float]
    """Of the last finished step."""
    message: str = ""
    stage_since: float = 0.0
    """When the loop began to wait for `stage`, seconds since 1970; 0: not told."""
    stall: str = ""
    """What stands still, whom it waits for and since when; empty: nothing does."""


@dataclass(frozen=True, slots=True)
class ServerCount:
    """How many servers of a kind a run is to have on the launcher's machine."""

    role: str
    """"rollout" or "reward"."""
    count: int
    pool: str = ""
    """Of rollout servers; of reward servers, their service. Empty: the only one."""


@dataclass(frozen=True, slots=True)
class ScaleChange:
    """What a launcher began to do about a `ServerCount`."""

    role: str
    pool: str
    before: int
    """Servers until now, without those that drained already."""
    count: int
    """Servers from now on."""
    started: tuple[str, ...] = ()
    """Member ids of new ones, which join when they are ready."""
    draining: tuple[str, ...] = ()
    """Member ids of those that finish what they have, and leave."""


def request_id_of(run_id: str, *parts: object) -> str:
    """A deterministic request id: a controller that repeats a step after a crash repeats the id as well.

    >>> request_id_of("run-1", "update", 3)
    'run-1/update/3'
    """
    return "/".join([run_id, *map(str, parts)])
