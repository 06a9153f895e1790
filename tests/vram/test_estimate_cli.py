"""``gputop estimate`` as a user calls it, and ``gputop.estimate`` from Python."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest
from analysis_support import Builder
from hypothesis import given, settings
from hypothesis import strategies as st

import gputop
from gputop import calibration
from gputop.cli import main
from gputop.cli.fit.estimate_options import add_options
from gputop.cli.fit.estimate_options import given as given_options
from gputop.cli.parsing import Parser
from gputop_analysis import catalog
from gputop_analysis.parallelism.split import Split
from gputop_analysis.vram import options
from gputop_analysis.vram.setup import Lora, Setup

SCRIPTS = Path(__file__).parent.parent / "tracer" / "scripts"
NAMES = [
    "tier",
    "peak_allocated_gib",
    "peak_reserved_gib",
    "device_total_gib",
    "breakdown_gib",
    "peak_operation",
]
NAMES += ["interval_pct", "fits", "levers", "max_micro_batch", "sources"]


pytestmark = pytest.mark.usefixtures("own_store")


def ask(capsys, *words):
    """(exit code, stdout, stderr) of ``gputop estimate WORDS``."""
    code = main(["estimate", *words])
    return code, *capsys.readouterr()


# ---- options


def test_every_field_of_a_setup_has_an_option():
    plain = set(Setup.__dataclass_fields__) - {"model", "parallel", "lora"} | set(
        Split.__dataclass_fields__
    )
    own = {"dora": "dora", "peft": "adapter"}
    plain |= {own.get(name, f"lora_{name}") for name in Lora.__dataclass_fields__}
    assert plain - {"quantized", "zero_bubble"} | {"quant"} <= set(options.OPTION)


def test_the_defaults_are_those_of_the_setup():
    assert options.setup_of(catalog.model("llama-3-8b"), {}) == Setup(catalog.model("llama-3-8b"))
    assert options.setup_of(catalog.model("gpt2"), {}).seq == 1024, "it has positions for no more"


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "seq": st.integers(1, 10**6),
            "micro_batch": st.integers(1, 512),
            "dtype": st.sampled_from(["fp32", "bf16", "fp16"]),
            "optimizer": st.sampled_from(options.OPTION["optimizer"].choices),
            "lora_rank": st.integers(1, 256),
            "lora_targets": st.sampled_from([("all-linear",), ("q_proj", "v_proj")]),
            "freeze": st.lists(st.sampled_from(options.FREEZABLE), unique=True).map(tuple),
            "clip_grad": st.booleans(),
            "sharding": st.sampled_from(options.OPTION["sharding"].choices[1:]),
            "dp": st.integers(2, 64),
        },
    )
)
def test_values_and_setup_are_inverse(values):
    setup = options.setup_of(catalog.model("llama-3-8b"), values)
    assert options.setup_of(setup.model, options.values_of(setup)) == setup
    as_text = {
        name: ",".join(value) if isinstance(value, tuple) else str(value)
        for name, value in values.items()
    }
    assert options.setup_of(setup.model, as_text) == setup


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("seq", "0", "whole number from 1"),
        ("seq", "many", "whole number from 1"),
        ("optimizer", "adagrad", "adamw"),
        ("freeze", "hands", "vision"),
        ("clip_grad", "perhaps", "yes or no"),
        ("lora_dropout", "2", "from 0 to 1"),
        ("nothing", "1", "no option"),
        ("quant", "nf4", "lora_rank"),
    ],
)
def test_a_wrong_value_says_what_is_right(name, value, said):
    with pytest.raises(ValueError, match=said):
        options.setup_of(catalog.model("gpt2"), {name: value})


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--zero", "3", "--dp", "8"], {"sharding": "zero3", "recipe": "deepspeed", "dp": 8}),
        (
            ["--zero", "3", "--recipe", "plain", "--dp", "8"],
            {"sharding": "zero3", "recipe": "plain", "dp": 8},
        ),
        (["--fsdp", "--dp", "4"], {"sharding": "fsdp2", "dp": 4}),
        (["--fsdp", "1", "--dp", "4"], {"sharding": "fsdp1", "dp": 4}),
        (["--hsdp", "2", "--dp", "8"], {"sharding": "hsdp", "replicas": 2, "dp": 8}),
        (["--qlora"], {"lora_rank": 16, "quant": "nf4", "lora_targets": ("all-linear",)}),
        (
            ["--qlora", "--lora-rank", "64"],
            {"lora_rank": 64, "quant": "nf4", "lora_targets": ("all-linear",)},
        ),
        (["--amp", "--no-clip-grad"], {"weights": "fp32", "clip_grad": False}),
        (["--classification"], {"loss": "fused"}),
        (
            ["--optim", "paged_adamw_8bit", "--attn-implementation", "flash_attention_2"],
            {"optimizer": "adamw-paged-8bit", "attention": "flash"},
        ),
        (
            [
                "--per_device_train_batch_size",
                "4",
                "--max_seq_length=1024",
                "--load_in_4bit",
                "--lora",
            ],
            {"micro_batch": 4, "seq": 1024, "quant": "nf4", "lora_rank": 16},
        ),
        (["--gradient_checkpointing", "--liger"], {"checkpointing": "full", "kernels": True}),
        (
            ["--checkpointing", "true", "--fsdp", "full_shard", "--dp", "4"],
            {"checkpointing": "full", "sharding": "fsdp1", "dp": 4},
        ),
        (
            ["--lora-r", "8", "--target-modules", "q_proj"],
            {"lora_rank": 8, "lora_targets": ("q_proj",)},
        ),
        (["--transformers", "4.31"], {"transformers": "4.31", "attention": "eager"}),
        (["--transformers", "4.31", "--attention", "sdpa"], {"transformers": "4.31"}),
    ],
)
def test_short_ways_to_say_several(words, wanted):
    parser = Parser("estimate", "")
    add_options(parser)
    setup = options.setup_of(catalog.model("llama-3-8b"), given_options(parser.parse_args(words)))
    assert options.changed(setup) == wanted


# ---- the command


def test_json_has_the_stable_names_and_adds_up(capsys):
    code, out, _ = ask(capsys, "--model", "llama-3-8b", "--seq", "4096", "--gpu", "H100", "--json")
    found = json.loads(out)
    assert code == 0 and [name for name in NAMES if name not in found] == []
    assert sum(found["breakdown_gib"].values()) == pytest.approx(
        found["peak_allocated_gib"], abs=1e-6
    )
    assert set(found["fits"][0]) >= {"gpu", "memory_gib", "fits", "headroom_gib"}
    assert set(found["levers"][0]) >= {"change", "peak_reserved_gib", "saves_gib"}
    assert len(found["interval_pct"]) == 2 and found["max_micro_batch_gpu"].startswith("H100")


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_answer_fits_its_width_and_says_the_most_important(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = ask(
        capsys, "--model", "llama-3-8b", "--micro-batch", "2", "--zero", "3", "--dp", "8"
    )
    lines = out.splitlines()
    assert code == 0 and max(map(len, lines)) <= width
    for words in (
        "llama-3-8b",
        "GiB",
        "allocated",
        "reserved",
        "activations",
        "peak in",
        "fits from",
        "to need less",
    ):
        assert words in out, words


def test_an_unknown_model_names_the_five_nearest(capsys):
    code, out, err = ask(capsys, "--model", "llama-3-8x")
    assert code == 2 and not out and err.count("\n") == 1 and "llama-3-8b" in err
    assert len(err.split("nearest names are ")[1].split(", ")) == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "gpt2", "--tp", "5"], "must divide the 12 attention heads"),
        (["--model", "gpt2", "--tp", "2", "--fsdp"], "dp must be above 1"),
        (["--model", "gpt2", "--gpu", "H1000"], "no GPU 'H1000'"),
        (["--model", "gpt2", "--seq", "x"], "seq takes a whole number"),
        (["--model", "gpt2", "--tier", "guess"], "invalid choice"),
        (["--csv", "none.csv"], "no file none.csv"),
        (["none.py"], "no file none.py"),
        (["--run", "no-such-run"], "no-such-run"),
        (["--csv", "a.csv", "--run", "last"], "two questions"),
        ([], "say what to estimate"),
        (
            ["--model", "gpt2", "--image-size", "448"],
            "--image-size changes nothing here: it needs --images",
        ),
        (["--model", "gpt2", "--lora-targets", "all-linear"], "it needs --lora-rank"),
    ],
)
def test_what_cannot_be_answered_is_one_line(capsys, words, said):
    code, out, err = ask(capsys, *words)
    assert code == 2 and not out and said in err and "Traceback" not in err


def test_a_model_by_its_configuration(capsys, tmp_path):
    config = {
        "model_type": "llama",
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
    }
    config |= {"num_key_value_heads": 8, "intermediate_size": 512, "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    code, out, _ = ask(capsys, "--model", str(tmp_path), "--json")
    assert code == 0 and json.loads(out)["setup"]["model"]["hidden"] == 256
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    code, _, err = ask(capsys, "--model", str(tmp_path))
    assert code == 2 and "no JSON" in err


def test_a_model_of_the_local_cache(capsys, tmp_path, monkeypatch):
    home = tmp_path / "models--someone--tiny" / "snapshots" / "abc"
    home.mkdir(parents=True)
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config |= {"intermediate_size": 128, "vocab_size": 500}
    (home / "config.json").write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    code, out, _ = ask(capsys, "--model", "someone/tiny", "--json")
    assert code == 0 and json.loads(out)["setup"]["model"]["name"] == "someone/tiny"


def test_no_torch_says_so(capsys, tmp_path):
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\necho 'trace: error: this Python has no torch' >&2\nexit 3\n", encoding="utf-8"
    )
    python.chmod(0o755)
    code, out, err = ask(capsys, "--model", "gpt2", "--trace", "--python", str(python), "--json")
    assert code == 0 and json.loads(out)["tier"] in ("profile", "formula")
    assert "no torch" in err and "tier answers instead" in err
    code, out, err = ask(
        capsys, "--model", "gpt2", "--trace", "--python", str(tmp_path / "nowhere")
    )
    assert code == 2 and not out and "--python" in err


# ---- batches


def test_a_batch_answers_each_row_and_says_why_not(capsys, tmp_path):
    file = tmp_path / "batch.csv"
    rows = "model,seq,micro-batch,hidden,layers,heads,ffn,vocab\n"
    rows += "gpt2,512,2,,,,,\nnope,,,,,,,\n,256,,512,4,8,2048,1000\ngpt2,x,,,,,,\n"
    file.write_text(rows, encoding="utf-8")
    code, out, err = ask(capsys, "--csv", str(file), "--optimizer", "sgd")
    found = list(csv.DictReader(io.StringIO(out)))
    assert code == 1 and "2 rows have no answer" in err
    assert [bool(row["error"]) for row in found] == [False, True, False, True]
    assert all(float(row["device_total_gib"]) > 0.5 for row in found if not row["error"])
    code, out, _ = ask(capsys, "--csv", str(file), "--optimizer", "adamw", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert len(lines) == 4 and lines[0]["peak_allocated_gib"] > float(
        found[0]["peak_allocated_gib"]
    )


def test_an_empty_batch_is_told(capsys, tmp_path):
    (tmp_path / "empty.csv").write_text("", encoding="utf-8")
    code, _, err = ask(capsys, "--csv", str(tmp_path / "empty.csv"))
    assert code == 2 and "must name the columns" in err


# ---- Python


def test_estimate_from_python():
    found = gputop.estimate("gpt2", seq=512, micro_batch=2)
    same = gputop.estimate(found.setup, micro_batch=2)
    assert same.device_total == found.device_total
    assert gputop.estimate(found.setup, micro_batch=8).peak.allocated > found.peak.allocated


def test_estimate_of_a_configuration_object():
    class Config:
        def to_dict(self):
            return {
                "model_type": "gpt2",
                "n_embd": 768,
                "n_layer": 12,
                "n_head": 12,
                "n_positions": 1024,
                "vocab_size": 50257,
            }

    class Model:
        config = Config()

    assert gputop.estimate(Model(), seq=512).setup.model.hidden == 768
    with pytest.raises(ValueError, match="object of type object is no model"):
        gputop.estimate(object())
    with pytest.raises(AttributeError):
        _ = gputop.no_such_name


def test_the_package_stays_light():
    import subprocess

    code = (
        "import sys, gputop; print([m for m in ('numpy', 'textual', 'torch', "
        "'gputop_analysis') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
        == "[]"
    )


# ---- what was measured here


def record(ratio, model="gpt2", kind="full", tier="formula", run="one"):
    return {"model": model, "kind": kind, "tier": tier, "ratio": ratio, "run": run}


def test_an_estimate_starts_from_what_was_measured(capsys):
    plain = gputop.estimate("gpt2", tier="formula", seq=512)
    calibration.remember(record(1.25))
    scaled = gputop.estimate("gpt2", tier="formula", seq=512)
    assert scaled.peak.allocated == pytest.approx(1.25 * plain.peak.allocated, rel=1e-6)
    assert sum(scaled.peak.breakdown.values()) == scaled.peak.allocated
    lifted = scaled.device_total - plain.device_total
    for before, after in zip(plain.fits, scaled.fits, strict=True):
        assert before.headroom - after.headroom == lifted and after.fits == (after.headroom >= 0)
    assert scaled.levers[0].saves == pytest.approx(1.25 * plain.levers[0].saves, rel=1e-6)
    assert (
        max(size for _, size in scaled.peak.timeline or [(0, scaled.peak.allocated)])
        <= scaled.peak.allocated + 1
    )
    assert any("calibrated by run one" in note and "+25.0 %" in note for note in scaled.notes)
    _, out, _ = ask(
        capsys, "--model", "gpt2", "--tier", "formula", "--seq", "512", "--no-calibration", "--json"
    )
    assert json.loads(out)["peak_allocated_gib"] == pytest.approx(plain.peak.allocated / 2**30)


def test_the_newest_of_a_kind_is_kept_and_torn_lines_are_not_read():
    calibration.remember(record(1.1))
    calibration.remember(record(1.2, kind="lora"))
    calibration.remember(record(1.3))
    assert [(one["kind"], one["ratio"]) for one in calibration.recall("gpt2")] == [
        ("lora", 1.2),
        ("full", 1.3),
    ]
    with calibration.path().open("a", encoding="utf-8") as file:
        file.write('{"model": "gpt2", "kind": "x"')
    assert len(calibration.recall()) == 2 and calibration.recall("other") == []


@pytest.fixture
def run_of_a_script(tmp_path, monkeypatch):
    """A run whose hello tells batches of tokens, and no configuration of its model."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\n"
        "net = torch.nn.Linear(int(sys.argv[1]), 8)\n"
        "optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "for _ in range(3):\n"
        "    net(torch.ones(4, int(sys.argv[1]))).sum().backward()\n"
        "    optimizer.step()\n"
    )
    build = Builder(tmp_path / "run", ["torchrun", "./train.py", "16"])
    manifest = json.loads((build.path / "run.json").read_text())
    (build.path / "run.json").write_text(json.dumps({**manifest, "cwd": str(tmp_path)}))
    shapes = {"input_ids": {"shape": [4, 32], "dtype": "torch.int64"}}
    build.hello(world_size=2, batch=shapes)
    build.steps(30, forward=1.0, backward=1.0)
    return build.path, script


def test_a_run_whose_model_is_not_told_is_answered_by_its_script(capsys, run_of_a_script):
    path, script = run_of_a_script
    code, out, err = ask(capsys, "--run", str(path), "--json")
    assert code == 0, err
    assert "its script is traced" in err
    assert json.loads(out)["tier"] == "trace"
    script.unlink()
    code, out, err = ask(capsys, "--run", str(path))
    assert (code, out) == (2, "")
    assert err.strip().endswith("name a model with its dimensions by --model")


def test_runs_that_end_at_once_lose_nothing():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(lambda i: calibration.remember(record(1 + i / 100, model=f"m{i}")), range(24))
        )
    assert {one["model"] for one in calibration.recall()} == {f"m{i}" for i in range(24)}


@settings(max_examples=30)
@given(st.binary(max_size=200))
def test_any_store_can_be_read(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("state")
    (folder / "gputop").mkdir()
    (folder / "gputop" / "calibration.jsonl").write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:  # given anew for each example
        patch.setenv("XDG_STATE_HOME", str(folder))
        assert isinstance(calibration.recall(), list)


# ---- scripts


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"import torch\ndef f(:\n", "line 2: invalid syntax"),
        (b"x = 1\0", "null bytes"),
        (b"#\n#\n\xff = 1\n", "utf-8"),
    ],
)
def test_a_file_that_is_no_python_is_one_line_and_nothing_runs(capsys, tmp_path, content, said):
    script = tmp_path / "train.py"
    script.write_bytes(content)
    code, out, err = ask(capsys, str(script))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{script} cannot be parsed: " in err and said in err


def test_a_script_is_run_on_fake_tensors_and_its_steps_are_answered(capsys):
    code, out, err = ask(capsys, str(SCRIPTS / "plain_argparse.py"), "--json")
    found = json.loads(out)
    assert code == 0 and "running the code of" in err and "--no-execute only reads it" in err
    assert found["tier"] == "trace" and found["peak_allocated_gib"] > 0
    assert any("ran on fake tensors" in note for note in found["notes"])


def test_a_script_that_is_only_read(capsys, tmp_path):
    script = tmp_path / "train.py"
    source = "from transformers import AutoModelForCausalLM\nraise SystemExit('ran')\n"
    script.write_text(
        source + "model = AutoModelForCausalLM.from_pretrained('openai-community/gpt2')\n",
        encoding="utf-8",
    )
    code, out, err = ask(capsys, str(script), "--no-execute", "--seq", "256", "--json")
    found = json.loads(out)
    assert code == 0 and "only reading" in err and found["setup"]["model"]["name"] == "gpt2"
    assert found["setup"]["seq"] == 256 and any("micro-batch" in note for note in found["notes"])


def test_a_script_that_fails_shows_its_traceback_and_what_was_tried(capsys, tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("import torch\nopen('no such data')\n", encoding="utf-8")
    code, out, err = ask(capsys, str(script))
    assert code == 2 and not out
    assert "FileNotFoundError" in err and "broken.py" in err and "--model" in err
    assert "it failed before" in err and "its source names no model" in err
