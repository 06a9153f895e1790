"""What is advised can help: no option whose condition fails, no promise beyond what it
can change.
"""

import itertools
import re
from dataclasses import replace

import pytest
from analysis_support import T0, Builder

from gputop_agent import wire
from gputop_analysis.findings import CATALOGUE, cores, evaluate
from gputop_analysis.findings.advice import MovedSetting, Option, offered
from gputop_analysis.findings.levers import settled
from gputop_analysis.model import Finding
from gputop_analysis.view import RunView
from gputop_probes.record.layout import PROCESS_RANK, PROCESS_WORKER

LOADER = {
    "num_workers": 0,
    "batch_size": 8,
    "dataset": "Rows",
    "site": "train.py:12",
    "loop": "train.py:40",
    "inside": [],
    "collate_fn": "default_collate",
    "iterable": False,
}
TRAINERS = {"": [], "transformers": ["accelerate", "transformers"], "lightning": ["lightning"]}

# What a reader must have for these words to mean anything to him: written apart from the table that
# is tested.
NEEDS_GPU = re.compile(
    r"cuda|cudnn|nvidia|TF32|\bGPU(?!top)|NCCL|channels_last|non_blocking|expandable|pin_memory=True",
    re.I,
)
NEEDS_RANKS = re.compile(
    r"DistributedSampler|no_sync|bucket_cap|comm_hook|all ranks|each rank|fewer ranks|FSDP"
)
NEEDS_MAP_STYLE = re.compile(r"[Ss]ampler\b|group (samples|by)|batch sampler|group_by_length")
RAW_CODE = re.compile(
    r"in the DataLoader at|optimizer\.zero_grad|loss\.backward|model\.no_sync|scheduler\.step\(\)"
)
OF_TRANSFORMERS = re.compile(r"TrainingArguments|dataloader_")
OF_LIGHTNING = re.compile(r"Trainer\((?!Net)")


def finished(build: Builder) -> list[Finding]:
    build.end()
    return evaluate(build.open())


def sick(path, *, gpu: bool, ranks: int, trainer: str, iterable: bool, workers: int) -> Builder:
    """A run with many things wrong at once: late batches, long evaluations, checkpoints, jumps of
    the loss, padding.
    """
    build = Builder(path, cpu_count=8)
    site = None if trainer == "transformers" else "train.py:12"
    loader = {
        **LOADER,
        "inside": TRAINERS[trainer],
        "iterable": iterable,
        "num_workers": workers,
        "site": site,
    }
    for rank in range(ranks):
        build.hello(
            rank,
            world_size=ranks,
            device="cuda" if gpu else "cpu",
            device_capability="8.0" if gpu else None,
            device_memory_bytes=80 << 30 if gpu else None,
            dataloader={**loader, "pin_memory": False},
            batch={"shapes": {"0": [8, 512]}, "dtypes": {"0": "int64"}, "pinned": False},
            optimizer={
                "class": "AdamW",
                "module": "torch",
                "foreach": False,
                "fused": False,
                "tensors": 90,
            },
            flags={
                "seed": 3,
                "cudnn_benchmark": True,
                "deterministic": False,
                "matmul_precision": "highest",
            },
            amp={"autocast": False, "dtype": None, "grad_scaler": False},
            model={
                "by_dtype": {"float32": 10_000},
                "trainable": 10_000,
                "modules": {"Linear": 4, "Conv2d": 3},
            },
            shapes={"batches": 90, "distinct": 60, "examples": [[8, 512]]},
            parallel={"backend": "nccl" if gpu else "gloo", "ddp": {}} if ranks > 1 else {},
            threads={"torch": 1},
            libraries={"transformers": "5.1.0", "lightning": "2.6.0"},
            torch="2.9.0",
        )
        build.event("padding", rank=rank, batches=20, places=20_000, tokens=8_000)
        for step in range(260):
            odd = {"flags": wire.F_CHECKPOINT} if step % 20 == 19 else {}
            build.step(
                rank,
                wait_ms=8.0 if ranks > 1 else None,
                data=12.0,
                forward=6.0,
                backward=9.0,
                optimizer=6.0,
                other=9.0,
                eval=60.0 if step % 10 == 9 else 0.0,
                checkpoint=150.0 if odd else 0.0,
                gc_ns=1_000_000,
                loss=float("nan")
                if step > 250
                else 50.0
                if step == 200
                else 2.0 + 0.01 * (step % 7),
                loss_max=50.0 if step == 200 else 2.0,
                grad_norm=60.0 if step > 100 else 20.0,
                samples=8,
                micro_batches=1,
                optimizer_steps=1,
                **odd,
            )
    return build


KINDS = [
    {"gpu": gpu, "ranks": ranks, "trainer": trainer, "iterable": iterable, "workers": workers}
    for gpu, ranks, trainer, iterable, workers in itertools.product(
        (False, True), (1, 3), TRAINERS, (False, True), (0, 2)
    )
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: "-".join(str(v) for v in k.values()))
def test_no_fix_presupposes_what_the_run_has_not(tmp_path, kind):
    found = finished(sick(tmp_path / "r", **kind))
    assert len(found) >= 5
    for one in found:
        words = f"{one.id}: {one.fix}"
        if one.fix.startswith("no setting is known"):  # says what is missing
            continue
        assert kind["gpu"] or not NEEDS_GPU.search(one.fix), words
        assert kind["ranks"] > 1 or not NEEDS_RANKS.search(one.fix), words
        assert not kind["iterable"] or not NEEDS_MAP_STYLE.search(one.fix), words
        assert not kind["trainer"] or not (
            kind["trainer"] == "transformers" and RAW_CODE.search(one.fix)
        ), words
        assert kind["trainer"] == "transformers" or not OF_TRANSFORMERS.search(one.fix), words
        assert kind["trainer"] == "lightning" or not OF_LIGHTNING.search(one.fix), words
        assert "group_by_length=True" not in one.fix, words  # transformers 5 has no such argument
        assert "train.py:40" not in (one.site or "") + one.fix, (
            words
        )  # the loop; a loader is mended where it is built


@pytest.mark.parametrize("kind", KINDS[::5], ids=lambda k: "-".join(str(v) for v in k.values()))
def test_whatever_a_finding_offers_has_its_conditions(tmp_path, kind):
    """Each finding's general fix under each kind of run: what was offered, is offered again."""
    view = RunView(sick(tmp_path / "r", **kind).open())
    for spec in CATALOGUE.values():
        made = spec.make(
            severity="medium",
            title="t",
            evidence="e",
            fix=[spec.fix, Option("always", last=True)],
            recoverable_ms_per_step=4.0,
        )
        once = offered(view, made)
        assert offered(view, once).options == once.options
        assert once.fix


def test_a_promise_is_bounded_by_what_the_options_can_change(tmp_path):
    view = RunView(sick(tmp_path / "r", **KINDS[0]).open())
    spec = CATALOGUE["IN01"]

    def promised(*options: Option):
        made = spec.make(
            severity="high",
            title="t",
            evidence="e",
            fix=options,
            recoverable_ms_per_step=10.0,
            interval_ms_per_step=(8.0, 12.0),
        )
        one = offered(view, made)
        return one.recoverable_ms_per_step, one.interval_ms_per_step, one.severity

    assert promised(Option("a"), Option("b", wins_ms=3.0)) == (10.0, (8.0, 12.0), "high")
    assert promised(Option("b", wins_ms=3.0), Option("c", wins_ms=5.0)) == (5.0, (4.0, 6.0), "high")
    assert promised(Option("b", wins_ms=3.0), Option("perhaps", promises=False))[0] == 3.0
    assert promised(Option("perhaps", promises=False)) == (None, None, "high")
    assert promised(Option("too little", wins_ms=0.1)) == (0.0, (0.0, 0.0), "info")
    assert promised(Option("cudnn.benchmark")) == (0.0, (0.0, 0.0), "info")


def test_what_is_wrong_and_not_slow_keeps_its_advice(tmp_path):
    """On a CPU too, where its words mention a GPU; time can be won by nothing there."""
    view = RunView(sick(tmp_path / "r", **KINDS[0]).open())
    options = (Option("look at the data, or allow TF32"),)
    wrong = CATALOGUE["NU10"].make(severity="medium", title="t", evidence="e", fix=options)
    assert offered(view, wrong).fix == options[0].text
    slow = CATALOGUE["CE02"].make(
        severity="medium", title="t", evidence="e", fix=options, recoverable_ms_per_step=5.0
    )
    assert offered(view, slow).fix.startswith("no setting is known")


def exposed(tmp_path, *, cores, parameters, threads=1, ranks=3, wait=8.0):
    build = Builder(tmp_path / "r", cpu_count=cores)
    for rank in range(ranks):
        parallel = {"backend": "gloo", "ddp": {}}
        model = {"trainable": parameters}
        build.hello(
            rank, world_size=ranks, threads={"torch": threads}, parallel=parallel, model=model
        )
        for _ in range(200):
            build.step(rank, wait_ms=wait, forward=4.0, backward=9.0, optimizer=1.0)
    return {one.id: one for one in finished(build)}["CR06"]


def test_a_small_model_on_few_cores_waits_for_cores_and_not_for_bytes(tmp_path):
    one = exposed(tmp_path, cores=2, parameters=4_250)
    assert "17 kB" in one.evidence
    assert one.fix.startswith(
        "start at most 2 ranks here: 3 ranks with 1 busy thread each share 2 cores"
    )
    assert not re.search("bf16|bucket|compress", one.fix)


def test_a_small_model_with_enough_cores_waits_for_something_else(tmp_path):
    one = exposed(tmp_path, cores=16, parameters=4_250)
    assert one.fix.startswith(
        "look at the way of the messages: the network interface (GLOO_SOCKET_IFNAME)"
    )
    assert not re.search("bf16|bucket|ranks here", one.fix)


def test_a_large_model_sends_less_or_earlier(tmp_path):
    one = exposed(tmp_path, cores=16, parameters=50_000_000)
    assert "bf16_compress_hook" in one.fix and "bucket_cap_mb" in one.fix
    assert "GLOO_SOCKET_IFNAME" not in one.fix


def busy(
    build: Builder,
    *,
    machine_pct: float,
    rank_cores: float,
    worker_cores: float = 0.0,
    waits: float = 0.0,
):
    """Ten seconds of samples of the machine, the rank and its workers."""
    for tick in range(21):
        build.sample("host", t_ns=T0 + tick * 5 * 10**8, cpu_pct=machine_pct, cpu_count=2)
        used = int(tick * 5e8)
        for pid, kind, part in (
            (100, PROCESS_RANK, rank_cores),
            (200, PROCESS_WORKER, worker_cores),
        ):
            build.sample(
                "process",
                t_ns=T0 + tick * 5 * 10**8,
                pid=pid,
                rank=0,
                kind=kind,
                cpu_ns_total=int(part * used),
                thread_cpu_ns_total=int(part * used),
                run_wait_ns_total=int(waits * used) if kind == PROCESS_RANK else 0,
            )


def late(tmp_path, *, loader=LOADER, machine_pct=50.0, rank_cores=0.95, spinner_cores=1.4, **load):
    build = Builder(tmp_path / "r", cpu_count=2)
    build.hello(0, dataloader=loader, threads={"torch": 1})
    spinner = {"pid": 7, "name": "spinner", "cores": spinner_cores}
    build.event("neighbours", host="box", processes=[spinner])
    build.steps(300, data=20.0, forward=5.0, backward=10.0)
    busy(build, machine_pct=machine_pct, rank_cores=rank_cores, **load)
    return {one.id: one for one in finished(build)}


def test_workers_are_promised_what_the_cores_can_compute(tmp_path):
    quiet = late(tmp_path / "a", machine_pct=50.0)["IN02"]
    assert "num_workers=2" in quiet.fix
    assert quiet.recoverable_ms_per_step == pytest.approx(
        35 - 33.25 / 2 - 1, rel=0.1
    )  # 33 ms of work on two cores
    crowded = late(tmp_path / "b", machine_pct=100.0, rank_cores=0.3, waits=0.7)
    assert (
        crowded["IN02"].recoverable_ms_per_step is None
        or crowded["IN02"].recoverable_ms_per_step < 17
    )


def spinning(tmp_path, *, device, cores, threads, data_ms):
    """A loader without workers, and torch's threads that keep every core busy all of the time."""
    build = Builder(tmp_path / "r", cpu_count=cores)
    build.hello(0, device=device, dataloader=LOADER, threads={"torch": threads})
    build.steps(400, data=data_ms, forward=5.0, backward=10.0)
    for tick in range(21):
        used = tick * 5 * 10**8
        build.sample("host", t_ns=T0 + used, cpu_pct=100.0, cpu_count=cores)
        build.sample(
            "process",
            t_ns=T0 + used,
            pid=100,
            rank=0,
            kind=PROCESS_RANK,
            cpu_ns_total=cores * used,
            thread_cpu_ns_total=used,
            run_wait_ns_total=0,
        )
    return {one.id: one for one in finished(build)}["IN02"]


@pytest.mark.parametrize(("device", "least_ms"), [("cuda:0", 8.0), ("cpu", 7.0)])
def test_threads_that_wait_in_a_loop_are_no_lack_of_cores(tmp_path, device, least_ms):
    """While a batch is made one thread works, beside a GPU always; the others wait for it."""
    loader = spinning(tmp_path, device=device, cores=16, threads=16, data_ms=10.0)
    assert "num_workers=2" in loader.fix
    assert "no free core" not in loader.fix
    assert least_ms < loader.recoverable_ms_per_step < 10.0


def test_cores_that_torchs_threads_use_may_hold_work_or_not(tmp_path):
    """More threads than cores: how much of what they use computes is not in the record."""
    loader = spinning(tmp_path, device="cpu", cores=2, threads=4, data_ms=5.0)
    assert "no free core" not in loader.fix
    assert "fewer of torch's 4 threads" in loader.fix
    assert loader.recoverable_ms_per_step is None


def test_programs_outside_the_run_are_blamed_and_not_the_workers(tmp_path):
    one = late(
        tmp_path, loader={**LOADER, "num_workers": 2}, machine_pct=100.0, rank_cores=0.3, waits=0.7
    )["IN04"]
    assert one.fix.startswith("end what runs beside this (1.7 cores, most of them by spinner)")
    assert (
        "num_workers from" not in one.fix
        and "programs outside the run 1.7 (spinner 1.4)" in one.evidence
    )
    less = late(tmp_path / "less", machine_pct=100.0, rank_cores=0.3, waits=0.7, spinner_cores=0.5)[
        "IN04"
    ]
    assert less.fix.startswith("end what runs beside this (1.7 cores, spinner 0.5 of them)")


@pytest.mark.parametrize(
    ("rank_cores", "fix"),
    [(1.9, "nothing but more cores helps"), (1.5, "something uses the cores for moments")],
)
def test_a_run_that_fills_the_cores_itself_is_not_sent_to_look_for_others(
    tmp_path, rank_cores, fix
):
    """Two ranks of one thread and a worker each on two cores: nothing takes too much."""
    build = Builder(tmp_path / "r", cpu_count=2)
    build.hello(0, dataloader={**LOADER, "num_workers": 1}, threads={"torch": 1})
    build.steps(300, forward=15.0, backward=20.0)
    busy(build, machine_pct=50.0 * (rank_cores + 0.1), rank_cores=rank_cores, waits=0.2)
    only = {one.id: one for one in finished(build)}["IN04"]
    assert only.fix.startswith(fix)


@pytest.mark.parametrize(
    ("worker_cores", "fix"),
    [
        (0.5, "lower num_workers from 6 to 1"),
        (1.5, "make what the dataset and its transforms do for a batch cheaper"),
    ],
    ids=["one keeps up", "one is too slow"],
)
def test_the_workers_are_blamed_where_they_take_the_cores(tmp_path, worker_cores, fix):
    load = {"machine_pct": 100.0, "rank_cores": 1.8 - worker_cores, "worker_cores": worker_cores}
    load["waits"] = 0.45
    build = Builder(tmp_path / "r", cpu_count=2)
    build.hello(0, dataloader={**LOADER, "num_workers": 6}, threads={"torch": 1})
    build.steps(300, forward=15.0, backward=20.0)
    busy(build, **load)
    one = {one.id: one for one in finished(build)}["IN04"]
    assert one.fix.startswith(fix)
    assert "outside the run 0.2" in one.evidence


def of(id: str, lever: MovedSetting | None, ms: float | None, **more) -> Finding:
    options = (Option(f"{id} moves it", lever=lever), Option(f"{id} besides"))
    return Finding(
        id, id, "medium", id, "e", "f", options=options, recoverable_ms_per_step=ms, **more
    )


def test_findings_that_pull_one_lever_apart_become_one():
    up, down = (
        of("IN02", MovedSetting("num_workers", 1), 9.0),
        of("IN04", MovedSetting("num_workers", -1), 2.0),
    )
    (one,) = settled([down, up])
    assert one.id == "IN02" and one.absorbed == ("IN04",)
    assert one.fix == "IN02 moves it; IN02 besides; IN04 besides"
    (one,) = settled([up, replace(down, recoverable_ms_per_step=20.0)])
    assert one.id == "IN04" and "IN02 would ask for the opposite of num_workers" in one.evidence
    same = of("IN04", MovedSetting("num_workers", 1), 2.0)
    assert settled([up, same]) == [up, same]
    elsewhere = replace(down, rank=1)
    assert settled([replace(up, rank=0), elsewhere]) == [replace(up, rank=0), elsewhere]
    other = of("HO14", MovedSetting("torch threads", -1), 2.0)
    assert settled([up, other]) == [up, other]


def test_a_danger_decides_before_time():
    larger, smaller = (
        of("CE04", MovedSetting("batch", 1), 9.0),
        of("ME01", MovedSetting("batch", -1), None),
    )
    (one,) = settled([larger, replace(smaller, severity="high")])
    assert one.id == "ME01"


def test_cores_are_shared_thread_by_thread(tmp_path):
    build = Builder(tmp_path / "r", cpu_count=2)
    build.hello(0, dataloader=LOADER)
    build.steps(300, forward=15.0, backward=20.0)
    busy(build, machine_pct=100.0, rank_cores=0.5, waits=0.5)
    view = RunView(build.open())
    assert cores.foreign_cores(view, "box") == pytest.approx(1.5, abs=0.05)
    assert cores.own_cores(view, 0, 1) == pytest.approx(
        0.5, abs=0.03
    )  # 2 cores, 4 threads want them
    assert cores.own_cores(view, 0, 3) == pytest.approx(1.0, abs=0.05)


def test_every_finding_says_when_its_fix_cannot_help():
    assert [spec.id for spec in CATALOGUE.values() if not spec.no_use] == []


def test_a_loader_whose_place_was_not_seen_is_named_without_one(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello(dataloader={"num_workers": 0, "batch_size": 8})
    build.steps(150, data=30, forward=2, backward=3, optimizer=1)
    told = next(one for one in evaluate(build.open()) if one.id in ("IN01", "IN02"))
    words = told.evidence + told.fix
    assert "DataLoader" in words
    assert "not seen" not in words and "  " not in words
