"""Tokenizer and chat template: the one place where text becomes ids and ids become text. Needs no torch.

Rules (case C1): the chat template writes all special tokens, and the templated text is encoded with
`add_special_tokens=False`, so that nothing adds a second BOS. Sampled ids are decoded for rewards and people only, and
never encoded again (case C3).
"""

from __future__ import annotations

from argosy.text.tokenizer import Message, TextTokenizer, Tools, load_tokenizer

__all__ = ["Message", "TextTokenizer", "Tools", "load_tokenizer"]
