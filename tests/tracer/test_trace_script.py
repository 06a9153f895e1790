"""Training scripts of many kinds, traced without a GPU: each makes two whole steps and holds what
it must hold.
"""

import ctypes
import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from libraries import needs
from vram_log import storages

from gputop_analysis.vram import eventlog, replay

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
pytestmark = needs("torch")
TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}
JOBS = {
    "plain": ("plain_argparse", {}),
    "plain_wide": ("plain_argparse", {"arguments": ["--width", "256"]}),
    "amp": ("amp_scaler", {}),
    "host": ("host_only", {}),
    "gan": ("two_optimizers", {}),
    "gpt": ("gpt_loop", {}),
    "gpt_checkpointed": ("gpt_loop", {"arguments": ["--checkpointing"]}),
    "default_device": ("default_device", {}),
    "ddp": ("ddp_torchrun", {"world": 4}),
    "fsdp2": ("fsdp2_loop", {"world": 4}),
    "fsdp1": ("fsdp1_process", {"world": 4}),
    "files": ("local_files", {"arguments": ["HOME"], "home": "HOME"}),
    "module": ("needs_data", {"way": "module"}),
    "failing": ("needs_data", {}),
    "trainer": ("hf_trainer", {"arguments": ["--bf16", "--checkpointing"]}),
    "lora": ("hf_lora", {}),
    "lightning": ("lightning_module", {}),
    "stray": ("stray", {"arguments": ["ELSEWHERE"]}),
    "by_hand": ("by_hand", {}),
    "tools": ("own_tools", {}),
    "evaluating": ("long_evaluation", {}),
    "asking": ("asks_for_ranks", {"home": "BESIDE"}),
    "usage": ("plain_argparse", {"arguments": ["--width", "many"]}),
}
FILES = {"conf/base.txt": "one\n", "data/rows.csv": "1,2\n", "old/kept": "", "single.txt": ""}
NEEDS = {
    "trainer": "transformers",
    "lora": "peft",
    "lightning": "lightning",
    "by_hand": "transformers",
}


def skip_without(library):
    """``pytest.importorskip`` without the seconds of the import."""
    if not find_spec(library):
        pytest.skip(f"no {library} here")


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """(outcome, log or None) of each job."""
    folder = tmp_path_factory.mktemp("traces")
    configs = folder / "configs.json"
    configs.write_text(json.dumps({"example/tiny-llama": TINY}))
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    home = folder.parent / "home"
    fill(home)
    beside = folder.parent / "beside"
    (beside / "work").mkdir(parents=True)
    (beside / "data").mkdir()
    (beside / "data" / "sizes.txt").write_text("16")
    given = {"ELSEWHERE": str(elsewhere), "HOME": str(home), "BESIDE": str(beside / "work")}
    jobs = {
        name: {"script": str(SCRIPTS / f"{script}.py"), "configs": str(configs), **job}
        for name, (script, job) in JOBS.items()
    }
    for job in jobs.values():
        job["arguments"] = [given.get(one, one) for one in job.get("arguments", [])]
        job["home"] = given.get(job.get("home"), ".")
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "probes")}
    command = [sys.executable, str(HERE / "script_forks.py"), str(folder)]
    subprocess.run(
        command, input=json.dumps(jobs), text=True, env=environment, check=True, capture_output=True
    )
    found = {}
    for name in JOBS:
        log = folder / f"{name}.json.gz"
        outcome = json.loads((folder / f"{name}.outcome.json").read_text())
        found[name] = outcome, eventlog.load(log) if log.exists() else None
    found["elsewhere"], found["home"], found["beside"] = elsewhere, home, beside
    return found


def fill(home):
    """A user's folder."""
    for name, text in FILES.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    (home / "single.txt").chmod(0o640)


def made(log, category, step):
    """Bytes of the storages of a category that were allocated in a step."""
    index = log.strings.index(category) if category in log.strings else -1
    starts = [at for at, _, of in log.marks if of == step]
    ends = [at for at, _, of in log.marks if of > step] or [len(log.events)]
    events = log.events[min(starts) : min(ends)]
    return sum(log.bytes[event] for event in events if event > 0 and log.category[event] == index)


@pytest.mark.parametrize(
    "name", [name for name in JOBS if name not in ("failing", "usage", "by_hand", "evaluating")]
)
def test_makes_two_whole_steps_and_adds_up(traced, name):
    skip_without(NEEDS.get(name, "torch"))
    outcome, log = traced[name]
    assert outcome.get("done"), outcome
    assert outcome["steps"] == 2
    peak = replay.peak(log)
    assert sum(peak.breakdown.values()) == peak.allocated <= peak.reserved
    assert {"forward", "backward", "optimizer"} <= {phase for _, phase, _ in log.marks}


def test_adam_holds_two_states_and_a_gradient_for_each_weight(traced):
    _, log = traced["plain"]
    conv, width = 3 * 32 * 9 + 32 + 64, 64
    parameters = conv + 32 * 16 * 16 * width + width + width * 10 + 10
    assert made(log, "gradients", 1) == 4 * parameters
    assert made(log, "optimizer", 0) == 8 * parameters


def test_the_scripts_own_arguments_reach_it(traced):
    assert (
        replay.peak(traced["plain_wide"][1]).allocated > replay.peak(traced["plain"][1]).allocated
    )


def test_fp16_autocast_casts_and_the_scaler_lets_the_update_through(traced):
    _, log = traced["amp"]
    weights = 4 * (256 * 1024 + 3 * 1024 + 4 * 1024 + 4)
    assert made(log, "gradients", 1) == weights
    assert made(log, "optimizer", 0) == weights


def test_a_script_without_a_gpu_is_taken_to_be_on_one(traced):
    outcome, log = traced["host"]
    assert any("names no GPU" in note for note in outcome["notes"])
    assert made(log, "gradients", 1) > 0


def test_both_optimizers_belong_to_a_step(traced):
    _, log = traced["gan"]
    generator = 64 * 256 + 256 + 256 * 784 + 784
    critic = 784 * 256 + 256 + 256 + 1
    assert made(log, "optimizer", 0) == 8 * (generator + critic)


def test_compile_is_left_out_and_said(traced):
    assert any("torch.compile" in note for note in traced["gpt"][0]["notes"])


def test_checkpointing_keeps_fewer_activations(traced):
    def kept(name):
        return sum(size for _, size in replay.peak(traced[name][1]).layers)

    assert 0 < kept("gpt_checkpointed") < kept("gpt")


def test_ddp_adds_buckets_of_the_size_of_the_gradients(traced):
    _, log = traced["ddp"]
    parameters = 512 * 2048 + 2048 + 2048 * 512 + 512
    assert sum(log.bytes[one] for one in storages(log, "communication")) == 4 * parameters
    assert log.meta["world"] == 4


def test_fsdp2_shards_states_and_gathers_on_another_stream(traced):
    _, log = traced["fsdp2"]
    parameters = 4 * (256 * 1024 + 1024 + 1024 * 256 + 256)
    assert made(log, "optimizer", 0) == pytest.approx(8 * parameters / 4, rel=0.01)
    assert len(set(log.stream[1:])) > 1


def test_adapters_alone_have_gradients(traced):
    skip_without("peft")
    _, log = traced["lora"]
    adapters = 2 * (8 * 64 + 64 * 8 + 8 * 64 + 32 * 8)
    assert made(log, "gradients", 1) == 4 * adapters


def test_the_module_way_says_what_it_traced(traced):
    assert any("Only the class Classifier" in note for note in traced["module"][0]["notes"])


def test_what_a_script_writes_elsewhere_is_not_written(traced):
    has_landlock = ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint(1)) > 0
    left = {one.name for one in traced["elsewhere"].iterdir()}
    assert left <= (set() if has_landlock else {"touched"})


def test_files_of_the_user_are_seen_and_stay_as_they_are(traced):
    outcome, _ = traced["files"]
    assert outcome.get("done"), outcome
    home = traced["home"]
    assert {
        str(one.relative_to(home)): one.read_text() for one in home.rglob("*") if one.is_file()
    } == FILES
    assert (home / "single.txt").stat().st_mode & 0o777 == 0o640


def test_relative_names_lead_out_of_the_folder_as_from_the_users_own(traced):
    outcome, log = traced["asking"]
    assert log.meta["world"] == 1 and outcome["guessed"] == []
    assert sorted(one.name for one in traced["beside"].rglob("*")) == ["data", "sizes.txt", "work"]


def test_a_long_evaluation_after_the_first_step_is_not_waited_for(traced):
    outcome, log = traced["evaluating"]
    assert outcome["steps"] == 1 and replay.peak(log).allocated > 0
    assert outcome["guessed"] == ["the second step, which did not come in time"]


def test_what_is_guessed_is_said_apart(traced):
    assert traced["module"][0]["guessed"] == [
        "AdamW and a batch of 8x3x224x224, for the class Classifier alone"
    ]
    assert traced["host"][0]["guessed"] == ["that it runs on a GPU, as it names none"]


def test_fsdp1_in_a_process_of_its_own_shards_states(traced):
    _, log = traced["fsdp1"]
    parameters = 256 * 1024 + 1024 + 1024 * 256 + 256
    assert made(log, "optimizer", 0) == pytest.approx(8 * parameters / 4, rel=0.01)
    assert log.meta["world"] == 4


def test_what_cudnn_keeps_is_said_to_be_unknown(traced):
    assert any("cuDNN" in note for note in traced["files"][0]["notes"])


def test_a_script_that_ends_itself_says_why(traced):
    outcome, log = traced["usage"]
    assert log is None
    assert "exit code 2" in outcome["error"] and "invalid int value: 'many'" in outcome["error"]


def test_updates_by_hand_are_an_answer_and_texts_are_cut_without_a_tokenizer(traced):
    skip_without("transformers")
    outcome, log = traced["by_hand"]
    assert replay.peak(log).allocated > 2 * 4 * 256 * 64, "the weight and its gradient"
    for words in ("steps no optimizer", "four characters"):
        assert any(words in note for note in outcome["notes"])


def test_a_script_that_fails_early_gives_its_own_traceback(traced):
    outcome, log = traced["failing"]
    assert log is None
    assert "FileNotFoundError" in outcome["error"]
    assert "needs_data.py" in outcome["traceback"]
    assert "gputop_tracer" not in outcome["traceback"]


@pytest.fixture(scope="module")
def command():
    """Runs the command of a trace as a user's interpreter would; (exit code, stdout as JSON,
    stderr).
    """
    main = HERE.parents[1] / "probes/gputop_tracer/__main__.py"

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, main, *map(str, arguments)],
            text=True,
            capture_output=True,
            check=False,
        )
        return done.returncode, json.loads(done.stdout), done.stderr

    return run


def test_no_execute_only_reads(command, tmp_path):
    script = tmp_path / "train.py"
    witness = tmp_path / "ran"
    script.write_text(
        f"open({str(witness)!r}, 'w')\nBASE = 'gpt2'\nmodel = "
        "AutoModelForCausalLM.from_pretrained(BASE)\nTrainingArguments('out', "
        "per_device_train_batch_size=4, bf16=True, gradient_checkpointing=True)\n"
        "LoraConfig(r=32)\n"
    )
    code, answer, _ = command(script, "--no-execute")
    assert code == 0
    assert not witness.exists()
    assert answer["pretrained"] == ["gpt2"]
    assert answer["options"] == {
        "micro_batch": 4,
        "dtype": "bf16",
        "checkpointing": "full",
        "lora_rank": 32,
    }


@pytest.mark.parametrize(("name", "said"), [("None", "no model"), ("'no/such'", "no/such")])
def test_a_model_that_is_not_here_is_told_in_words(command, tmp_path, name, said):
    skip_without("transformers")
    script = tmp_path / "train.py"
    script.write_text(
        f"from transformers import AutoModel\nname = {name}\nAutoModel.from_pretrained(name)\n"
    )
    code, answer, _ = command(script, "--out", tmp_path / "log.json.gz")
    assert (
        code in (1, 3)
        and said in answer["tried"][0]["outcome"]
        and "'" not in answer["tried"][0]["outcome"]
    )


def test_a_module_of_a_package_runs_as_one(command, tmp_path):
    package = tmp_path / "project"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("WIDTH = 8\n")
    (package / "train.py").write_text(
        "import torch\nfrom .sizes import WIDTH\nmodel = torch.nn.Linear(WIDTH, "
        "4).cuda()\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\nfor _ in range(3):\n    "
        "model(torch.randn(4, WIDTH).cuda()).sum().backward()\n    optimizer.step()\n"
    )
    code, answer, _ = command(package / "train.py", "--out", tmp_path / "log.json.gz")
    assert (code, answer["how"], answer["guessed"]) == (0, "ran", [])


def test_a_script_that_needs_a_launcher_runs_as_its_first_rank_and_says_so(command, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch\n"
        "rank = int(os.environ['LOCAL_RANK'])\n"
        "model = torch.nn.Linear(8, 8).to(rank)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    model(torch.randn(4, 8, device=rank)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    code, answer, _ = command(script, "--out", tmp_path / "log.json.gz")
    assert (code, answer["how"]) == (0, "ran")
    assert answer["guessed"] == ["one rank, as it needs LOCAL_RANK of a launcher"]


def test_the_ways_are_tried_in_order_without_network_and_elsewhere_than_in_its_folder(
    command, tmp_path
):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, urllib.request\n"
        "assert os.listdir('.') == [], os.listdir('.')\n"
        "open('left.txt', 'w').write('x')\n"
        "import subprocess\n"
        "subprocess.Popen(['sleep', '600.713'])\n"
        "urllib.request.urlopen('http://192.0.2.1/', timeout=2)\n"
        "model = Auto.from_pretrained('example/7b')\n"
    )
    code, answer, said = command(script, "--out", tmp_path / "log.json.gz")
    assert code == 3
    assert answer["how"] == "source"
    assert [one["way"] for one in answer["tried"]] == ["ran", "module", "source"]
    assert "network is off" in answer["traceback"]
    assert "run its code" in said
    assert _ends("600.713")
    assert not (tmp_path / "left.txt").exists()


def _ends(argument: str) -> bool:
    """Whether no process has such an argument, or will have none within a few seconds."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        if not any(
            argument in (one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])
        ):
            return True
        time.sleep(0.05)
    return False


def test_a_script_that_names_no_model_has_no_answer(monkeypatch, capsys, tmp_path):
    from gputop_tracer.script import command as traced_script

    script = tmp_path / "train.py"
    script.write_text("import not_here\n")
    monkeypatch.setattr(
        traced_script, "_start", lambda options, rest, way: {"error": way + " failed"}
    )
    assert traced_script.main([str(script), "--out", "log.json.gz"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["how"] is None
    assert [one["outcome"] for one in answer["tried"]] == [
        "ran failed",
        "module failed",
        "names no model",
    ]
