"""`gputop plan`, `scan`, `pareto` and `launch`: answers that add up, and questions that are refused
in words.
"""

import json
from types import SimpleNamespace

import pytest
from tui_support import START_NS, write_run

from gputop.cli import main
from gputop.cli.split.plan_text import corrected as said_of
from gputop_analysis.catalog import gpu, model
from gputop_analysis.parallelism.split import Split
from gputop_analysis.planner.choices import PARTS, Choice
from gputop_analysis.planner.hardware import cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.measured import MeasuredRun, from_csv, from_run, predicted
from gputop_analysis.planner.questions import Wanted, best, counts_up_to, fewest, within
from gputop_analysis.vram.setup import Setup

ASKED = (
    "--model",
    "llama3-8b",
    "--gpu",
    "H100",
    "--gpus",
    "16",
    "--global-batch",
    "256",
    "--seq",
    "4096",
)


pytestmark = pytest.mark.usefixtures("nothing_of_the_user")


def run(capsys, *words):
    code = main(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_plan_comes_apart_and_adds_up(capsys):
    code, out, _ = run(capsys, "plan", *ASKED, "--json")
    plan = json.loads(out)
    assert code == 0 and plan["fitting"] <= plan["configurations"] and plan["strategies"]
    others = [one["step_time_s"] for one in plan["strategies"][1:] if not one["tight"]]
    assert others == sorted(others)  # the first may be a little slower: its model is split less
    for one in plan["strategies"]:
        assert sum(one["parts_s"].values()) == pytest.approx(one["step_time_s"]) and set(
            one["parts_s"]
        ) == set(PARTS)
        assert one["tp"] * one["pp"] * one["cp"] * one["dp"] == 16 and one["headroom_gib"] >= 0
        assert one["micro_batch"] * one["accumulation"] * one["dp"] == 256
        low, high = one["step_time_interval_s"]
        assert low < one["step_time_s"] < high and one["why"]
        rent = plan["usd_per_gpu_hour"] * 16 / 3600 / one["tokens_per_s"] * 1e6
        assert one["usd_per_million_tokens"] == pytest.approx(rent)
    assert plan["pick"]["step_time_s"] <= 1.1 * min(others) and plan["calibration"] is None
    assert all(one["why_not"] for one in plan["strategies"] if one["name"] != plan["pick"]["name"])
    front = plan["pareto"]
    assert [one["step_time_s"] for one in front] == sorted(one["step_time_s"] for one in front)
    assert [one["allocated_gib"] for one in front] == sorted(
        (one["allocated_gib"] for one in front), reverse=True
    )


def test_what_is_pinned_stays(capsys):
    plan = json.loads(
        run(capsys, "plan", *ASKED, "--tp", "4", "--zero", "1", "--recompute", "full", "--json")[1]
    )
    assert {(one["tp"], one["zero"], one["recompute"]) for one in plan["strategies"]} == {
        (4, 1, "full")
    }


def test_the_text_is_for_people(capsys):
    code, out, _ = run(capsys, "plan", *ASKED, "--tokens", "1e12")
    assert (
        code == 0
        and "tokens/s" in out
        and "not " in out
        and "/h a GPU" in out
        and "1T tokens take" in out
    )
    text = " ".join(out.split())
    assert " days and $" in text and "FSDP: weights" in text
    assert max(len(line) for line in out.splitlines()) <= 120


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "--gpu", "H100"), "what is trained?"),
        (("plan", "--model", "llama3-8b"), "on which GPU?"),
        (("plan", "--model", "xyzzy", "--gpu", "H100"), "xyzzy"),
        (("plan", "--model", "llama3-8b", "--gpu", "H1000"), "nearest names are H100"),
        (
            ("plan", "--model", "llama3-8b", "--gpu", "H100", "--gpus", "9", "--nodes", "2"),
            "do not divide over 2 nodes",
        ),
        (
            ("plan", *ASKED[:-4], "--global-batch", "3", "--tp", "1", "--pp", "1"),
            "no split of 16 GPUs keeps the rules",
        ),
        (("plan", "--model", "llama3-70b", "--gpu", "T4", "--gpus", "8"), "it would fit with"),
        (("plan", *ASKED, "--objective", "budget"), "needs --budget-hourly"),
        (("plan", *ASKED, "--objective", "budget", "--budget-hourly", "0.1"), "the budget is 0.10"),
        (("plan", *ASKED, "--calibrate", "none.csv"), "cannot read none.csv"),
        (
            ("launch", *ASKED, "--for", "accelerate", "--pp", "2"),
            "accelerate has no pipeline stages",
        ),
        (("scan", "--model", "llama3-8b", "--over", "H1000"), "nearest names"),
        (("plan", "--model", "llama3-8b", "--gpus", "2x"), "nearest names"),
        (("plan", "--model", "llama3-8b", "--gpus", "--"), "expected one argument"),
        (
            ("plan", "--model", "llama3-8b", "--gpu", "H100", "--gpus", "8xA100"),
            "both name a GPU",
        ),
        (
            ("plan", *ASKED, "--weights", "bf16", "--framework", "megatron"),
            "--weights bf16: megatron keeps an fp32 copy",
        ),
        (("plan", *ASKED, "--weights", "bf16", "--dtype", "fp32"), "products in fp32 need weights"),
        (("plan", *ASKED, "--weights", "bf16", "--lora"), "adapters are trained over weights"),
        (("plan", "--model", "llama-2-7b", "--gpu", "H100", "--gpus", "1"), "(--weights bf16)"),
    ],
)
def test_what_cannot_be_answered_is_one_line(capsys, words, said):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "") and said in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", *ASKED, "--optimizer", "adamx"), "there is adamw"),
        (("plan", *ASKED, "--tokens", "-5"), "is no number above 0"),
        (("plan", *ASKED, "--network", "foo"), "says no network"),
        (
            ("plan", *ASKED, "--objective", "memory", "--budget-hourly", "9"),
            "goes with --objective budget",
        ),
        (("plan", *ASKED[:6], "--workload", "inference-batch", "--tp", "2"), "--tp has no meaning"),
        (("scan", "--model", "llama3-8b", "--gpus", "8", "--price", "3"), "unrecognized"),
    ],
)
def test_what_would_be_ignored_is_refused(capsys, words, said):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "") and said in err


def test_gpus_are_named_in_one_word_as_for_fit(capsys):
    from gputop.cli.split.plan_options import gpus_word

    assert gpus_word("16") == 16 and gpus_word("16xH100") == "16xH100"
    words = ("plan", "--model", "llama3-8b", "--global-batch", "16", "--json")
    _, apart, _ = run(capsys, *words, "--gpu", "H100", "--gpus", "8")
    _, in_one, _ = run(capsys, *words, "--gpus", "8xH100")
    assert json.loads(apart)["pick"] == json.loads(in_one)["pick"]


LIMITED_DRIVER = SimpleNamespace(
    nvmlDeviceGetCount=lambda: 2,
    nvmlDeviceGetHandleByIndex=int,
    nvmlDeviceGetName=lambda _: b"NVIDIA H100 80GB HBM3",
    nvmlDeviceGetEnforcedPowerLimit=lambda device: (500_000, 700_000)[device],
)
"""NVML with H100s of which one was limited, mW."""


def test_a_power_limit_is_what_the_name_says_or_what_is_in_force_here(capsys, monkeypatch):
    from gputop.this_machine import lowered_limit_w
    from gputop_probes.samplers import nvml

    words = ("plan", "--model", "llama3-8b", "--global-batch", "16", "--json", "--tp", "1")
    _, full, _ = run(capsys, *words, "--gpu", "H100", "--gpus", "8")
    _, capped, _ = run(capsys, *words, "--gpu", "H100 500W", "--gpus", "8")
    monkeypatch.setattr(nvml, "_load", lambda: LIMITED_DRIVER)
    assert lowered_limit_w("H100-SXM5-80GB") == 500 and lowered_limit_w("A100-SXM4-80GB") == 0
    _, here, said = run(capsys, *words, "--gpu", "H100", "--gpus", "8")
    times = [json.loads(out)["pick"]["step_time_s"] for out in (full, capped, here)]
    assert times[0] < times[1] == times[2] and "limited to 500 W" in said


def test_a_scan_takes_the_gpus_that_it_is_given(capsys):
    found = json.loads(
        run(capsys, "scan", "--model", "llama3-8b", "--gpus", "8", "--gpu", "H200", "--json")[1]
    )
    assert [row["gpu"] for row in found] == ["H200-SXM-141GB"]


def test_the_file_of_the_fleet_is_read(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("GPUTOP_NO_CONFIG", "")  # put back afterwards: --no-config sets it
    (tmp_path / ".gputop.toml").write_text(
        '[fleet]\nhave = ["4xH100"]\nexplore = ["A100-80GB"]\n[budget]\nusd_per_hour = 20\n'
    )
    plan = json.loads(run(capsys, "plan", "--model", "llama3-8b", "--json")[1])
    assert (plan["gpu"], plan["gpus"]) == ("H100-SXM5-80GB", 4)
    rows = json.loads(run(capsys, "scan", "--model", "llama3-8b", "--json")[1])
    assert {row["gpu"] for row in rows} == {"H100-SXM5-80GB", "A100-SXM4-80GB"}
    assert main(["--no-config", "plan", "--model", "llama3-8b"]) == 2
    capsys.readouterr()


def test_objectives():
    job = Job(model("llama3-8b"), 4096, 256)
    wanted = Wanted("H100-SXM5-80GB", usd_per_gpu_hour=2.0)
    few = fewest(job, wanted, 64)
    assert few.cluster.gpus < 64
    with pytest.raises(ValueError):
        best(job, wanted, few.cluster.gpus // 2 or 0)
    cheap = within(job, wanted, 33.0, most=64)
    assert cheap.cluster.gpus * 2.0 <= 33.0
    assert counts_up_to(24, 8) == [1, 2, 4, 8, 16, 24]


def test_scaling_and_front(capsys):
    rows = json.loads(run(capsys, "pareto", *ASKED, "--scaling", "--json")[1])
    assert [row["gpus"] for row in rows] == sorted(row["gpus"] for row in rows) and rows[0][
        "efficiency"
    ] == 1
    assert "tokens/s" in run(capsys, "pareto", *ASKED)[1]


def test_a_launch_of_the_plan(capsys, tmp_path):
    code, out, err = run(
        capsys, "launch", *ASKED, "--for", "torchtitan", "--zero", "3", "--write", "out", "--slurm"
    )
    assert (
        code == 0 and out.startswith("sbatch train.sbatch") and "wrote out/torchtitan.toml" in err
    )
    assert (tmp_path / "out" / "train.sbatch").read_text().startswith("#!/bin/bash")
    data = json.loads(run(capsys, "launch", *ASKED, "--json", "--", "my.py", "--lr", "1e-4")[1])
    assert data["argv"][-3:] == ["my.py", "--lr", "1e-4"]


def test_measured_runs_correct_the_plan():
    setup = Setup(model("llama3-8b"), 4096, 1, 16, parallel=Split(dp=8, sharding="fsdp2"))
    told = float(predicted(setup, cluster("H100", 8)).seconds[0])
    slower = from_run(
        MeasuredRun(setup, "H100", 1.5 * told + 0.2, input_s=0.2, allocated_bytes=60 * 2**30)
    )
    corrected = float(slower.seconds(predicted(setup, cluster("H100", 8)))[0])
    assert told < corrected <= 1.5 * told
    assert (
        slower.input_s_per_sample == pytest.approx(0.2 / 16)
        and slower.memory_rows == 1 != slower.memory_factor
    )
    assert "corrected by 1 measured run; memory x" in said_of(slower)
    row = "llama-3-8b,H100,8,4096,128,1,1,1,8,"
    text = "model,gpu_model,gpus,seq,global_batch,micro_batch,tp,pp,dp,step_time_s\n" + "".join(
        f"{row}{told * factor}\n" for factor in (1.2, 1.25, 1.3)
    )
    assert from_csv(text).rows == 3 and from_csv(text).leave_one_out < 0.25
    assert from_csv(text.replace(",", ";")) == from_csv(text)
    assert "one left out is predicted" in said_of(from_csv(text))
    with pytest.raises(ValueError, match="nothing to calibrate by"):
        from_csv("model,gpus\nllama3-8b,8\n")
    assert gpu("H100").name == "H100-SXM5-80GB"


@pytest.fixture
def measured(tmp_path):
    """A run on one H100 that tells its model."""
    folder = write_run(tmp_path / "run", ranks=1, gpus=1, steps=120)
    shape = {
        "hidden_size": 2048,
        "layers": 16,
        "heads": 32,
        "kv_heads": 8,
        "vocab_size": 128256,
        "ffn_size": 8192,
    }
    more = {"type": "hello_update", "rank": 0, "host": "box", "t_ns": START_NS + 2 * 10**9}
    more |= {
        "model": {"class": "LlamaForCausalLM", "by_dtype": {"bfloat16": 10**9}, "config": shape}
    }
    more |= {"batch": {"shapes": {"input_ids": [1, 512]}}}
    with next((folder / "hosts").rglob("events.jsonl")).open("a") as file:
        file.write(json.dumps(more) + "\n")
    return str(folder)


def test_a_measured_run_is_where_its_plan_starts(capsys, measured):
    code, out, _ = run(capsys, "plan", "--run", measured, "--what-if", "--json")
    plan = json.loads(out)
    assert (code, plan["gpu"], plan["gpus"], plan["seq"]) == (0, "H100-SXM5-80GB", 1, 512)
    now = plan["against_run"]
    assert (
        now["measured_step_time_s"] == pytest.approx(0.016, rel=0.05)
        and plan["calibration"]["runs"] == 1
    )
    low, high = now["pick_speedup_interval"]
    assert low < now["pick_speedup"] < high
    low, high = plan["pick"]["step_time_interval_s"]
    assert (high - low) / plan["pick"]["step_time_s"] < 0.2
    for one in plan["what_if_of_run"]:
        told, changed = one["step_time_s"], one["step_time_change_pct"]
        assert told is None or told == pytest.approx(
            now["measured_step_time_s"] * (1 + changed / 100)
        )
    code, out, _ = run(capsys, "plan", "--run", measured, "--what-if")
    assert "of now" in out and "as measured" in out
    assert (
        "says nothing of A100"
        in run(capsys, "plan", "--run", measured, "--gpu", "A100", "--gpus", "1")[2]
    )


def test_from_python():
    import gputop

    # pyright: ignore[reportAssignmentType]
    found: list[Choice] = gputop.plan("llama-3-8b", gpu="H100", gpus=8, global_batch=64, tp=2)
    assert found and all(one.layout["tp"] == 2 for one in found)
    assert [one.step_s for one in found if not one.tight] == sorted(
        one.step_s for one in found if not one.tight
    )
    with pytest.raises(ValueError, match="called 'dp'"):
        gputop.plan("llama-3-8b", gpu="H100", gpus=8, dp=2)


def test_gradients_kept_in_half_take_half_and_are_reduced_sooner(capsys):
    """NeMo's recipe of Nemotron-4 340B says ``grad_sync_dtype: bf16``."""
    asked = (
        "--model llama-3-8b --gpu H100 --gpus 8 --tp 1 --pp 1 --cp 1 --micro-batch 1 --zero 1 "
        "--framework megatron-core --recompute full --seq 4096 --global-batch 64"
    )
    picks = []
    for words in ("", "--grad-dtype fp32", "--grad-dtype bf16"):
        code, out, _ = run(capsys, "plan", *asked.split(), *words.split(), "--json")
        assert code == 0
        picks.append(json.loads(out)["pick"])
    plain, wide, half = picks
    assert plain["allocated_gib"] == wide["allocated_gib"]
    saved = wide["allocated_gib"] - half["allocated_gib"]
    assert saved == pytest.approx(2 * 8.03e9 / 2**30, rel=0.05)
    assert half["parts_s"]["data_parallel"] < wide["parts_s"]["data_parallel"]
    assert "--grad-dtype bf16" in half["estimate"]
    code, _, err = run(capsys, "plan", *asked.split(), "--grad-dtype fp8")
    assert code == 2 and "--grad-dtype" in err


def test_a_compiled_model_fuses_what_is_elementwise(capsys):
    asked = "--model llama-3-8b --gpu H100 --gpus 8 --zero 3 --micro-batch 1 --recompute full"
    picks = {}
    for words in ("torchtitan", "torchtitan --compile", "megatron-core", "megatron-core --compile"):
        framework, *compiled = words.split()
        words_ = [*asked.split(), "--framework", framework, *compiled]
        if framework == "megatron-core":
            words_[words_.index("--zero") + 1] = "1"
        code, out, _ = run(
            capsys, "plan", *words_, "--seq", "4096", "--global-batch", "64", "--json"
        )
        assert code == 0
        picks[words] = json.loads(out)["pick"]
    eager, compiled_ = picks["torchtitan"], picks["torchtitan --compile"]
    assert compiled_["parts_s"]["compute"] < 0.95 * eager["parts_s"]["compute"]
    assert "--compile" in compiled_["estimate"] and "--compile" not in eager["estimate"]
    fused, also = picks["megatron-core"], picks["megatron-core --compile"]
    assert also["step_time_s"] == fused["step_time_s"] and "--compile" not in also["estimate"]


NEARLY = (
    "--model llama-3.1-8b --gpu H100-SXM5-80GB --gpus 8 --seq 8192 --global-batch 128 "
    "--micro-batch 1 --tp 1 --pp 1 --cp 2 --zero 1 --framework nemo --vpp 1 --recompute none"
)


def test_what_may_fit_as_estimates_err_is_planned_and_says_so(capsys):
    """NVIDIA published this very run on 80 GB; by formula it is a little over."""
    code, out, _ = run(capsys, "plan", *NEARLY.split())
    assert code == 0 and "it may not fit" in " ".join(out.split()) and "none surely fits" in out
    code, out, _ = run(capsys, "plan", *NEARLY.split(), "--json")
    plan = json.loads(out)
    assert (code, plan["fitting"], plan["pick"]["fits"]) == (0, 0, False)
    assert -12 < plan["pick"]["headroom_gib"] < 0
    code, _, err = run(capsys, "plan", *NEARLY.split(), "--seq", "16384")
    assert code == 2 and "nothing fits" in err


def test_weights_in_16_bits_halve_what_is_kept_and_moved(capsys):
    """A run of Llama 3 8B on two A100 that was published (vectorlm) was refused."""
    two = ("plan", "--model", "llama3-8b", "--gpu", "A100-SXM4-80GB", "--gpus", "2")
    pinned = (*two, "--seq", "4096", "--global-batch", "32", "--micro-batch", "4", "--zero", "3")
    code, _, err = run(capsys, *pinned, "--framework", "fsdp")
    assert code == 2 and "nothing fits" in err
    code, out, _ = run(capsys, *pinned, "--weights", "bf16")
    assert code == 0 and "weights in 16 bits" in out.splitlines()[0]
    code, as_json, _ = run(capsys, *pinned, "--weights", "bf16", "--json")
    assert json.loads(as_json)["pick"]["step_time_s"] == pytest.approx(21.2, rel=0.1)
    kept, halved = (
        json.loads(run(capsys, "plan", *ASKED, "--framework", "fsdp", *weights, "--json")[1])
        for weights in ((), ("--weights", "bf16"))
    )
    ratio = halved["pick"]["parts_s"]["optimizer"] / kept["pick"]["parts_s"]["optimizer"]
    assert ratio == pytest.approx(16 / 34)


def test_what_a_launch_does_not_write_is_said(capsys):
    code, out, err = run(
        capsys, "launch", *ASKED, "--for", "torchrun", "--optimizer", "lion", "--lora"
    )
    assert code == 0 and "lion" not in out
    assert "the split is for --optimizer lion --lora: that is not written here" in err
    assert "not written here" not in run(capsys, "launch", *ASKED, "--for", "torchtitan")[2]
