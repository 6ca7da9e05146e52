"""Tiny random models with a byte tokenizer: real Hugging Face folders that train and generate in seconds.

For tests, smoke runs and `argosy model tiny`. Everything that works on them works on any causal LM, since only the
sizes differ.
"""

from __future__ import annotations

from pathlib import Path

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ("<|pad|>", "<|im_start|>", "<|im_end|>")
"""Ids 0, 1 and 2, before the 256 bytes."""


def save_byte_tokenizer(path: Path) -> int:
    """Write a fast tokenizer whose tokens are single bytes (ids 3…258) and three special tokens; returns its size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        model_max_length=4096,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(path)
    return len(vocab)


def save_tiny_model(
    path: str | Path,
    *,
    seed: int = 0,
    hidden_size: int = 64,
    layer_count: int = 2,
    head_count: int = 4,
    kv_head_count: int = 2,
    tied: bool = True,
    max_position_embeddings: int = 1024,
    weight_scale: float = 1.0,
    attention_dropout: float = 0.0,
) -> Path:
    """Write a randomly initialised Llama-architecture model and its tokenizer as a Hugging Face folder.

    Args:
        path: The folder; made if absent.
        seed: Of the weights; equal seeds give equal bytes.
        weight_scale: Multiplies every matrix, to make outputs of a random model less uniform in tests.
        attention_dropout: Active in train mode only, for tests that it is off where it must be.
    """
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = save_byte_tokenizer(folder)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=hidden_size * 3,
        num_hidden_layers=layer_count,
        num_attention_heads=head_count,
        num_key_value_heads=kv_head_count,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=tied,
        attention_dropout=attention_dropout,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter.mul_(weight_scale)
    model.save_pretrained(folder)
    return folder
