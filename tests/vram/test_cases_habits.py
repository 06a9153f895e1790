"""What frameworks do by default, what libraries did when a run was made, and tables as anyone may
write them.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from vram_cases import read, table, text, versions

from gputop_analysis.vram.setup import Setup

BENCH = Path(__file__).parents[2] / "bench"
ROW = {
    "model": "meta-llama/Llama-3.1-8B",
    "seq": "8192",
    "micro_batch": "1",
    "gpus": "8",
    "gpu_model": "H100-80GB",
    "sharding": "FSDP",
    "measured_peak_GiB": "50",
    "mem_metric": "max reserved",
}


def setup(**cells: str) -> Setup:
    found = read({**ROW, **cells}, "a test")
    assert found.setup is not None, found.reason
    return found.setup


def test_torchtitan() -> None:
    eager, compiled = (
        setup(framework="torchtitan", compile=compile) for compile in ("", "torch.compile")
    )
    assert (eager.weights, eager.parallel.sharding, eager.kernels, compiled.kernels) == (
        "fp32",
        "fsdp2",
        False,
        True,
    )
    assert "expandable_segments:True" in eager.allocator
    assert not setup(
        framework="torchtitan", compile="torch.compile", framework_version="2025-01"
    ).kernels


@pytest.mark.parametrize(
    ("name", "checkpointing", "offloads"),
    [
        ("LLaMA-Factory 0.9", "full", False),
        ("Unsloth", "full", True),
        ("nanotron", "none", False),
        ("NeMo AutoModel", "none", False),
        ("transformers", "none", False),
    ],
)
def test_what_is_recomputed_where_a_row_says_nothing(
    name: str, checkpointing: str, offloads: bool
) -> None:
    found = setup(framework=name)
    assert (found.checkpointing, found.offload_activations) == (checkpointing, offloads)
    assert setup(framework=name, act_ckpt="none").checkpointing == "none"


@pytest.mark.parametrize(
    ("written", "month"),
    [
        ("torch 2.6.0.dev20241112", (2024, 11)),
        ("measured 2025/02/20 on torch 2.4", (2025, 2)),
        ("PyTorch 2.8", (2025, 8)),
        ("torch 2.7.0a0", (2025, 2)),
        ("2.1", None),
        ("torch 9.9", None),
    ],
)
def test_when_a_run_was_made(written: str, month: tuple[int, int] | None) -> None:
    assert versions.made(written) == month


def test_before_pytorch_2() -> None:
    """Attention written out, one parameter updated after another, and gradients that stay."""
    old = setup(
        framework="transformers Trainer", framework_version="2022-01", gpus="1", sharding=""
    )
    new = setup(
        framework="transformers Trainer", framework_version="2025-01", gpus="1", sharding=""
    )
    assert (old.attention, old.optimizer, old.accumulation) == ("eager", "adamw-loop", 2)
    assert (new.attention, new.optimizer, new.accumulation) == ("sdpa", "adamw", 1)


@pytest.mark.parametrize(
    ("said", "measured", "failed"),
    [
        ("no", "50", False),
        ("OOM", "", True),
        ("", "OOM", True),
        ("", "50", None),
        ("", "", None),
        ("CUDA OOM", "", True),
        ("no OOM", "50", False),
        ("1", "", True),
    ],
)
def test_whether_a_run_failed(said: str, measured: str, failed: bool | None) -> None:
    assert text.failed(said, measured) == failed


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("r=16", 16),
        ("per device 4", 4),
        ("x8", 8),
        ("8x", 8),
        ("-1", None),
        ("fsdp2", None),
        ("4 of 8", 4),
        ("b 4, 8", None),
    ],
)
def test_numbers_among_words(written: str, number: int | None) -> None:
    assert text.count(written) == number


@pytest.mark.parametrize(
    ("written", "gib"), [("~42.5 GB", 42.5), ("17,5 GB", 17.5), ("1,024 MiB", 1.0), ("75%", None)]
)
def test_amounts_as_people_write_them(written: str, gib: float | None) -> None:
    assert table.gib(written, "") == gib


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("8xA100 80GB", 80),
        ("A100 (80GB)", 80),
        ("RTX3090-24GB", 24),
        ("2x RTX 4090", 24),
        ("A100", None),
        ("A10G-99GB", None),
    ],
)
def test_gpus_as_people_name_them(
    monkeypatch: pytest.MonkeyPatch, name: str, gib: int | None
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    from vram_accuracy import _capacity

    assert round((_capacity(name) or 0) / 2**30) in ((gib or 0) - 1, gib or 0)


def test_any_three_tables(tmp_path: Path) -> None:
    """Encodings, separators, line breaks in cells, spellings: each row is used, or the reason is
    there.
    """
    rows = [
        {
            **ROW,
            "optimizer": "8-bit AdamW",
            "sharding": "zero3",
            "notes": 'two\nlines, with "quotes"',
        },
        {
            **ROW,
            "model": "META-LLAMA/llama-3.1-8b",
            "dtype": "bfloat16",
            "mem_metric": "Peak VRAM usage",
        },
        {
            **ROW,
            "model": "ours",
            "hidden": "4096",
            "layers": "32",
            "heads": "32",
            "vocab": "32,000",
            "ffn": "11008",
        },
        {**ROW, "model": "never heard of", "params": "7B"},
        {**ROW, "measured_peak_GiB": "93%"},
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name, separator, encoding in (
        ("a", ",", "utf-8-sig"),
        ("b", ";", "utf-16"),
        ("c", "\t", "utf-8"),
    ):
        with (tmp_path / f"{name}.csv").open("w", encoding=encoding, newline="") as file:
            writer = csv.DictWriter(file, names, delimiter=separator)
            writer.writeheader()
            writer.writerows(rows)
    command = [
        sys.executable,
        str(BENCH / "vram_accuracy.py"),
        str(tmp_path),
        "--json",
        "--tier",
        "formula",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    sources = json.loads(done.stdout)["sources"]
    assert [sources[name]["rows_used"] for name in "abc"] == [3, 3, 3]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("lmsys/vicuna-13b-v1.5", "llama-2-13b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2.5-7b"),
        ("HuggingFaceH4/zephyr-7b-beta", "mistral-7b-v0.1"),
    ],
)
def test_models_by_what_they_were_tuned_from(written: str, name: str) -> None:
    assert setup(model=written).model.name == name


def test_a_name_may_say_that_the_weights_have_four_bits() -> None:
    found = setup(model="unsloth/llama-3-8b-bnb-4bit", lora_rank="16")
    assert (found.model.name, found.quantized) == ("llama-3-8b", "nf4")
    assert (
        setup(model="unsloth/llama-3-8b-bnb-4bit", lora_rank="16", quant="int8").quantized == "int8"
    )


def test_a_model_with_fewer_layers_or_another_vocabulary() -> None:
    shape, whole = setup(layers="4", vocab="1000").model, setup().model
    assert (shape.layers, shape.vocab, shape.ffn, shape.params) == (4, 1000, whole.ffn, 0)
    assert "not those of llama-3.1-8b" in read({**ROW, "hidden": "4097"}, "").reason
