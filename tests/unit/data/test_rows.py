from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from argosy.controller.data.rows import Dataset
from argosy.text import TextTokenizer
from argosy.types.errors import InvalidInputError

MakeRow = Callable[..., dict[str, Any]]

PROMPT = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
LARGE_PROMPT = pa.large_list(pa.struct([("role", pa.large_string()), ("content", pa.large_string())]))


def parquet(path: Path, rows: Sequence[dict[str, Any]], schema: pa.Schema | None = None, **options: Any) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path, **options)
    return path


def city_tool(parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object", "properties": parameters}},
    }


def test_parquet_and_json_give_equal_rows(tmp_path: Path, row: MakeRow) -> None:
    rows = [row(index) for index in range(5)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "a.json").write_text(json.dumps(rows))
    from_parquet = list(Dataset([parquet(tmp_path / "a.parquet", rows)]).rows())
    assert from_parquet == list(Dataset([tmp_path / "a.jsonl"]).rows()) == list(Dataset([tmp_path / "a.json"]).rows())
    assert from_parquet[3].messages == ({"role": "user", "content": "q3"},)
    assert (from_parquet[3].data_source, from_parquet[3].ground_truth) == ("toy", "3")
    assert from_parquet[3].extra_info == {"split": "train", "index": 3}


def test_many_files_are_one_dataset(tmp_path: Path, row: MakeRow) -> None:
    first = parquet(tmp_path / "a.parquet", [row(index) for index in range(3)])
    empty = parquet(tmp_path / "b.parquet", [row(0)][:0])
    last = tmp_path / "c.jsonl"
    last.write_text(json.dumps(row(3)) + "\n\n" + json.dumps(row(4)))
    dataset = Dataset([first, empty, last])
    assert len(dataset) == 5
    assert [one.ground_truth for one in dataset.rows()] == ["0", "1", "2", "3", "4"]
    assert [one.ground_truth for one in dataset.rows(2, 4)] == ["2", "3"]
    assert dataset[4].ground_truth == "4"


def test_c5_fields_of_other_rows_do_not_leak(tmp_path: Path, row: MakeRow, plus_twelve: TextTokenizer) -> None:
    rows = [
        row(0, tools=[city_tool({"city": {"type": "string", "default": None}})]),
        row(1, tools=[city_tool({"isbn": {"type": "string"}})]),
    ]
    path = parquet(tmp_path / "a.parquet", rows)
    raw = pq.read_table(path).to_pylist()[0]["tools"][0]["function"]["parameters"]["properties"]
    assert raw["isbn"] is None, "Arrow must have put the foreign field there, or this test guards nothing"
    first, second = Dataset([path]).rows()
    text = plus_twelve.render(first.messages, first.tools)
    assert "isbn" not in text
    assert '"default": null' in text
    assert list(first.tools) == rows[0]["tools"]
    assert list(second.tools) == rows[1]["tools"]


def test_c5_a_null_default_survives_beside_one_with_a_value(tmp_path: Path, row: MakeRow) -> None:
    """Where another row has a value at the same place, only a schema that allows null can say that null was meant."""
    nullable = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    rows = [
        row(0, tools=[city_tool({"city": nullable})]),
        row(1, tools=[city_tool({"city": {"anyOf": [{"type": "string"}], "default": "Oslo"}})]),
        row(2, tools=[city_tool({"city": {"anyOf": [{"type": "string"}]}})]),
    ]
    loaded = [list(one.tools) for one in Dataset([parquet(tmp_path / "a.parquet", rows)]).rows()]
    assert loaded == [one["tools"] for one in rows]


@pytest.mark.parametrize("kind", ["jsonl", "text"])
def test_c5_json_keeps_every_null(tmp_path: Path, row: MakeRow, kind: str) -> None:
    tools = [city_tool({"city": {"type": "string", "default": None}}), city_tool({"city": {"default": "Oslo"}})]
    path = tmp_path / "a.jsonl"
    if kind == "jsonl":
        path.write_text(json.dumps(row(0, tools=tools)))
    else:
        path = parquet(tmp_path / "a.parquet", [row(0, tools=json.dumps(tools))])
    assert list(Dataset([path])[0].tools) == tools


def test_c5_message_fields_of_other_rows_do_not_leak(tmp_path: Path, row: MakeRow) -> None:
    call = {"function": {"name": "look", "arguments": {"city": "Oslo"}}}
    other = {"function": {"name": "look", "arguments": {"isbn": "1"}}}
    asks = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    asks_other = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [other]}]
    rows = [row(0, prompt=asks), row(1, prompt=asks_other)]
    loaded = [list(one.messages) for one in Dataset([parquet(tmp_path / "a.parquet", rows)]).rows()]
    assert loaded == [asks, asks_other]


def test_c6_nested_columns_of_every_width(tmp_path: Path, row: MakeRow) -> None:
    rows = [row(index, content=f"question {index} " * (index + 1)) for index in range(11)]
    rows[5]["extra_info"] = None
    expected = list(Dataset([parquet(tmp_path / "plain.parquet", rows)]).rows())
    plain = pq.read_table(tmp_path / "plain.parquet")
    for width in (PROMPT, LARGE_PROMPT):
        for group_size in (1, 3, 100):
            table = plain.set_column(plain.schema.get_field_index("prompt"), "prompt", plain["prompt"].cast(width))
            path = tmp_path / "wide.parquet"
            pq.write_table(table, path, row_group_size=group_size)
            dataset = Dataset([path])
            assert list(dataset.rows()) == expected
            assert [dataset[index] for index in range(11)] == expected
    assert expected[5].extra_info == {}
    assert [one.ground_truth for one in expected] == [str(index) for index in range(11)]


def test_c6_a_row_group_without_rows(tmp_path: Path, row: MakeRow) -> None:
    table = pa.Table.from_pylist([row(index) for index in range(4)])
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, table.schema) as writer:
        for part in (table.slice(0, 2), table.slice(0, 0), table.slice(2)):
            writer.write_table(part)
    assert pq.ParquetFile(path).num_row_groups == 3
    assert [one.ground_truth for one in Dataset([path]).rows()] == ["0", "1", "2", "3"]


def test_c6_dictionary_columns(tmp_path: Path, row: MakeRow) -> None:
    table = pa.Table.from_pylist([row(index) for index in range(4)])
    table = table.set_column(0, "data_source", table["data_source"].dictionary_encode())
    pq.write_table(table, tmp_path / "a.parquet")
    assert [one.data_source for one in Dataset([tmp_path / "a.parquet"]).rows()] == ["toy"] * 4


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_c6_a_null_prompt_in_the_middle_is_an_error_that_names_it(tmp_path: Path, row: MakeRow, kind: str) -> None:
    rows = [row(0), row(1, prompt=None), row(2)]
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        parquet(path, rows)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InvalidInputError, match=rf"a\.{kind}, row 1 \(from 0\): column 'prompt' is null"):
        list(Dataset([path]).rows())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt": "just text"}, "column 'prompt' is a plain string; expected a list of messages"),
        ({"prompt": []}, "column 'prompt' is an empty list"),
        ({"prompt": [{"role": "user"}]}, "column 'prompt' message 0 has no content"),
        ({"data_source": None}, "column 'data_source' must be a name, got None"),
        ({"data_source": 3}, "column 'data_source' must be a name, got 3"),
        ({"reward_model": "4"}, "column 'reward_model' must be an object with ground_truth, got '4'"),
        ({"reward_model": {"style": "rule"}}, "column 'reward_model' must be an object with ground_truth"),
        ({"extra_info": [1]}, "column 'extra_info' must be an object"),
        ({"tools": {"a": 1}}, "column 'tools' must be a list of JSON schemas"),
    ],
)
def test_wrong_types_name_file_column_and_row(
    tmp_path: Path, row: MakeRow, columns: dict[str, Any], message: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(map(json.dumps, [row(0), {**row(1), **columns}])))
    with pytest.raises(InvalidInputError) as raised:
        list(Dataset([path]).rows())
    assert f"{path}, row 1 (from 0): {message}" in str(raised.value)


def test_missing_columns_name_what_there_is(tmp_path: Path, row: MakeRow) -> None:
    without = row(0)
    without["prompts"] = without.pop("prompt")
    path = parquet(tmp_path / "a.parquet", [without])
    with pytest.raises(InvalidInputError, match=r"no column 'prompt'.*data\.prompt_key.*did you mean 'prompts'"):
        Dataset([path])
    assert len(Dataset([path], prompt_key="prompts")) == 1
    with pytest.raises(InvalidInputError, match=r"no column 'source'.*data\.reward_fn_key"):
        Dataset([path], prompt_key="prompts", reward_fn_key="source")
    lacking = row(0)
    del lacking["reward_model"]
    with pytest.raises(InvalidInputError, match=r"no column 'reward_model' \(an object with style and ground_truth\)"):
        Dataset([parquet(tmp_path / "b.parquet", [lacking])])


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.json"])
def test_empty_and_broken_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"")
    with pytest.raises(InvalidInputError, match=r"is empty \(0 bytes\)"):
        Dataset([path])
    path.write_bytes(b"\xff\xfe not that kind")
    with pytest.raises(InvalidInputError, match=r"a\.(parquet|jsonl?)"):
        list(Dataset([path]).rows())


def test_no_rows_at_all(tmp_path: Path, row: MakeRow) -> None:
    path = parquet(tmp_path / "a.parquet", [], pa.Table.from_pylist([row(0)]).schema)
    with pytest.raises(InvalidInputError, match=r"data\.train_files: .*a\.parquet has 0 rows"):
        Dataset([path], name="data.train_files")
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(InvalidInputError, match="has 0 rows"):
        Dataset([tmp_path / "a.json"])


def test_a_truncated_parquet_file(tmp_path: Path, row: MakeRow) -> None:
    path = parquet(tmp_path / "a.parquet", [row(index) for index in range(100)])
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InvalidInputError, match="can't be read as Parquet"):
        Dataset([path])


def test_a_broken_json_line_is_named(tmp_path: Path, row: MakeRow) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row(0)) + "\n\n{broken\n")
    with pytest.raises(InvalidInputError, match=r"a\.jsonl, line 3: not valid JSON"):
        list(Dataset([path]).rows())
    path.write_text("3\n")
    with pytest.raises(InvalidInputError, match=r"line 1: expected one JSON object per row, got int"):
        list(Dataset([path]).rows())


def test_only_newlines_end_json_lines(tmp_path: Path, row: MakeRow) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(row(i, content="a\u2028b"), ensure_ascii=False) for i in range(2)))
    assert [one.messages[0]["content"] for one in Dataset([path]).rows()] == ["a\u2028b"] * 2


def test_ground_truth_and_extra_info_are_json_values(tmp_path: Path, row: MakeRow) -> None:
    rows = [
        row(
            0,
            reward_model={"style": "rule", "ground_truth": {"target": ["a", "b"]}},
            extra_info={"day": datetime.date(2026, 1, 2), "price": decimal.Decimal("1.50"), "answer": None},
        )
    ]
    loaded = Dataset([parquet(tmp_path / "a.parquet", rows)])[0]
    assert loaded.ground_truth == {"target": ["a", "b"]}
    assert loaded.extra_info == {"day": "2026-01-02", "price": 1.5, "answer": None}
    with pytest.raises(InvalidInputError, match="holds a bytes, which JSON can't carry"):
        Dataset([parquet(tmp_path / "b.parquet", [row(0, extra_info={"raw": b"x"})])])[0]


def test_other_columns_are_not_read(tmp_path: Path, row: MakeRow) -> None:
    path = parquet(tmp_path / "a.parquet", [row(0, images=[b"x" * 100])])
    assert Dataset([path])[0].ground_truth == "0"
