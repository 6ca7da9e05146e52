"""`argosy.weight_sync.*`: how weights get from the trainer to the rollout servers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WeightSyncConfig:
    """Weights on their way from the trainer to the rollout servers."""

    transport: str = "auto"
    """How: "stream" (gRPC, any network), "shared_memory" (one machine), "collective" (NCCL or gloo), "disk" (a shared
    folder), or "auto": "shared_memory" to servers on the trainer's host, "stream" to all others and with delta=xor."""
    while_generating: str = "keep"
    """What becomes of samples that run when a server gets new weights (argosy.max_staleness above 0). "keep": they stay
    in their slots and go on under the new weights at once; "abort": they are ended, and go on from their tokens on any
    server, with their keys and values computed anew; "finish": the server gets no more samples and ends those that it
    has, so that no sample is of two versions, and then swaps."""
    delta: str = "auto"
    """What goes of a new version: "xor": what changed since the version before (exactly: XOR of the bits, compressed),
    to servers that hold that and take streams, and to the disk; "off": always all; "auto": "xor" with transport=disk,
    else "off". After a small step of a bf16 model it is 20 to 200 times smaller, at about 1 GB/s to make."""
    disk_path: str | None = None
    """transport=disk: a folder that trainer and rollout servers share; null: weights/ in the run folder."""
    disk_base_every: int = 8
    """transport=disk: a whole version after so many, between them deltas. It is what a newcomer reads at most."""
    disk_keep: int = 2
    """transport=disk: newest versions that stay, beside what their deltas need."""
    adapter_only: str = "auto"
    """With LoRA, send only the adapter: "on"; "off": its weights merged into the model's, all of them; "auto": "on" if
    every rollout engine can take it."""
    streams: int = 2
    """stream: streams side by side to one server. shared_memory: threads that copy and check, on as many cores."""
    fan_out: int = 2
    """stream: rollout servers that take a version from the trainer. They pass it on, each to one server at a time, and
    so do those, so that what the trainer sends doesn't grow with their number; 0: all take it from the trainer. With
    delta=xor all do: only the trainer has deltas."""
    bucket_mb: int = 64
    """collective: MiB of one message. Two are under way at a time; on a GPU they take that much of its memory."""
    collective_backend: str = "auto"
    """collective: "gloo", "nccl", or "auto": NCCL for a pair of which each has a GPU of its own, else
    gloo."""
    collective_broadcast: bool = False
    """collective: one group of all servers in place of a pair with each. Spares the trainer's network; a server that
    dies or stalls then costs the others this sync too."""
