"""The public shapes in which servers tell a scoring model's values: request, path, and where the values are.

| api | server | request → answer |
|---|---|---|
| `classify` | vLLM `/classify` | `{model, input: ids, use_activation: false}` → `data[].probs` |
| `score` | vLLM `/score` | `{model, text_1, text_2, use_activation: false}` → `data[].score` |
| `pooling` | vLLM `/pooling` | `{model, input: ids}` → `data[].data`, of token-wise ones the last |
| `sglang` | SGLang `/classify` | `{input_ids}` → `embedding` |
| `embeddings` | SGLang and OpenAI-style `/v1/embeddings` | `{model, input: ids}` → `data[].embedding` |
| `chat` | vLLM `/classify`, its own template | `{model, messages, use_activation: false}` → `data[].probs` |

Ids and not text go out, so that no server adds a second BOS or reads the template's special tokens otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

APIS = ("classify", "score", "pooling", "embeddings", "sglang", "chat")


class ShapeError(Exception):
    """The answer isn't of the api's shape."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One api."""

    path: str
    values: Callable[[Any], Any]
    """From the answer's one entry to a number, a list, or a list of lists (token-wise)."""


_SHAPES = {
    "classify": Shape("/classify", lambda entry: entry["probs"]),
    "chat": Shape("/classify", lambda entry: entry["probs"]),
    "score": Shape("/score", lambda entry: entry["score"]),
    "pooling": Shape("/pooling", lambda entry: entry["data"]),
    "embeddings": Shape("/v1/embeddings", lambda entry: entry["embedding"]),
    "sglang": Shape("/classify", lambda entry: entry["embedding"]),
}


def path_of(api: str) -> str:
    """Behind the endpoint's url."""
    return _SHAPES[api].path


def payload_of(api: str, model: str, *, ids: Sequence[int] = (), messages: Sequence[Mapping[str, Any]] = ()) -> Any:
    """The request for one sample. `messages`: of "chat" and "score", the conversation with the answer as last turn."""
    raw = {"model": model, "use_activation": False}
    if api == "sglang":
        return {"input_ids": list(ids)}
    if api == "embeddings":
        return {"model": model, "input": list(ids)}
    if api == "chat":
        return {**raw, "messages": [dict(message) for message in messages]}
    if api == "score":
        *before, answer = [str(message.get("content", "")) for message in messages]
        return {**raw, "text_1": before[-1] if before else "", "text_2": answer}
    return {**raw, "input": list(ids)}


def read_values(api: str, answer: Mapping[str, Any]) -> list[float]:
    """One value per label from the answer for one sample. Raises ShapeError.

    >>> read_values("classify", {"data": [{"probs": [0.5]}]})
    [0.5]
    >>> read_values("pooling", {"data": [{"data": [[0.1], [0.7]]}]})
    [0.7]
    """
    try:
        if api == "sglang":
            entry = answer
        else:
            (entry,) = answer["data"]
        values = _SHAPES[api].values(entry)
        while isinstance(values, Sequence) and values and isinstance(values[-1], Sequence):
            values = values[-1]  # token-wise: of the last token
        row = [values] if isinstance(values, int | float) else list(values)
        if not row or any(isinstance(value, bool) or not isinstance(value, int | float) for value in row):
            raise TypeError(f"values {str(row)[:80]}")
        return [float(value) for value in row]
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise ShapeError(f"the answer is not of api={api}: {error!r} in {str(answer)[:200]}") from None
