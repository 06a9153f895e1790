"""``gputop probe``: real steps on a CPU for the mechanics, and what is kept where a GPU has measured."""

from __future__ import annotations

import json

import pytest

from gputop import calibration
from gputop.api import answer
from gputop.cli import main
from gputop.cli.probe import _keep, comparison
from gputop_analysis import catalog
from gputop_analysis.vram.options import setup_of

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _own_store(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    config = {"model_type": "llama", "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 4, "intermediate_size": 256, "vocab_size": 1000, "max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_real_steps_agree_with_the_estimate_where_a_cpu_can_tell(small, capsys):
    words = ["--model", str(small), "--seq", "64", "--micro-batch", "2", "--dtype", "fp32", "--device", "cpu", "--json"]
    assert main(["probe", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["what"]: row for row in found["compared"]}
    parameters = 2 * 1000 * 128 + 3 * (4 * 128 * 128 + 3 * 128 * 256 + 2 * 128) + 128
    assert rows["weights"]["measured_gib"] * GIB == pytest.approx(4 * parameters)
    assert rows["gradients"]["measured_gib"] * GIB == pytest.approx(4 * parameters)
    assert rows["optimizer"]["measured_gib"] * GIB == pytest.approx(8 * parameters, rel=1e-3)
    assert rows["weights"]["difference_pct"] == pytest.approx(0, abs=1)
    assert rows["activations"]["measured_gib"] > 0
    assert rows["peak allocated"]["measured_gib"] is None and not found["stored"] and calibration.recall() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "gpt2", "--dp", "8"], "one GPU"),
        (["--model", "gpt2", "--device", "cuda"], "sees no GPU"),
        ([], "say what to probe"),
        (["none.py"], "no file none.py"),
    ],
)
def test_what_cannot_be_probed_is_one_line(capsys, words, said):
    assert main(["probe", *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and not captured.out and "Traceback" not in captured.err


def test_what_a_gpu_measured_is_compared_by_category_and_kept():
    estimate = answer(setup_of(catalog.model("gpt2"), {"seq": 512}), "formula", calibrate=False, advice=False)
    peak = estimate.peak
    seen = {
        "device": "cuda",
        "gpu": "NVIDIA H100",
        "weights_bytes": peak.breakdown["weights"],
        "peak_allocated_bytes": round(1.1 * peak.allocated),
        "peak_reserved_bytes": round(1.2 * peak.reserved),
        "phases_bytes": {"optimizer": 2 * peak.phases["optimizer"]},
    }
    rows = {row["what"]: row for row in comparison(estimate, seen)["compared"]}
    assert rows["weights"]["difference_pct"] == pytest.approx(0)
    assert rows["peak allocated"]["difference_pct"] == pytest.approx(10, abs=0.01)
    assert rows["peak in optimizer"]["difference_pct"] == pytest.approx(100)
    assert rows["activations"]["measured_gib"] is None and rows["activations"]["difference_pct"] is None
    _keep(estimate, seen)
    (stored,) = calibration.recall("gpt2")
    assert stored["ratio"] == pytest.approx(1.1, rel=1e-4) and "H100" in stored["run"]
