"""Sharded trainings of a small model, traced as rank 0 of a world that is not there."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from gputop_analysis.vram import deepen, eventlog, replay
from gputop_analysis.vram.setup import ModelShape, Parallel, Setup

pytest.importorskip("transformers")
PROBES = Path(__file__).parents[2] / "probes"
SHAPE = ModelShape("small", "llama", 128, 6, 4, 4, 32, 256, 1000, max_position=512)
LAYER = 4 * 128 * 128 + 3 * 128 * 256 + 2 * 128
PARAMETERS = 6 * LAYER + 2 * 1000 * 128 + 128
WORLD = 4
TRACE = """
import json, sys
from gputop_agent.trace import models
for name, job in json.load(sys.stdin).items():
    try:
        tracker = models.trace(job["setup"], full=job["full"])
        tracker.log.save(sys.argv[1] + "/" + name, tracker.meta)
    except ValueError as error:
        open(sys.argv[1] + "/" + name + ".error", "w").write(str(error))
"""


def _setup(sharding, **more):
    base = Setup(SHAPE, seq=64, micro_batch=2, parallel=Parallel(dp=WORLD, sharding=sharding))
    return asdict(base.but(**more))


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    jobs = {name: {"setup": _setup(name), "full": False} for name in ("ddp", "fsdp1", "fsdp2")}
    jobs["fsdp1_full"] = {"setup": _setup("fsdp1"), "full": True}
    jobs["tp"] = {"setup": _setup("none", tp=2), "full": False}
    environment = {**os.environ, "PYTHONPATH": str(PROBES)}
    command = [sys.executable, "-c", TRACE, str(folder)]
    subprocess.run(command, input=json.dumps(jobs), text=True, env=environment, check=True, capture_output=True)
    read = {name: eventlog.load(folder / name) for name in jobs if (folder / name).exists()}
    deep = {name: log if name.endswith("full") else deepen.deepen(log, SHAPE.layers) for name, log in read.items()}
    return deep, (folder / "tp.error").read_text()


def held(log, category):
    """Bytes of the storages of a category that are never freed."""
    kept = set(log.events[log.events > 0].tolist()) - set((-log.events[log.events < 0]).tolist())
    index = log.strings.index(category)
    return sum(int(log.bytes[one]) for one in kept if log.category[one] == index)


def test_ddp_holds_all_and_buckets_of_the_same_size(logs):
    log = logs[0]["ddp"]
    assert held(log, "weights") == pytest.approx(2 * PARAMETERS, rel=0.01)
    assert held(log, "communication") == 2 * PARAMETERS


@pytest.mark.parametrize("name", ["fsdp1", "fsdp2"])
def test_fsdp_holds_a_share_of_weights_and_states(logs, name):
    log = logs[0][name]
    assert held(log, "weights") == pytest.approx(2 * PARAMETERS / WORLD, rel=0.02)
    assert held(log, "optimizer") == pytest.approx(4 * PARAMETERS / WORLD, rel=0.02)


@pytest.mark.parametrize("name", ["fsdp1", "fsdp2"])
def test_weights_are_gathered_on_a_stream_of_their_own(logs, name):
    log = logs[0][name]
    gathered = log.category == log.strings.index("communication")
    assert gathered.any()
    assert len(set(log.stream[1:].tolist())) > 1


def test_sharding_needs_less_than_replicating(logs):
    peaks = {name: replay.peak(log).allocated for name, log in logs[0].items()}
    assert max(peaks["fsdp1"], peaks["fsdp2"]) < peaks["ddp"]


def test_four_layers_of_fsdp1_stand_for_all(logs):
    deep, full = (replay.peak(logs[0][name]).allocated for name in ("fsdp1", "fsdp1_full"))
    assert deep == pytest.approx(full, rel=0.01)


def test_what_is_not_traced_is_refused_in_words(logs):
    assert "TP is not traced" in logs[1]
