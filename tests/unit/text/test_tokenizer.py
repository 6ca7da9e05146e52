from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from argosy.text import TextTokenizer, load_tokenizer
from argosy.types.errors import InvalidInputError

HI = [{"role": "user", "content": "hi"}]
BOS_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }} : {{ m['content'] }} {% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}assistant :{% endif %}"
)


def bos_tokenizer(folder: Path, template: str | None = BOS_TEMPLATE) -> Path:
    """A word tokenizer that puts `<s>` before whatever it encodes, as Llama's does, with the given chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocab = {"<s>": 0, "</s>": 1, "<unk>": 2, "user": 3, "assistant": 4, ":": 5, "hi": 6, "he": 7, "llo": 8, "hello": 9}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>"
    )
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder


def test_c1_exactly_one_bos(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = bos_tokenizer(tmp_path)
    assert AutoTokenizer.from_pretrained(folder).encode("hi") == [0, 6], "this tokenizer must add BOS by itself"
    ids = load_tokenizer(folder).encode_prompt(HI)
    assert ids == (0, 3, 5, 6, 4, 5)


def test_c1_every_path_gives_the_same_ids(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(bos_tokenizer(tmp_path))
    text = tokenizer.render(HI)
    assert text.startswith("<s>")
    assert tokenizer.encode_prompt(HI) == tokenizer.encode_rendered(text)
    assert tokenizer.encode_rendered_batch([text, text]) == [list(tokenizer.encode_prompt(HI))] * 2


def test_c1_a_template_without_bos_is_taken_at_its_word(tmp_path: Path) -> None:
    folder = bos_tokenizer(tmp_path, BOS_TEMPLATE.removeprefix("{{ bos_token }}"))
    assert load_tokenizer(folder).encode_prompt(HI) == (3, 5, 6, 4, 5)


def test_c3_sampled_ids_are_not_what_their_text_encodes_to(tmp_path: Path) -> None:
    """Why ids are kept: decoding [he, llo, </s>] and encoding the text gives other ids, whatever the options."""
    template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer = load_tokenizer(bos_tokenizer(tmp_path, template))
    sampled = (7, 8, 1)
    text = tokenizer.decode(sampled)
    assert tokenizer.decode(sampled, skip_special_tokens=False).endswith("</s>")
    assert "</s>" not in text
    assert tokenizer.encode_rendered(text.replace(" ", "")) == (9,)


def test_tools_reach_the_template(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(bos_tokenizer(tmp_path))
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"default": None}}}
    assert '"weather"' in tokenizer.render(HI, [tool])
    assert "null" in tokenizer.render(HI, [tool])
    assert tokenizer.render(HI, []) == tokenizer.render(HI)


def test_round_trip_of_any_text(tokenizer: TextTokenizer) -> None:
    for text in ("plain", " leading and trailing ", "two  spaces , before a comma", "ünïcödé 🦊", "\n\t"):
        assert tokenizer.decode(tokenizer.encode_rendered(text)) == text


def test_special_tokens_are_skipped_or_shown(tokenizer: TextTokenizer) -> None:
    ids = [*tokenizer.encode_rendered("ok"), 2]
    assert tokenizer.decode(ids) == "ok"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "ok<|im_end|>"


def test_what_it_knows(tokenizer: TextTokenizer) -> None:
    assert tokenizer.vocab_size == 259
    assert tokenizer.eos_token_ids == (2,)
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id) == (1, 0)


def test_eos_ids_of_the_generation_config_come_along(tmp_path: Path) -> None:
    bos_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 1]}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 4}))
    assert load_tokenizer(tmp_path).eos_token_ids == (1, 5, 4)


def test_template_arguments_and_a_template_of_ones_own(byte_folder: Path, tokenizer: TextTokenizer) -> None:
    own = load_tokenizer(byte_folder, chat_template="{{ greeting }}{{ messages[0]['content'] }}")
    assert own.render(HI, greeting="oh ") == "oh hi"
    assert not tokenizer.render(HI, add_generation_prompt=False).endswith("assistant\n")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"no model folder .*nowhere.*argosy model import"):
        load_tokenizer(tmp_path / "nowhere")


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(InvalidInputError, match=r"holds no tokenizer.*tokenizer_path"):
        load_tokenizer(tmp_path)


def test_a_broken_tokenizer_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(InvalidInputError, match="can't be loaded"):
        load_tokenizer(tmp_path)


def test_no_chat_template_says_what_to_do(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(bos_tokenizer(tmp_path, None))
    assert tokenizer.decode([6]) == "hi"
    with pytest.raises(InvalidInputError, match=r"no chat template.*chat_template\.jinja.*custom_chat_template"):
        tokenizer.encode_prompt(HI)


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ("hi", "is a plain string"),
        (None, "is null"),
        ([], "is an empty list"),
        ([None], "message 0 is null"),
        ([{"content": "x"}], "message 0 has no role"),
        ([{"role": "user"}], "message 0 has no content"),
        ([{"role": "user", "content": None}], "content null"),
        ([{"role": "user", "content": 3}], "content of type int"),
        ([{"role": "user", "content": [{"type": "image"}]}], "content part of kind 'image'"),
    ],
)
def test_messages_of_the_wrong_shape(tokenizer: TextTokenizer, messages: list[dict[str, str]], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        tokenizer.render(messages)


def test_a_template_that_refuses(byte_folder: Path) -> None:
    strict = load_tokenizer(byte_folder, chat_template="{{ raise_exception('no system role') }}")
    with pytest.raises(InvalidInputError, match=r"refuses the messages.*no system role"):
        strict.render(HI)


def test_what_is_loaded_the_short_way_is_what_auto_tokenizer_loads(byte_folder: Path) -> None:
    from transformers import AutoTokenizer

    short, long = load_tokenizer(byte_folder)._tokenizer, AutoTokenizer.from_pretrained(str(byte_folder))
    assert type(short) is type(long)
    assert short.backend_tokenizer.to_str() == long.backend_tokenizer.to_str()
    assert short.special_tokens_map == long.special_tokens_map
    assert (short.chat_template, short.model_max_length) == (long.chat_template, long.model_max_length)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("tokenizer_config.json", {"tokenizer_class": "Qwen2Tokenizer"}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["own.Own", None]}}),
        ("config.json", {"model_type": "qwen2"}),
    ],
)
def test_a_folder_that_needs_its_own_class_goes_the_long_way(
    byte_folder: Path, file: str, change: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    path = byte_folder / file
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **change}))

    def from_pretrained(name: str, **_: object) -> None:
        raise ValueError(f"asked for {name}")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", from_pretrained)
    with pytest.raises(InvalidInputError, match=f"can't be loaded: asked for {byte_folder}"):
        load_tokenizer(byte_folder)


def test_works_without_torch(byte_folder: Path) -> None:
    """In a process where torch can't be imported, as on a controller host that doesn't have it."""
    program = f"""
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" or name.startswith("torch."):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, NoTorch())
sys.modules["torch"] = None
from argosy.text import load_tokenizer
tokenizer = load_tokenizer({str(byte_folder)!r})
ids = tokenizer.encode_prompt([{{"role": "user", "content": "hi"}}])
assert tokenizer.decode(ids) == "user\\nhi\\nassistant\\n", tokenizer.decode(ids)
print(len(ids))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "21"  # <|im_start|> user\n hi <|im_end|> \n <|im_start|> assistant\n


def test_importing_the_package_is_light() -> None:
    program = "import sys, argosy.text; assert not {'transformers', 'torch', 'jinja2'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
