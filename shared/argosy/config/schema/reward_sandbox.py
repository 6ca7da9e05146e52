"""`argosy.reward.sandbox`: how code in responses is run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SandboxConfig:
    """Limits and isolation of the programs that the code verifiers run (docs/sandbox.md)."""

    isolation: str = "required"
    """"required": where the kernel allows no isolation, samples with code are *failed*, with the reason.
    "allowed_without": they run all the same, with limits and the system call filter only; for code that you trust."""
    control_groups: str = "auto"
    """"auto": the kernel bounds memory and processes of each program by control groups where the service may make some,
    else the sums are looked at every 20 ms. "required": where it may not, samples with code are *failed*, with the
    reason. "off": never."""
    languages: tuple[str, ...] = ("python",)
    """Languages that are run: "python", "cpp" (g++), "javascript" (node), "bash". A row names its own in
    ground_truth.language or extra_info.language; without one it is Python."""
    credit: str = "mean"
    """"mean": the score is the share of hidden tests passed; "all": 1 if all are passed, else 0."""
    test_timeout_s: float = 4.0
    """Seconds for one test: of processor time of all its processes, and of time on the clock without the waits for a
    processor. A test that takes longer isn't passed, nor are those after it."""
    sample_timeout_s: float | None = None
    """The same for all tests of a sample and for compiling; null: 0.8 × argosy.reward.timeout_s."""
    memory_mb: int = 1024
    """MiB that all processes of a program may have together."""
    tmp_mb: int = 64
    """MiB of its private /tmp, which is also the size of its largest file."""
    output_mb: int = 16
    """MiB that it may write to standard output; one that writes more is ended."""
    process_count: int = 32
    """Processes and threads that it may have at the same time."""
    site_packages: bool = True
    """Whether it may import the packages that are installed beside the reward service, numpy for one."""
