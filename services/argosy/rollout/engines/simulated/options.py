"""What can be set of the simulated engine."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.types.errors import InvalidInputError

LENGTHS = ("geometric", "fixed", "uniform", "lognormal")
FAILURES = ("none", "kill", "fail", "freeze", "hang", "error")


@dataclass(frozen=True, slots=True)
class SimulatedOptions:
    """How the simulated engine behaves."""

    model_path: str
    """Folder of a Hugging Face model: its config.json and the headers of its safetensors files are read."""
    slot_count: int = 64
    """Samples that run at once."""
    max_model_len: int = 0
    """Most tokens of prompt and answer together; 0 takes the model's own context."""
    max_waiting: int = 65536
    """Samples that may wait for a slot; more is OverloadedError."""
    prefix_token_budget: int = 65536
    """Prompt tokens that count as cached."""
    decode_ms: float = 0.0
    """Milliseconds of a decode step, whatever the batch."""
    decode_ms_per_sample: float = 0.0
    """Milliseconds that each running sample adds to a step."""
    prefill_us_per_token: float = 0.0
    """Microseconds that each prompt token which is not cached adds to the step that admits it."""
    length: str = "geometric"
    """How long answers are, in a name of LENGTHS."""
    length_mean: float = 64.0
    """Tokens; the end token included."""
    length_spread: float = 16.0
    """Tokens: half the width of "uniform", standard deviation of "lognormal"; the others have none."""
    failure: str = "none"
    """What happens after `failure_after` samples, in a name of FAILURES."""
    failure_after: int = 0
    """Samples that are finished before the failure."""
    lineage: str = "main"
    """Lineage of the version that the model's own files are: step 0."""
    start_stale: bool = False
    """Answer nothing until a weight update has come."""

    def __post_init__(self) -> None:
        for name, choices in (("length", LENGTHS), ("failure", FAILURES)):
            if getattr(self, name) not in choices:
                raise InvalidInputError(
                    f"simulated {name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}"
                )
        least = {"slot_count": 1, "max_waiting": 1, "length_mean": 1, "max_model_len": 0, "prefix_token_budget": 0}
        zeros = ("decode_ms", "decode_ms_per_sample", "prefill_us_per_token", "length_spread", "failure_after")
        for name, low in (least | dict.fromkeys(zeros, 0)).items():
            if not getattr(self, name) >= low:
                raise InvalidInputError(f"simulated {name} must be at least {low}, got {getattr(self, name)}")
