"""TextTokenizer: a Hugging Face tokenizer with its chat template, behind the few calls that Argosy makes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from argosy.text.chat import Message, Tools, message_problem
from argosy.types.errors import InvalidInputError

__all__ = ["Message", "TextTokenizer", "Tools", "load_tokenizer"]

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tiktoken.model")
_GENERAL_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""transformers' name for "what tokenizer.json says", in version 5 and before."""
_WITHOUT_OWN_TOKENIZER = ("llama", None)
"""Model types for which AutoTokenizer knows no class that it would prefer to those; None: a folder without a model."""


class TextTokenizer:
    """Text to ids and back. Safe to share between threads for reading.

    >>> tokenizer = load_tokenizer("checkpoints/model")                                    # doctest: +SKIP
    >>> tokenizer.encode_prompt([{"role": "user", "content": "What is 2+2?"}])             # doctest: +SKIP
    (1, 4093, 198, 1780, 314, …)
    """

    def __init__(self, tokenizer: Any, *, name: str, eos_token_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self.name = name
        """The folder or hub name that it was loaded from, for messages."""
        own = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        self.eos_token_ids: tuple[int, ...] = tuple(dict.fromkeys([*own, *eos_token_ids]))
        """Ids that end an answer: the tokenizer's EOS first, then those of generation_config.json and config.json."""
        self.bos_token_id: int | None = tokenizer.bos_token_id
        self.pad_token_id: int | None = tokenizer.pad_token_id
        self.vocab_size: int = len(tokenizer)
        """Tokens, added ones included. A model's embedding may have more rows (padding), never fewer."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Texts that it reads as one special token each, wherever they stand."""
        added = [str(token) for token in self._tokenizer.added_tokens_decoder.values() if token.special]
        return tuple(dict.fromkeys([*map(str, self._tokenizer.all_special_tokens), *added]))

    @property
    def digest(self) -> str:
        """Names the vocabulary: two tokenizers with equal digests mean the same token by every id."""
        entries = json.dumps(sorted(self._tokenizer.get_vocab().items()))
        return hashlib.blake2b(entries.encode(), digest_size=16).hexdigest()

    @property
    def chat_template(self) -> str | None:
        """The template's Jinja source; None when the tokenizer has none. With named templates, the default one."""
        template = self._tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        return str(template) if template else None

    def render(
        self,
        messages: Sequence[Message],
        tools: Tools | None = None,
        *,
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> str:
        """The conversation as the chat template writes it, special tokens included.

        Args:
            messages: In order; the last is usually the user's.
            tools: JSON schemas offered to the model; None and empty are the same.
            add_generation_prompt: End with the opening of the assistant's answer.
            template_kwargs: Further variables for the template (`data.apply_chat_template_kwargs`).

        Raises:
            InvalidInputError: No chat template, messages of the wrong shape, or the template itself refuses them.
        """
        from jinja2 import TemplateError

        problem = message_problem(messages)
        if problem is not None:
            raise InvalidInputError(f"the prompt {problem}")
        if self.chat_template is None and not template_kwargs.get("chat_template"):
            raise InvalidInputError(_no_template(self.name))
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] if tools else None,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **template_kwargs,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise InvalidInputError(f"the chat template of {self.name} refuses the messages: {error}") from error
        return str(text)

    def encode_prompt(self, messages: Sequence[Message], tools: Tools | None = None, **kwargs: Any) -> tuple[int, ...]:
        """The very ids that are sent to the engine: `render`, then `encode_rendered`; raises what `render` does."""
        return self.encode_rendered(self.render(messages, tools, **kwargs))

    def encode_rendered(self, text: str) -> tuple[int, ...]:
        """Ids of text that already holds its special tokens: none is added (case C1)."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def encode_rendered_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode_rendered` for many texts at once; the tokenizer spreads them over threads."""
        if not texts:
            return []
        encoded = self._tokenizer(
            list(texts), add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False
        )
        return [list(ids) for ids in encoded["input_ids"]]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`, for rewards and people; nothing is tidied up, and it is never encoded again (case C3)."""
        return str(
            self._tokenizer.decode(
                list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
            )
        )

    def save(self, folder: str | Path) -> None:
        """Write tokenizer and chat template into a model folder, for an exported checkpoint."""
        self._tokenizer.save_pretrained(str(folder))


def load_tokenizer(
    path: str | Path, *, chat_template: str | None = None, trust_remote_code: bool = False
) -> TextTokenizer:
    """Load the tokenizer of a Hugging Face folder or hub name.

    A tokenizer without a chat template loads (it can still decode); `render` and `encode_prompt` then say what to do.

    Args:
        path: Folder, or hub name ("HuggingFaceTB/SmolLM2-135M-Instruct").
        chat_template: Jinja source that replaces the tokenizer's own (`actor_rollout_ref.model.custom_chat_template`).
        trust_remote_code: Let the folder's own Python build the tokenizer.

    Raises:
        InvalidInputError: No such folder, no tokenizer in it, or files that can't be read.
    """
    name = str(path)
    folder = Path(path).expanduser()
    if folder.is_dir():
        _check_folder(folder)
    elif _looks_like_path(name):
        raise InvalidInputError(
            f"there is no model folder {name}; give a Hugging Face folder, or make one with `argosy model import`"
        )
    source = str(folder) if folder.is_dir() else name
    try:
        if folder.is_dir() and not trust_remote_code and names_its_class(folder):
            from transformers import PreTrainedTokenizerFast

            tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
        else:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise InvalidInputError(f"the tokenizer of {name} can't be loaded: {error}") from error
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    return TextTokenizer(tokenizer, name=name, eos_token_ids=_configured_eos(folder) if folder.is_dir() else ())


def names_its_class(folder: Path) -> bool:
    """Whether AutoTokenizer would load the folder as transformers' general tokenizer, by what the files say.

    It needs three seconds to find that out, since it imports torch and the models first: half of what a small run
    takes to start.
    """
    if not (folder / "tokenizer.json").is_file():
        return False
    named: dict[str, Any] = {}
    for file in (folder / "tokenizer_config.json", folder / "config.json"):
        content = json_object(file) if file.is_file() else {}
        if "auto_map" in content:
            return False
        named[file.stem] = content
    kind = named["tokenizer_config"].get("tokenizer_class")
    return kind in _GENERAL_CLASSES and named["config"].get("model_type") in _WITHOUT_OWN_TOKENIZER


def json_object(file: Path) -> Mapping[str, Any]:
    """The object in a file; empty for other JSON. Raises InvalidInputError on what is no JSON."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInputError(f"{file} is not valid JSON: {error}") from error
    return content if isinstance(content, Mapping) else {}


def _looks_like_path(name: str) -> bool:
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or not name


def _check_folder(folder: Path) -> None:
    if not any((folder / name).exists() for name in _TOKENIZER_FILES):
        raise InvalidInputError(
            f"the model folder {folder} holds no tokenizer (none of {', '.join(_TOKENIZER_FILES)}); copy the "
            "tokenizer's files of the base model into it, or set actor_rollout_ref.model.tokenizer_path to a folder "
            "that has them"
        )


def _configured_eos(folder: Path) -> list[int]:
    """EOS ids of generation_config.json and config.json; both may hold a number or a list."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        if not file.is_file():
            continue
        value = json_object(file).get("eos_token_id")
        found += value if isinstance(value, list) else [] if value is None else [value]
    return [int(number) for number in found]


def _no_template(name: str) -> str:
    return (
        f"the tokenizer of {name} has no chat template, so messages can't become a prompt; put the template of its "
        "chat model into the folder as chat_template.jinja, or set actor_rollout_ref.model.custom_chat_template"
    )
