"""``gputop probe``: real steps on a CPU for the mechanics, and what is kept where a GPU has
measured.
"""

from __future__ import annotations

import json

import pytest

from gputop import calibration
from gputop.api import answer
from gputop.cli import main
from gputop.cli.fit.probe_text import show
from gputop_analysis import catalog
from gputop_analysis.vram.options import setup_of

GIB = 1 << 30


pytestmark = pytest.mark.usefixtures("own_store")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    config = {
        "model_type": "llama",
        "hidden_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    }
    config |= {
        "num_key_value_heads": 4,
        "intermediate_size": 256,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_real_steps_agree_with_the_estimate_where_a_cpu_can_tell(small, capsys):
    words = [
        "--model",
        str(small),
        "--seq",
        "64",
        "--micro-batch",
        "2",
        "--dtype",
        "fp32",
        "--device",
        "cpu",
        "--json",
    ]
    assert main(["probe", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["what"]: row for row in found["compared"]}
    parameters = 2 * 1000 * 128 + 3 * (4 * 128 * 128 + 3 * 128 * 256 + 2 * 128) + 128
    assert rows["weights"]["measured_gib"] * GIB == pytest.approx(4 * parameters, abs=256), (
        "and two small buffers"
    )
    assert rows["gradients"]["measured_gib"] * GIB == pytest.approx(4 * parameters)
    assert rows["optimizer"]["measured_gib"] * GIB == pytest.approx(8 * parameters, rel=1e-3)
    for name in ("weights", "gradients", "optimizer"):
        assert rows[name]["difference_pct"] == pytest.approx(0, abs=0.01)
    assert rows["activations"]["measured_gib"] > 0
    assert rows["peak allocated"]["measured_gib"] is None and found["stored"]
    (stored,) = calibration.recall()
    assert stored["kind"] == "full lasting" and stored["ratio"] == pytest.approx(1, abs=1e-4)


def test_a_cpu_corrects_what_lasts_and_a_gpu_everything():
    plain = answer(setup_of(catalog.model("gpt2"), {"seq": 512}), "formula", advice=False)
    lasting = sum(
        plain.peak.breakdown.get(name, 0) for name in ("weights", "gradients", "optimizer")
    )
    known = {"model": "gpt2", "tier": "formula"}
    calibration.remember({**known, "kind": "full lasting", "ratio": 1.1, "run": "probe on a CPU"})
    by_cpu = answer(plain.setup, "formula", advice=False)
    assert by_cpu.peak.allocated - plain.peak.allocated == pytest.approx(0.1 * lasting, abs=2)
    assert sum(by_cpu.peak.breakdown.values()) == by_cpu.peak.allocated
    assert "a probe on a CPU" in by_cpu.notes[-1] and "+10.0 % in weights" in by_cpu.notes[-1]
    calibration.remember({**known, "kind": "full", "ratio": 0.9, "run": "probe on NVIDIA H100"})
    by_gpu = answer(plain.setup, "formula", advice=False)
    assert by_gpu.peak.allocated == pytest.approx(0.9 * plain.peak.allocated, abs=2)


def test_any_module_is_probed_by_its_factory(tmp_path, monkeypatch, capsys):
    code = (
        "from torch import nn\n\ndef make():\n    return nn.Sequential(nn.Embedding(50, 8), "
        "nn.Linear(8, 4))\n"
    )
    (tmp_path / "tiny_factory.py").write_text(
        code + "\n\ndef batch(rows, seq):\n    import torch\n    return torch.zeros(rows, seq, "
        "dtype=torch.long)\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    assert (
        main(
            [
                "probe",
                "tiny_factory:make",
                "--seq",
                "4",
                "--dtype",
                "fp32",
                "--device",
                "cpu",
                "--json",
            ]
        )
        == 0
    )
    rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)["compared"]}
    assert rows["gradients"]["measured_gib"] * GIB == 4 * (50 * 8 + 8 * 4 + 4)
    assert rows["weights"]["difference_pct"] == 0 and rows["optimizer"][
        "difference_pct"
    ] == pytest.approx(0, abs=1)
    assert rows["activations"]["difference_pct"] == pytest.approx(0, abs=20)


def test_a_script_is_probed_and_later_estimates_of_it_start_from_that(tmp_path, capfd):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nprint('of the script')\nm = torch.nn.Linear(64, 32)\no = "
        "torch.optim.SGD(m.parameters(), 0.1)\nfor _ in range(60):\n    m(torch.ones(4, "
        "64)).sum().backward()\n    o.step()\n    o.zero_grad()\n",
        encoding="utf-8",
    )
    assert main(["probe", str(script), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    rows = {row["what"]: row for row in found["compared"]}
    assert (
        rows["weights"]["measured_gib"] * GIB == 4 * (64 * 32 + 32)
        and rows["weights"]["difference_pct"] == 0
    )
    assert found["tier"] == "trace" and found["device"] == "cpu" and found["stored"]
    assert main(["estimate", str(script), "--json"]) == 0
    assert any(
        "calibrated by a probe on a CPU" in note
        for note in json.loads(capfd.readouterr().out)["notes"]
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "gpt2", "--dp", "8"], "one GPU"),
        (["--model", "gpt2", "--device", "cuda"], "sees no GPU"),
        ([], "say what to probe"),
        (["--model", "gpt2", "--steps", "1"], "from 3 on"),
        ([__file__, "--lora"], "leave --lora-rank out"),
        (["none.py"], "no file none.py"),
    ],
)
def test_what_cannot_be_probed_is_one_line(capsys, words, said):
    assert main(["probe", *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and not captured.out and "Traceback" not in captured.err


def test_what_a_gpu_measured_is_compared_by_category_and_kept(capsys):
    estimate = answer(
        setup_of(catalog.model("gpt2"), {"seq": 512}), "formula", calibrate=False, advice=False
    )
    peak = estimate.peak
    seen = {
        "device": "cuda",
        "gpu": "NVIDIA H100",
        "weights_bytes": peak.breakdown["weights"],
        "peak_allocated_bytes": round(1.1 * peak.allocated),
        "peak_reserved_bytes": round(1.2 * peak.reserved),
        "phases_bytes": {"optimizer": 2 * peak.phases["optimizer"]},
    }
    show(estimate, None, seen, True)
    rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)["compared"]}
    assert rows["weights"]["difference_pct"] == pytest.approx(0)
    assert rows["peak allocated"]["difference_pct"] == pytest.approx(10, abs=0.01)
    assert rows["peak in optimizer"]["difference_pct"] == pytest.approx(100)
    assert (
        rows["activations"]["measured_gib"] is None
        and rows["activations"]["difference_pct"] is None
    )
    (stored,) = calibration.recall("gpt2")
    assert stored["ratio"] == pytest.approx(1.1, rel=1e-4) and "H100" in stored["run"]
