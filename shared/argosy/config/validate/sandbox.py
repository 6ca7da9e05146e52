"""`argosy.reward.sandbox.*`: names of languages, and times that fit into one another."""

from __future__ import annotations

from collections.abc import Iterator

from argosy.config.schema import Config

LANGUAGES = ("python", "cpp", "javascript", "bash")
SHARE_FOR_TESTS = 0.9
"""Share of argosy.reward.timeout_s after which the sandbox gives up by itself."""
_PATH = "argosy.reward.sandbox"


def check_sandbox(config: Config) -> Iterator[str]:
    """Languages that exist, and a sample's time within its worker's."""
    sandbox, timeout_s = config.argosy.reward.sandbox, config.argosy.reward.timeout_s
    for name in sandbox.languages:
        if name not in LANGUAGES:
            yield f"{_PATH}.languages: got {name!r}, wants some of {', '.join(LANGUAGES)}"
    if not sandbox.languages:
        yield f"{_PATH}.languages: got [], wants some of {', '.join(LANGUAGES)}"
    most = SHARE_FOR_TESTS * timeout_s
    if sandbox.sample_timeout_s is not None and sandbox.sample_timeout_s > most:
        yield (
            f"{_PATH}.sample_timeout_s: got {sandbox.sample_timeout_s:g} with argosy.reward.timeout_s={timeout_s:g}, "
            f"which leaves {most:g}; raise that one too"
        )
