"""Rows of published measurements: free text, setups, and how estimates are scored against them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vram_cases import Case, notes, read, score, table, text
from vram_cases.score import Answer

from gputop_analysis import catalog
from gputop_analysis.vram.setup import Lora, Setup

BENCH = Path(__file__).parents[2] / "bench/vram_accuracy.py"
ROW = {
    "case_id": "1",
    "source": "a report",
    "model": "Llama-3-8B",
    "seq": "4096",
    "micro_batch": "2",
    "gpus": "1",
    "gpu_model": "A100-80GB",
    "dtype": "bf16",
    "optimizer": "AdamW",
    "sharding": "none",
    "act_ckpt": "full",
    "flash": "flash-attn2",
    "measured_peak_GiB": "30.5",
    "mem_metric": "allocated",
    "framework": "transformers",
}


def row(**cells: str) -> Case:
    return read({**ROW, **cells}, "file")


def setup(**cells: str) -> Setup:
    found = row(**cells)
    assert found.setup is not None, found.reason
    return found.setup


@pytest.mark.parametrize(
    ("written", "compute", "stored", "on"),
    [
        ("bf16", "bf16", None, False),
        ("bf16-mixed", "bf16", "fp32", True),
        ("16-true", None, None, False),
        ("bf16-true", "bf16", "bf16", False),
        ("fp16 AMP", "fp16", "fp32", True),
        ("torch_dtype=float16 bf16=None fp16=True (flags: autocast)", "fp16", "fp16", True),
        ("torch_dtype=bfloat16 bf16=nan fp16=nan (flags: autocast)", "bf16", "bf16", False),
        ("float8 e4m3", "fp8", None, False),
        ("tf32", "fp32", None, False),
        ("", None, None, False),
    ],
)
def test_dtypes(written: str, compute: str | None, stored: str | None, on: bool) -> None:
    assert (text.compute_dtype(written), text.stored_dtype(written), text.autocast(written)) == (
        compute,
        stored,
        on,
    )


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ("adamw_torch_fused", "adamw-fused"),
        ("PagedAdamW8bit", "adamw-paged-8bit"),
        ("bnb 8-bit AdamW", "adamw-8bit"),
        ('{"class_path": "torch.optim.AdamW"}', "adamw"),
        ("Adafactor", "adafactor"),
        ("SGD with momentum", "sgd-momentum"),
        ("Lion 8bit", "lion-8bit"),
        ("Muon", "muon"),
        ("see recipe", None),
    ],
)
def test_optimizers(written: str, read_as: str | None) -> None:
    assert text.optimizer(written) == read_as


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ("DeepSpeed ZeRO-3", "zero3"),
        ("deepspeed stage 2 + offload", "zero2"),
        ("ZeRO1", "zero1"),
        ("zero1(dist-opt)", "zero1"),
        ("FSDP FULL_SHARD", "fsdp1"),
        ("FULL_SHARD", "fsdp1"),
        ("FSDP SHARD_GRAD_OP", "zero2"),
        ("fsdp2 fully_shard", "fsdp2"),
        ("HSDP", "hsdp"),
        ("DDP", "ddp"),
        ("", "none"),
        ("device_map=auto", None),
    ],
)
def test_shardings(written: str, read_as: str | None) -> None:
    assert text.sharding(written) == read_as


@pytest.mark.parametrize(
    ("written", "gpus", "read_as"),
    [
        ("none on 1 GPU; with FSDP act ckpt", 1, "none"),
        ("none on 1 GPU; with FSDP act ckpt", 4, "full"),
        ("selective:[a, b]", 1, "selective"),
        ("full:uniform:1", 8, "full"),
        ("gradient_checkpointing=True", 1, "full"),
        ("off", 1, "none"),
        ("whatever", 1, None),
    ],
)
def test_checkpointing(written: str, gpus: int, read_as: str | None) -> None:
    assert text.checkpointing(written, gpus) == read_as


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ("max_memory_allocated", "allocated"),
        ("peak active (torchtune)", "allocated"),
        ("torch.cuda.max_memory_reserved", "reserved"),
        ("nvidia-smi", "device"),
        ("peak memory", None),
    ],
)
def test_metrics(written: str, read_as: str | None) -> None:
    assert text.metric(written) == read_as


def test_a_row_is_a_setup() -> None:
    found = setup()
    assert (found.model.name, found.seq, found.micro_batch) == ("llama-3-8b", 4096, 2)
    assert (found.checkpointing, found.attention, found.optimizer) == ("full", "flash", "adamw")
    assert row().metric == "allocated" and row().oom is False


def test_dimensions_stand_in_for_an_unknown_model() -> None:
    cells = {
        "hidden": "2048",
        "layers": "24",
        "heads": "16",
        "ffn": "8192",
        "vocab": "50304",
        "params": "1311000000",
    }
    shape = setup(model="our own", **cells).model
    assert (shape.gated_mlp, shape.tied_embeddings) == (False, True)


def test_dimensions_overrule_a_name_that_they_contradict() -> None:
    assert (
        setup(hidden="1024", layers="4", heads="8", ffn="2816", vocab="32000").model.hidden == 1024
    )


def test_accelerate_raises_what_it_shards_under_mixed_precision() -> None:
    mixed = {"dtype": "torch_dtype=bfloat16 bf16=True", "gpus": "2", "sharding": "FSDP"}
    assert setup(**mixed).weights == "fp32"
    assert setup(**mixed, framework="torchtune").weights == "bf16"


def test_lora_as_the_notes_have_it() -> None:
    found = setup(
        lora_rank="16",
        notes='{"target_modules": ["q_proj", "up_proj"], "peft_type": "LORA"}',
        quant="nf4",
    )
    assert found.lora == Lora(16, ("q_proj", "up_proj"), "fp32", 0.05) and found.quantized == "nf4"
    assert notes.lora_targets("lora={'lora_query': True, 'lora_mlp': True}", {}) == (
        "q_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"seq": ""}, "seq is not said"),
        ({"mem_metric": "peak"}, "which memory"),
        ({"measured_peak_GiB": ""}, "nothing was measured"),
        ({"model": "", "hidden": ""}, "not in the catalog"),
        ({"sharding": "device_map"}, "sharding of a kind"),
        ({"sharding": "FSDP1?", "gpus": "4"}, "sharding is a guess"),
        ({"optimizer": "see recipe"}, "optimizer of a kind"),
        ({"quant": "nf4"}, "without LoRA"),
        ({"notes": '{"peft_type": "IA3"}'}, "not modelled: IA3"),
        ({"notes": "trainable=1000"}, "few parameters"),
        ({"notes": "alpaca, not packed"}, "not packed"),
    ],
)
def test_what_cannot_be_estimated_says_why(cells: dict[str, str], reason: str) -> None:
    assert reason in row(**cells).reason


def test_megatron_arguments_describe_the_model() -> None:
    args = {
        "swiglu": True,
        "normalization": "RMSNorm",
        "num-experts": 8,
        "moe-router-topk": 2,
        "sequence-parallel": True,
    }
    cells = {
        "model": "",
        "hidden": "1024",
        "layers": "8",
        "heads": "16",
        "ffn": "4096",
        "tp": "2",
        "pp": "2",
        "gpus": "8",
        "ep": "2",
        "vp": "layers/vstage=2",
        "sharding": "zero1(dist-opt)",
        "framework": "Megatron-LM",
        "mem_metric": "allocated, of the last rank",
        "notes": json.dumps({"test": "gpt/a", "gbs": 16, "args": args}),
    }
    found = row(**cells)
    assert found.setup is not None, found.reason
    shape, parallel = found.setup.model, found.setup.parallel
    assert (shape.vocab, shape.experts, shape.top_k, shape.gated_mlp) == (50432, 8, 2, True)
    assert (parallel.dp, parallel.vpp, parallel.pipeline_stage, parallel.sequence_parallel) == (
        2,
        2,
        1,
        True,
    )
    assert found.setup.accumulation == 4 and found.run == "gpt/a"


def answered(error_pct: float, run: str, oom: bool = False, fits: bool | None = None) -> Answer:
    measured = None if oom else 100.0
    case = Case("1", "here", run, setup(), "allocated", measured, oom)
    return Answer(case, "formula", 100 * (1 + error_pct / 100), fits)


def test_rows_of_one_run_count_once() -> None:
    found = score.runs([answered(10, "a"), answered(10, "a"), answered(-20, "b")])
    assert score.errors(found) == {
        "runs": 2,
        "rows": 3,
        "median_abs_error_pct": 15.0,
        "p90_abs_error_pct": 19.0,
        "bias_pct": -5.0,
    }


def test_what_fits_is_judged_by_outcome() -> None:
    answers = [
        answered(0, "a", oom=True, fits=False),
        answered(0, "b", oom=True, fits=True),
        answered(0, "c", fits=True),
        answered(0, "d", fits=False),
        answered(0, "e"),
    ]
    assert score.fits(answers) == {
        "runs": 4,
        "oom": 2,
        "oom_recall": 0.5,
        "oom_precision": 0.5,
        "fits_recall": 0.5,
        "fits_precision": 0.5,
    }


def test_intervals_are_of_the_estimate() -> None:
    """An estimate 50 % too high may be a third too high of itself."""
    table = score.interval_table(score.runs([answered(50, "a"), answered(50, "b")]))
    assert table["formula"]["all"] == (-33.3, -33.3, 2)


def test_intervals_are_of_what_a_gpu_must_have_where_enough_runs_measured_that() -> None:
    allocated = score.runs([answered(0, name) for name in "abcdefgh"])
    device = [replace(run, metric="device", error_pct=-20.0) for run in allocated]
    few, many = (score.interval_table(allocated + device[:count]) for count in (4, 5))
    assert few["formula"]["all"][2] == 12
    assert many["formula"]["all"] == (25.0, 25.0, 5)


def test_a_run_below_what_it_holds_for_good_is_no_measure_of_the_interval() -> None:
    """Llama 3 8B in bf16 with AdamW holds 60 GiB of weights, gradients and states."""
    plain = Setup(model=catalog.model("llama-3-8b"))
    cases = [
        Case(str(gib), "here", str(gib), plain, "allocated", gib, False) for gib in (58.0, 62.0)
    ]
    found = score.runs([Answer(case, "formula", 70.0) for case in cases])
    assert [run.contradicts for run in found] == [True, False]
    assert score.interval_table(found)["formula"]["all"] == (-11.4, -11.4, 1)
    assert score.errors(found)["runs"] == 2
    assert score.interval_table(found[:1]) == {}


def test_the_bench_takes_any_file_with_the_columns(tmp_path: Path) -> None:
    names = [*ROW, "unheard_of", "oom"]
    rows = [",".join(names)]
    rows.append(",".join({**ROW, "unheard_of": "x", "oom": ""}.values()))
    rows.append(
        ",".join(
            {
                **ROW,
                "micro_batch": "64",
                "measured_peak_GiB": "",
                "unheard_of": "",
                "oom": "1",
            }.values()
        )
    )
    (tmp_path / "new.csv").write_text("\n".join(rows))
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    command = [sys.executable, str(BENCH), str(tmp_path), "--json", "--tier", "formula"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["sources"]["new"]["rows_used"] == 2 and "other.csv" in done.stderr
    assert found["overall"]["fits"]["oom_recall"] == 1.0
    assert found["overall"]["errors"]["runs"] == 1


def test_the_bench_refuses_a_folder_without_cases(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH), str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 2 and "no CSV file" in done.stderr


@pytest.mark.parametrize(
    ("cell", "metric", "expected"),
    [
        ("60", "allocated", 60.0),
        ("61,440 MiB", "reserved", 60.0),
        ("61440", "max_memory_reserved (MiB)", 60.0),
        ("61440", "nvidia-smi, MB", 60.0),
        ("64424509440 bytes", "allocated", 60.0),
        ("64424509440", "allocated in bytes", 60.0),
        ("61440MB", "allocated GiB", 60.0),
        ("60", "allocated_bytes.all.peak", 60.0),
        *(
            (bad, "allocated", None)
            for bad in ("", "nan", "inf", "-5", "0", "OOM", "61200", "6.1.2", "1e400")
        ),
    ],
)
def test_amounts_of_memory_in_any_unit(cell, metric, expected):
    assert table.gib(cell, metric) == expected


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_table_of_others(separator):
    lines = ["\ufeffModel,Micro Batch,Measured_Peak_MiB,OOM\n", "\n", '"a",2,61440,no\n', "b\n"]
    found = table.rows(line.replace(",", separator) for line in lines)
    assert found is not None
    first, second = found
    assert (first["model"], first["micro_batch"], table.gib(first[table.MEASURED], "")) == (
        "a",
        "2",
        60.0,
    )
    assert second == {"model": "b"}


def test_a_table_of_something_else():
    assert table.rows(["a,b\n", "1,2\n"]) is None
    assert table.rows([]) is None
    assert table.rows(["\0\ufffd\n"]) is None


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from([*ROW, "other"]), st.text(max_size=20)))
def test_no_cell_raises(cells):
    case = read(cells, "any")
    assert (case.setup is None) == bool(case.reason)


def test_trl_casts_what_is_not_quantised():
    def weights(**cells):
        return setup(quant="bnb-nf4", lora_rank="16", **cells).weights

    assert weights(framework="HF Trainer/TRL SFT") == "fp32"
    assert weights(framework="transformers") == weights(
        framework="TRL", notes="framework_config=accelerated-peft-bnb"
    )
    assert weights(framework="TRL", sharding="FSDP", gpus="4") == "bf16"
