"""From the outcomes of several services to one outcome per sample.

The reward is Σ weight × score over the services that score the sample, each score normalised (if asked for) and then
clipped. A sample that a *required* service failed to score is failed; one that a required service abstains from is
abstained from. An *optional* service that failed or abstained counts as the mean of what it gave the other samples of
the same prompt, so that it moves no sample above or below the others of its group. If it gave none of them a score, it
counts as its mean over the data source in the steps before, so that it moves no group above or below the others of the
batch, which some estimators compare; before it has scored the source in a finished step, that is unknown, and it counts
as nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from argosy.controller.rewards.moments import Moments
from argosy.types.ids import SampleId
from argosy.types.records import Abstained, Failed, Outcome, Scored

HEADLINES = ("acc", "pred")
"""Parts that keep their names when parts are prefixed, from the first service that has them: validation, the majority
vote and dynamic sampling look for them."""


@dataclass(frozen=True, slots=True)
class Term:
    """What one service's score counts for."""

    name: str
    weight: float = 1.0
    required: bool = True
    clip_min: float | None = None
    clip_max: float | None = None
    normalize: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether its score is the reward as it is."""
        return self.weight == 1.0 and self.clip_min is None and self.clip_max is None and not self.normalize

    def value(self, score: float, moments: Moments) -> float:
        """The score, normalised and clipped; not yet weighted."""
        value = moments.normalized(score) if self.normalize else score
        if self.clip_min is not None:
            value = max(value, self.clip_min)
        return value if self.clip_max is None else min(value, self.clip_max)


Given = Mapping[SampleId, Outcome]
"""What one service said about the samples of one prompt."""


def combine(
    terms: Sequence[Term], given: Mapping[str, Given], moments: Mapping[str, Moments], usual: Mapping[str, float]
) -> dict[SampleId, Outcome]:
    """One outcome for each sample of one prompt; `given` has an outcome of each term for each sample.

    `moments`: Of each term, what its scores are normalised by. `usual`: The mean score of a term for the data source so
    far, where it is known.
    """
    samples = list(given[terms[0].name])
    if len(terms) == 1 and terms[0].is_plain:
        return dict(given[terms[0].name])
    values = {
        term.name: {
            sample: term.value(outcome.score, moments[term.name])
            for sample, outcome in given[term.name].items()
            if isinstance(outcome, Scored)
        }
        for term in terms
    }
    # fsum rounds once, so the order in which samples came back can't show.
    neutral = {
        term.name: math.fsum(own.values()) / len(own)
        if (own := values[term.name])
        else term.value(usual[term.name], moments[term.name])
        if term.name in usual
        else 0.0
        for term in terms
    }
    return {sample: _combined(terms, sample, given, values, neutral) for sample in samples}


def _combined(
    terms: Sequence[Term],
    sample: SampleId,
    given: Mapping[str, Given],
    values: Mapping[str, Mapping[SampleId, float]],
    neutral: Mapping[str, float],
) -> Outcome:
    outcomes = {term.name: given[term.name][sample] for term in terms}
    needed = {term.name for term in terms if term.required} or set(outcomes)
    without = _unjudged(outcomes, needed, all_of_them=not any(term.required for term in terms))
    if without is not None:
        return without
    score = sum(term.weight * values[term.name].get(sample, neutral[term.name]) for term in terms)
    scored = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Scored)}
    if not math.isfinite(score):
        return Failed("bad_return", f"the weighted sum of the scores is {score}")
    tokens = _tokens(terms, scored, {name: values[name][sample] for name in scored}, neutral)
    if isinstance(tokens, Failed):
        return tokens
    parts = _parts(terms, outcomes) if len(terms) > 1 else dict(scored[terms[0].name].parts)
    return Scored(score, parts, tokens)


def _unjudged(outcomes: Mapping[str, Outcome], needed: set[str], *, all_of_them: bool) -> Outcome | None:
    """Why a sample can't be judged; None if it can: by all that are needed, or by one where none is required."""
    missing = {name: outcomes[name] for name in outcomes if name in needed and not isinstance(outcomes[name], Scored)}
    if not missing or (all_of_them and len(missing) < len(needed)):
        return None
    alone = len(outcomes) == 1
    for name, outcome in missing.items():
        if isinstance(outcome, Failed):
            return outcome if alone else replace(outcome, message=f"{name}: {outcome.message}")
    name, outcome = next(iter(missing.items()))
    return outcome if alone or not isinstance(outcome, Abstained) else Abstained(f"{name}: {outcome.reason}")


def _tokens(
    terms: Sequence[Term], scored: Mapping[str, Scored], values: Mapping[str, float], neutral: Mapping[str, float]
) -> tuple[float, ...] | Failed:
    """Rewards of single tokens, if a service gives some; the scores of the others land on the last token.

    A service that is normalised or clipped is so as a whole: its own tokens don't count then.
    """
    dense = {
        term.name: scored[term.name].token_scores
        for term in terms
        if term.name in scored and scored[term.name].token_scores and replace(term, weight=1.0).is_plain
    }
    if not dense:
        return ()
    lengths = {name: len(tokens) for name, tokens in dense.items()}
    if len(set(lengths.values())) > 1:
        return Failed("bad_return", f"services give scores for different numbers of tokens: {lengths}")
    total = [0.0] * next(iter(lengths.values()))
    for term in terms:
        if term.name in dense:
            total = [sum_ + term.weight * token for sum_, token in zip(total, dense[term.name], strict=True)]
        else:
            total[-1] += term.weight * values.get(term.name, neutral[term.name])
    return tuple(total)


def _parts(terms: Sequence[Term], outcomes: Mapping[str, Outcome]) -> dict[str, float | str | bool]:
    """All parts, prefixed with their service; each service's own score among them."""
    parts: dict[str, float | str | bool] = {}
    for term in terms:
        outcome = outcomes[term.name]
        if not isinstance(outcome, Scored):
            continue
        for name in HEADLINES:
            if name in outcome.parts:
                parts.setdefault(name, outcome.parts[name])
        parts[f"{term.name}/score"] = outcome.score
        parts |= {f"{term.name}/{name}": value for name, value in outcome.parts.items()}
    return parts
