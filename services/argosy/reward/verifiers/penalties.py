"""Penalties for how an answer is written: its length, its repetitions, its scripts. Each is in [-1, 0].

Use them as scorers of their own (`argosy/length`, `argosy/repetition`, `argosy/language`), or add them to any verifier:

    extra_info.reward_kwargs.penalties = {"repetition": {"weight": 0.5, "ngram": 20}, "length": {"longest": 8000}}

The score is then the verifier's plus the sum of `weight` · penalty; `acc` and the other parts stay as they are, and
each penalty is reported as `penalty_NAME`. Lengths are of the whole response, thinking too: in characters, or with
`unit: tokens` in the policy's tokens, which a service is sent if its `argosy.reward.scorer_kwargs` say so. For a
penalty relative to the budget of generation the controller has DAPO's soft overlong penalty (docs/rewards.md): use one
of the two, not both.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

from argosy.reward.verifiers.base import options
from argosy.types.records import Failed, Outcome, Scored

_CJK = r"぀-ヿ㐀-䶿一-鿿가-힯豈-﫿"
_UNIT = re.compile(rf"[{_CJK}]|[^\W{_CJK}]{{1,16}}|[^\w\s]")
"""A word, or 16 characters of a longer one; one character of a script without spaces; one sign."""

CHARACTERS, TOKENS = "characters", "tokens"
TOKEN_COUNT = "argosy_response_tokens"
"""In `extra_info`: tokens of the response, from whoever has them (`core`)."""

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "length": {"longest": 8000, "buffer": 2000, "shortest": 0, "unit": CHARACTERS},
    "repetition": {"ngram": 20},
    "language": {"scripts": ["latin", "greek"]},
}


def length_penalty(text: str, longest: int, buffer: int, shortest: int) -> float:
    """0 up to `longest - buffer` characters, then falling by 1/`buffer` a character to -1 at `longest`; -1 when shorter
    than `shortest`. The shape of arXiv:2503.14476, eq. 13.

    >>> [length_penalty("x" * n, longest=100, buffer=50, shortest=10) for n in (5, 50, 75, 100, 900)]
    [-1.0, 0.0, -0.5, -1.0, -1.0]
    """
    return -1.0 if len(text.strip()) < shortest else overlong_penalty(len(text), longest, buffer)


def overlong_penalty(length: int, longest: int, buffer: int) -> float:
    """0 up to `longest - buffer`, then falling to -1 at `longest`, in whatever unit.

    >>> [overlong_penalty(length, longest=100, buffer=50) for length in (50, 75, 900)]
    [0.0, -0.5, -1.0]
    """
    over = length - (longest - buffer)
    share = over / buffer if buffer else float(over > 0)
    return max(-1.0, -share) if share > 0 else 0.0


def repetition_penalty(text: str, ngram: int) -> float:
    """Minus the share of n-grams of words that stood there before; 0 for a text with fewer than `ngram` + 1 words.

    >>> repetition_penalty("a b c a b c a b c", ngram=3), repetition_penalty("a b c d", ngram=2)
    (-0.5714285714285714, 0.0)
    """
    units = _UNIT.findall(text.casefold())
    count = len(units) - ngram + 1
    if count < 2:
        return 0.0
    # Each n-gram as one number of the units it holds: linear in the text, whatever n is.
    numbers: dict[str, int] = {}
    base, modulus = 1_000_003, (1 << 61) - 1
    values = [numbers.setdefault(unit, len(numbers) + 1) for unit in units]
    gone, now = pow(base, ngram, modulus), 0
    seen: set[int] = set()
    for index, value in enumerate(values):
        now = (now * base + value) % modulus
        if index >= ngram:
            now = (now - values[index - ngram] * gone) % modulus
        if index >= ngram - 1:
            seen.add(now)
    return -(1 - len(seen) / count) if len(seen) < count else 0.0


def language_penalty(text: str, scripts: list[str]) -> float:
    """Minus the share of letters in other scripts than these ("latin", "greek", "cyrillic", "cjk", "hiragana", …: the
    first word of a letter's Unicode name); 0 for a text without letters.

    >>> language_penalty("two и два", ["latin"])
    -0.5714285714285714
    """
    letters = [character for character in text if character.isalpha()]
    if not letters:
        return 0.0
    allowed = {script.lower() for script in scripts}
    foreign = sum(_script(letter) not in allowed for letter in letters)
    return -foreign / len(letters) if foreign else 0.0


@functools.lru_cache(maxsize=4096)
def _script(letter: str) -> str:
    words = re.split(r"[ -]", unicodedata.name(letter, "unknown").lower())
    return "latin" if words[0] in ("mathematical", "fullwidth", "feminine", "masculine") else words[0]


PENALTIES: Mapping[str, Callable[..., float]] = {
    "length": length_penalty,
    "repetition": repetition_penalty,
    "language": language_penalty,
}
"""Name → function of the response and its options."""


def verify(name: str, solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    """A penalty as a scorer of its own: score in [-1, 0]. The ground truth is not looked at."""
    value = _penalty(name, solution, extra_info)
    return value if isinstance(value, Failed) else Scored(value, {f"penalty_{name}": value, "rule": name})


def penalised(outcome: Outcome, solution: str, wanted: Any, token_count: int | None = None) -> Outcome:
    """Add penalties to what a verifier says; what it couldn't judge stays so. `wanted` is checked first."""
    if not isinstance(wanted, Mapping):
        return Failed("bad_options", f"extra_info.reward_kwargs.penalties must be a mapping, got {wanted!r:.100}")
    total, parts = 0.0, {}
    for name, given in wanted.items():
        if name not in PENALTIES or not isinstance(given, Mapping):
            known = ", ".join(PENALTIES)
            return Failed("bad_options", f"penalties.{name}: give a mapping of options for one of {known}")
        weight = given.get("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 100:
            return Failed("bad_options", f"penalties.{name}.weight must be a number in 0 … 100, got {weight!r}")
        rest = {key: value for key, value in given.items() if key != "weight"}
        value = _penalty(name, solution, {"reward_kwargs": rest, TOKEN_COUNT: token_count})
        if isinstance(value, Failed):
            return value
        total += weight * value
        parts[f"penalty_{name}"] = value
    return Scored(outcome.score + total, {**outcome.parts, **parts}) if isinstance(outcome, Scored) else outcome


def _penalty(name: str, solution: str, extra_info: Mapping[str, Any]) -> float | Failed:
    chosen = options(extra_info, DEFAULTS[name])
    if isinstance(chosen, Failed):
        return chosen
    problem = _problem(chosen)
    if problem:
        return Failed("bad_options", f"{name}: {problem}")
    unit = chosen.pop("unit", CHARACTERS)
    return _of_tokens(chosen, extra_info.get(TOKEN_COUNT)) if unit == TOKENS else PENALTIES[name](solution, **chosen)


def wants_tokens(kwargs: Mapping[str, Any]) -> bool:
    """Whether options for whole data sources (`argosy.reward.scorer_kwargs`) count in tokens somewhere."""
    lengths = [given.get("penalties", {}).get("length", {}) for given in kwargs.values()]
    return any(given.get("unit") == TOKENS for given in (*lengths, *kwargs.values()))


def _of_tokens(chosen: Mapping[str, Any], count: Any) -> float | Failed:
    if not isinstance(count, int):
        return Failed(
            "bad_options",
            "length: unit=tokens, and the sample came without token ids; put the option into "
            "argosy.reward.scorer_kwargs, so that the service asks for them",
        )
    if count < chosen["shortest"]:
        return -1.0
    return overlong_penalty(count, chosen["longest"], chosen["buffer"])


def _problem(chosen: Mapping[str, Any]) -> str:
    if chosen.get("ngram", 1) < 1:
        return f"ngram must be at least 1, got {chosen['ngram']}"
    if "scripts" in chosen and not (chosen["scripts"] and all(isinstance(one, str) for one in chosen["scripts"])):
        return f"scripts must name at least one script, got {chosen['scripts']!r}"
    if chosen.get("unit", CHARACTERS) not in (CHARACTERS, TOKENS):
        return f"unit must be {CHARACTERS} or {TOKENS}, got {chosen['unit']!r}"
    if "longest" in chosen and not 0 <= chosen["buffer"] <= chosen["longest"]:
        return f"buffer must be in 0 … longest, got buffer={chosen['buffer']} and longest={chosen['longest']}"
    return ""
