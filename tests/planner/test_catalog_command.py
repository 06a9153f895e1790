"""`gputop catalog` and `gputop models`: sorted, filtered, compared, and with the user's
own prices.
"""

import json

import pytest

from gputop.cli import main
from gputop_analysis.catalog import gpus
from gputop_analysis.catalog.listing import SORTS, chosen, listed
from gputop_analysis.catalog.own_prices import parse


@pytest.fixture(autouse=True)
def own_data(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def run(capsys, *words):
    code = main(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("sort", SORTS)
def test_each_order_is_kept_and_loses_nothing(sort):
    rows = chosen(listed(), sort)
    keys = [SORTS[sort](row) for row in rows]
    assert keys == sorted(keys) and {row.spec.name for row in rows} == {
        spec.name for spec in gpus()
    }


def test_filters():
    rows = chosen(listed(), vendor="amd", min_memory_gb=100)
    assert rows and all(row.spec.vendor == "AMD" and row.spec.usable_gib >= 100 for row in rows)
    assert {row.spec.name for row in chosen(listed(), words="h100 nvl")} == {"H100-NVL-94GB"}
    with pytest.raises(ValueError, match="no order 'size'"):
        chosen(listed(), "size")


def test_list_and_show(capsys):
    code, out, _ = run(capsys, "catalog", "list", "--sort", "vram", "--vendor", "nvidia", "--json")
    rows = json.loads(out)
    assert code == 0 and rows[0]["usable_gib"] == max(row["usable_gib"] for row in rows)
    assert all(row["source"] for row in rows)
    code, out, _ = run(capsys, "catalog", "show", "h100", "rtx 4090")
    assert (
        code == 0 and "H100-SXM5-80GB" in out and "GeForce RTX 4090" in out and "989 TFLOP/s" in out
    )
    code, out, err = run(capsys, "catalog", "show", "H1000")
    assert (code, out) == (2, "") and "nearest names are H100" in err
    code, out, err = run(capsys, "catalog", "no such thing")
    assert (code, out) == (2, "") and "no GPU with 'no such thing' in its name" in err
    assert run(capsys, "catalog", "h100")[1] == run(capsys, "catalog", "list", "h100")[1]


def test_own_prices_come_first(capsys, tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("gpu,usd_per_hour,gpu_count,provider\nH100,16,8,ours\nA100,1.5,,ours\n")
    code, _, err = run(capsys, "catalog", "import", str(file))
    assert code == 0 and "2 prices of 2 GPUs" in err
    rows = {row["name"]: row for row in json.loads(run(capsys, "catalog", "list", "--json")[1])}
    assert rows["H100-SXM5-80GB"]["usd_per_hour"] == 2.0
    assert json.loads(run(capsys, "catalog", "prices", "H100", "--json")[1])[0]["provider"] != ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "needs the columns gpu"),
        ("gpu,usd_per_hour\nH1000,2\n", "line 2: no GPU 'H1000'"),
        ("gpu,usd_per_hour\nH100,two\n", "line 2: 'two' is no number"),
        ("gpu,usd_per_hour\nH100,-2\n", "line 2: -2 is no price"),
        ("gpu,usd_per_hour\nH100,\n", "line 2: no price"),
        ("gpu,usd_per_hour\n", "no price in it"),
    ],
)
def test_bad_prices_are_refused_in_words(text, said):
    with pytest.raises(ValueError, match=said):
        parse(text)


def test_models(capsys):
    code, out, _ = run(capsys, "models", "meta-llama/Meta-Llama-3-8B", "--json")
    one = json.loads(out)
    assert (
        code == 0 and one["params"] == 8030261248 and one["hf_id"] == "meta-llama/Meta-Llama-3-8B"
    )
    assert len(json.loads(run(capsys, "models", "--json")[1])) >= 142
    assert "8.03 B" in run(capsys, "models", "llama3-8b")[1]
    code, out, err = run(capsys, "models", "xyzzy")
    assert (code, out) == (2, "") and "nearest names" in err
