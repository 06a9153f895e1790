"""What a run says of itself as a setup, what it measured against its estimate, and what it ran out
of memory with.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from analysis_support import Builder
from e2e_support import gputop

from gputop import calibration
from gputop.feed.prediction import Prediction, Predictor, remember_run
from gputop.render.rows import row_text
from gputop.widgets.history import predicted
from gputop_analysis import catalog
from gputop_analysis.findings import evaluate
from gputop_analysis.view import RunView
from gputop_analysis.vram import oom
from gputop_analysis.vram.comparison import compare, measured
from gputop_analysis.vram.from_run import setup_of, setup_of_hello
from gputop_analysis.vram.question import estimate
from gputop_analysis.vram.setup import Lora
from gputop_analysis.vram.tiers import solve

GIB = 1 << 30
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "layers": 32,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "ffn_size": 14336,
    "max_sequence": 8192,
    "tied_embeddings": False,
    "attention": "sdpa",
}
BATCH = {"shapes": {"input_ids": [2, 4096], "labels": [2, 4096]}}
OOM = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.10 GiB of "
    "which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.90 GiB memory in "
    "use. Of the allocated memory 76.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by "
    "PyTorch but unallocated."
)


def a_hello(model=(), **fields):
    """Llama 3 8B, full fine-tuning in bf16 with AdamW, as a rank would describe it."""
    described = {
        "class": "LlamaForCausalLM",
        "config": LLAMA,
        "by_dtype": {"bfloat16": 8030261248},
        **dict(model),
    }
    base = {
        "model": described,
        "batch": BATCH,
        "optimizer": {"class": "AdamW"},
        "amp": {"autocast": False},
    }
    return {**base, **fields}


def a_run(tmp_path, peak_gib=None, steps=20, **hello):
    build = Builder(tmp_path / "run")
    cuda = {"device": "cuda", "device_memory_bytes": round(79.1 * GIB)} if peak_gib else {}
    build.hello(0, **a_hello(**hello), **cuda)
    used = (
        {}
        if peak_gib is None
        else {"peak_allocated_bytes": round(peak_gib * GIB), "reserved_bytes": 70 * GIB}
    )
    for _ in range(steps):
        build.step(forward=5.0, backward=10.0, micro_batches=4, optimizer_steps=1, **used)
    return build


pytestmark = pytest.mark.usefixtures("own_store")


# ---- the setup of a run


def test_a_plain_run(tmp_path):
    setup = setup_of(RunView(a_run(tmp_path, clip={"max_norm": 1.0}).open()))
    assert setup is not None and setup.model.hidden == 4096 and setup.model in catalog.models()
    assert (setup.micro_batch, setup.seq, setup.accumulation) == (2, 4096, 4)
    assert (setup.dtype, setup.weights, setup.optimizer, setup.clip_grad) == (
        "bf16",
        "",
        "adamw",
        True,
    )
    assert setup.parallel.world == 1 and setup.lora is None and setup.checkpointing == "none"


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"amp": {"autocast": True, "dtype": "bfloat16"}, "model": {"by_dtype": {"float32": 9}}},
         ("bf16", "fp32")),
        ({"amp": {"autocast": True, "dtype": None}, "model": {"by_dtype": {"float32": 9}}},
         ("fp16", "fp32")),
        ({"model": {"by_dtype": {"float32": 9, "bfloat16": 1}}}, ("fp32", "")),
        ({"parallel": {"fsdp": {"version": 2, "mixed_precision": {"param_dtype": "bfloat16"}}},
          "model": {"by_dtype": {"float32": 9}}}, ("bf16", "fp32")),
    ],
)  # fmt: skip
def test_types_of_weights_and_computation(said, wanted):
    setup = setup_of_hello(a_hello(**said), world=8)
    assert setup is not None and (setup.dtype, setup.weights) == wanted


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [
        ({"class": "AdamW", "fused": True}, "adamw-fused"),
        ({"class": "AdamW", "foreach": False}, "adamw-loop"),
        ({"class": "PagedAdamW8bit"}, "adamw-paged-8bit"),
        ({"class": "SGD", "momentum": 0.9}, "sgd-momentum"),
        ({"class": "SGD", "momentum": 0}, "sgd"),
        ({"class": "Adafactor"}, "adafactor"),
    ],
)
def test_optimizers_by_their_class(optimizer, name):
    setup = setup_of_hello(a_hello(optimizer=optimizer))
    assert setup is not None and setup.optimizer == name


def test_adapters_and_quantised_weights():
    lora = {"rank": 8, "targets": ["k_proj", "q_proj"], "dtype": "bfloat16", "dropout": 0.1}
    setup = setup_of_hello(a_hello({"lora": lora, "modules": {"Linear4bit": 224}}))
    assert setup is not None and setup.quantized == "nf4"
    assert setup.lora == Lora(8, ("k_proj", "q_proj"), "bf16", 0.1)


def test_sharding_as_the_ranks_tell_it():
    def layout(**parallel):
        setup = setup_of_hello(a_hello(parallel=parallel), world=8)
        assert setup is not None
        return setup

    assert layout(ddp={}).parallel.sharding == "ddp" and layout(ddp={}).parallel.dp == 8
    assert layout(fsdp={"version": 2}).parallel.sharding == "fsdp2"
    assert (
        layout(fsdp={"version": 1, "sharding": "SHARD_GRAD_OP"}).parallel.reshard_after_forward
        is False
    )
    hsdp = layout(
        fsdp={"version": 2}, mesh={"names": ["dp_replicate", "dp_shard"], "shape": [2, 4]}
    ).parallel
    assert (hsdp.sharding, hsdp.replicas, hsdp.dp) == ("hsdp", 2, 8)
    tp = layout(fsdp={"version": 2}, mesh={"names": ["dp", "tp"], "shape": [4, 2]}).parallel
    assert (tp.dp, tp.tp) == (4, 2)
    buckets = {"reduce_bucket_size": 2 * 10**8, "overlap_comm": True}
    zero = layout(deepspeed={"zero_stage": 2, "offload_optimizer": True, **buckets})
    assert (zero.reduce_bucket_size, zero.overlap_comm) == (2 * 10**8, True)
    assert (zero.parallel.sharding, zero.parallel.offload, zero.recipe) == (
        "zero2",
        "optimizer",
        "deepspeed",
    )


def test_what_is_not_said_is_not_guessed(tmp_path):
    assert setup_of_hello({}) is None
    assert setup_of_hello(a_hello({"config": None})) is None
    assert setup_of_hello(a_hello(batch={"shapes": {"0": [16, 3, 224, 224]}})) is None
    assert setup_of(RunView(Builder(tmp_path / "empty").open())) is None


def test_a_shape_that_the_catalog_does_not_have_keeps_its_own_name():
    setup = setup_of_hello(
        a_hello({"config": {**LLAMA, "layers": 7, "name": "/data/models/mine/"}})
    )
    assert setup is not None and setup.model.name == "mine" and setup.model.layers == 7


# ---- predicted and measured


def test_predicted_beside_measured(tmp_path):
    record = a_run(tmp_path, peak_gib=80.0).open()
    setup = setup_of(RunView(record))
    assert setup is not None
    found = Predictor().of(record)
    assert found is not None and found.measured_gib == pytest.approx(80.0)
    assert found.allocated_gib == pytest.approx(solve(setup).allocated / GIB)
    text = row_text(predicted(found, 120))
    assert f"predicted {found.allocated_gib:.1f}, measured 80.0" in text and "tier" in text


def test_on_a_cpu_nothing_is_compared(tmp_path):
    record = a_run(tmp_path).open()
    found = Predictor().of(record)
    assert found is not None and found.measured_gib is None and found.off_pct is None
    assert row_text(predicted(found, 120)).startswith("on a GPU ")
    assert measured(RunView(record)) is None and compare(RunView(record)) is None
    assert remember_run(record) == "" and calibration.recall() == []


def test_a_prediction_of_a_run_that_tells_no_model(tmp_path):
    build = Builder(tmp_path / "run")
    build.hello(0)
    build.steps(5, forward=1.0, backward=1.0)
    assert Predictor().of(build.open()) is None


def test_a_run_on_a_gpu_is_remembered_and_estimates_start_from_it(tmp_path):
    record = a_run(tmp_path, peak_gib=90.0).open()
    said = remember_run(record)
    (stored,) = calibration.recall()
    setup = setup_of(RunView(record))
    assert setup is not None
    assert stored["ratio"] == pytest.approx(90.0 * GIB / solve(setup).allocated, rel=1e-5)
    assert stored["model"] == setup.model.name and "measured 90.00 GiB" in said
    again = Predictor().of(record)
    assert (
        again is not None
        and again.calibrated
        and again.allocated_gib == pytest.approx(90.0, rel=1e-4)
    )


def test_a_run_that_ran_out_of_memory_is_not_remembered(tmp_path):
    build = a_run(tmp_path, peak_gib=76.0)
    event: dict[str, Any] = {
        "class": "OutOfMemoryError",
        "message": OOM,
        "phase": "forward",
        "step": 3,
    }
    build.event("exception", rank=0, **event)
    assert remember_run(build.open()) == "" and calibration.recall() == []


def test_the_first_step_is_not_enough_to_compare(tmp_path):
    assert measured(RunView(a_run(tmp_path, peak_gib=50.0, steps=1).open())) is None


def test_a_large_difference_stands_out():
    row = predicted(Prediction(40.0, 42.0, "formula", measured_gib=50.0), 100)
    assert (" (+25.0 %)", "high") in row


# ---- out of memory


def an_oom(tmp_path, **more):
    build = a_run(tmp_path, peak_gib=76.0, **more.pop("hello", {}))
    memory = {
        "weights_bytes": 15 * GIB,
        "gradients_bytes": 15 * GIB,
        "optimizer_bytes": 30 * GIB,
        "buffers_bytes": 0,
    }
    event = {
        "rank": 0,
        "class": "OutOfMemoryError",
        "message": OOM,
        "phase": "forward",
        "step": 20,
        "site": "t.py:9 main",
    }
    layer: dict[str, Any] = {
        "module": "model.layers.17.mlp",
        "module_class": "LlamaMLP",
        "memory": memory,
    }
    build.event("exception", **{**event, **layer, **more})
    build.end(exit_code=1)
    return build.open()


def test_out_of_memory_names_layer_phase_holders_and_lever(tmp_path):
    record = an_oom(tmp_path)
    found = next(one for one in evaluate(record) if one.id == "HC04")
    for words in (
        "model.layers.17.mlp (LlamaMLP)",
        "phase forward, step 20",
        "optimizer states 30.00 GiB",
    ):
        assert words in found.evidence, words
    assert "activations and temporaries 16.00 GiB" in found.evidence
    assert "nearest change that would have fitted: " in found.fix
    names = [one.name for one in found.proof.inputs] if found.proof else []
    assert "held by optimizer states" in names and "estimated for this run" in names


def test_the_lever_is_the_nearest_that_is_enough():
    setup = setup_of_hello(a_hello())
    assert setup is not None
    answer = estimate(setup)
    for share in (0.9, 0.8, 0.75):
        chosen = oom._nearest(setup, 0.0, share * answer.device_total)
        assert chosen is not None
        wanted = answer.device_total - (1 - oom.SPARE) * share * answer.device_total
        enough = [one for one in answer.levers if one.saves >= wanted]
        assert chosen[0] in enough and chosen[0].saves == min(one.saves for one in enough)


def test_where_no_change_alone_is_enough_two_are():
    setup = setup_of_hello(a_hello())
    assert setup is not None
    answer = estimate(setup)
    total = (answer.device_total - 1.1 * answer.levers[0].saves) / (1 - oom.SPARE)
    chosen = oom._nearest(setup, 0.0, total)
    assert chosen is not None and " and " in chosen[0].change
    assert estimate(chosen[0].setup).device_total <= 1.02 * total
    assert oom._nearest(setup, 0.0, total / 100) is None


def test_without_an_architecture_there_is_no_lever_but_the_rest(tmp_path):
    record = an_oom(tmp_path, hello={"model": {"config": None}})
    found = next(one for one in evaluate(record) if one.id == "HC04")
    assert "nearest change" not in found.fix and "LlamaMLP" in found.evidence


def test_sizes_in_any_unit_and_messages_without():
    assert oom.sizes("Tried to allocate 512.00 MiB. GPU 0")["asked"] == 512 << 20
    assert oom.sizes("something else") == {}
    met = oom.explain({"class": "OutOfMemoryError", "message": "", "memory": None})
    assert met.held == {} and met.layer == "" and met.demand == 0


SCRIPT = """
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM
size = dict(
    hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, vocab_size=120
)
model = LlamaForCausalLM(LlamaConfig(**size)).bfloat16()
model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
def full(*_):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
data = DataLoader([{"input_ids": torch.randint(0, 120, (16,))}] * 40, batch_size=2)
for step, batch in enumerate(data):
    if step == 0:
        model.base_model.model.model.layers[1].mlp.act_fn.forward = full
    model(**batch, labels=batch["input_ids"]).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_real_script_that_runs_out_of_memory_in_its_first_step(tmp_path):
    """Before it has said anything of itself."""
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    done = gputop("run", "--json", sys.executable, "train.py", tmp_path=tmp_path)
    assert done.returncode == 1, done.stderr
    found = next(one for one in json.loads(done.stdout)["findings"] if one["id"] == "HC04")
    assert "layers.1.mlp.act_fn (SiLUActivation), phase forward" in found["evidence"]
    again = gputop("estimate", "--run", "last", "--json", tmp_path=tmp_path)
    setup = json.loads(again.stdout)["setup"]
    assert (setup["model"]["hidden"], setup["micro_batch"], setup["seq"]) == (64, 2, 16)
    assert setup["lora"]["rank"] == 4 and setup["lora"]["targets"] == ["q_proj", "v_proj"]
