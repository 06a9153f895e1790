"""Findings about memory, on built records. All GPU records here are synthetic: no hardware was
seen.
"""

import re

import numpy as np
import pytest
from analysis_support import HOST, T0, Builder

from gputop_analysis.findings import evaluate

GIB = 1 << 30
CARD = {"device": "cuda:0", "device_memory_bytes": 80 * GIB}


def found(build, **options):
    """Findings of a record by id; each rests on a proof."""
    every = evaluate(build.open(), **options)
    assert all(one.proof is not None for one in every if one.id[:2] == "ME")
    return {one.id: one for one in every}


def gpu_run(path, ranks=1, steps=600, peak=60.0, reserved=None, growth=0.0, allocated_growth=0.0):
    """Synthetic: steps of 20 ms; sizes in GiB, growth in GiB a step."""
    build, random = Builder(path / "r"), np.random.default_rng(0)
    for rank in range(ranks):
        build.hello(rank, world_size=ranks, **CARD)
        high = peak[rank] if isinstance(peak, list) else peak
        for step in range(steps):
            now = high + growth * step + 0.2 * random.random()
            build.step(
                rank,
                forward=8,
                backward=12,
                peak_allocated_bytes=int(now * GIB),
                reserved_bytes=int((reserved or now + 1) * GIB),
                allocated_bytes=int(
                    (high / 3 + allocated_growth * step + 0.05 * random.random()) * GIB
                ),
            )
    return build


def allocator(build, steps, rank=0, **a_step):
    """Synthetic allocator events every 50 steps; counters grow by ``a_step`` each step."""
    for step in range(0, steps, 50):
        counters = {name: value * step for name, value in a_step.items()}
        build.event(
            "allocator", rank=rank, step=step, **{"device_allocs": 40, "retries": 0, **counters}
        )


def test_a_synthetic_gpu_with_room_and_no_growth_has_no_finding(tmp_path):
    build = gpu_run(tmp_path)
    allocator(build, 600)
    assert found(build) == {}


def test_out_of_memory_ahead_on_a_synthetic_growing_peak(tmp_path):
    ahead = found(gpu_run(tmp_path, growth=0.01))["ME01"]  # 0.5 GiB a second, 14 GiB left
    assert ahead.severity == "high" and "is full in" in ahead.title
    seconds = 14 / 0.5
    assert f"in {seconds:.0f} s" in ahead.title or f"in {seconds - 1:.0f} s" in ahead.title


def test_out_of_memory_ahead_on_a_synthetic_full_card(tmp_path):
    ahead = found(gpu_run(tmp_path, peak=77.5))["ME01"]
    assert ahead.severity == "medium"
    assert ahead.proof.value == pytest.approx(97.1, abs=0.2)


def test_a_leak_on_a_synthetic_gpu_takes_in_the_growing_peak(tmp_path):
    leak = found(gpu_run(tmp_path, growth=0.01, allocated_growth=0.01))["ME02"]
    assert leak.absorbed == ("ME01",)
    assert "leaks 10.7" in leak.title  # 0.01 GiB


def rss_run(path, rss_mib, steps=400):
    build = Builder(path / "r")
    build.hello(0)
    for step in range(steps):
        build.step(0, forward=8, backward=12, rss_bytes=int(rss_mib(step)) << 20)
    return build


def counts(build, tensors, with_graph=0, anonymous=1.0, **more):
    """Two counts by the guest, 150 steps apart; memory rises by 150 MiB between them."""
    for at, (step, rise) in enumerate(((100, 0), (250, 150))):
        build.event(
            "tensors",
            rank=0,
            pid=1,
            step=step,
            memory_bytes=(400 + rise) << 20,
            anonymous_bytes=int(300 + anonymous * rise) << 20,
            tensors=100 + at * tensors,
            with_graph=at * with_graph,
            **more,
        )


def test_resident_memory_that_grows_with_tensors_is_a_leak(tmp_path):
    build = rss_run(tmp_path, lambda step: 300 + step)
    counts(build, tensors=150, with_graph=150)
    leak = found(build)["ME02"]
    assert leak.absorbed == ("ME05",) and leak.severity == "high"
    assert "graphs are kept" in leak.title and "loss.item()" in leak.fix
    assert "250 tensors are alive, 100 were 150 steps before" in leak.evidence


def test_a_leak_through_one_tensor_that_keeps_all_graphs_has_its_name_and_line(tmp_path):
    build = rss_run(tmp_path, lambda step: 300 + step)
    chain = {"chain_nodes": 240, "chain_steps": 150, "chain_kept_as": "total"}
    counts(build, tensors=150, with_graph=150, **chain, chain_site="train.py:43")
    leak = found(build)["ME02"]
    assert leak.site == "train.py:43"
    assert "total is made from itself at train.py:43 and keeps all its graphs" in leak.evidence


@pytest.mark.parametrize(("kept_in", "ids"), [("reports", ["ME02"]), ("", [])])
def test_a_graph_kept_in_each_fourth_step_is_a_leak_where_its_container_is_known(
    tmp_path, kept_in, ids
):
    build = rss_run(tmp_path, lambda step: 300)
    memory = {"memory_bytes": 300 << 20, "anonymous_bytes": 200 << 20}
    pile = {"kept_in": kept_in, "kept_site": "train.py:8"} if kept_in else {}
    for step in (180, 280, 500):
        kept = {"tensors": 50 + step // 4, "with_graph": step // 4, **pile}
        build.event("tensors", rank=0, pid=1, step=step, **memory, **kept)
    leaks = found(build)
    assert list(leaks) == ids
    assert all(leak.site == "train.py:8" for leak in leaks.values())


def test_the_step_that_is_closed_as_the_process_ends_has_lost_its_memory(tmp_path):
    build = rss_run(tmp_path, lambda step: 300 + step * (step < 399))
    counts(build, tensors=150)
    assert "ME02" in found(build)


def test_resident_memory_that_grows_without_tensors_is_growth(tmp_path):
    build = rss_run(tmp_path, lambda step: 300 + step)
    counts(build, tensors=3)
    assert list(found(build)) == ["ME05"]


@pytest.mark.parametrize(("in_use", "severity"), [(5, "info"), (120, "medium"), (None, "medium")])
def test_freed_pieces_that_the_c_library_keeps_are_no_growth(tmp_path, in_use, severity):
    build = rss_run(tmp_path, lambda step: 300 + step)
    use = {}
    if in_use is not None:
        use = {"risen_bytes": 240 << 20, "in_use_bytes": in_use << 20}
    counts(build, tensors=3, **use)
    growth = found(build)["ME05"]
    assert growth.severity == severity
    assert ("little more of it is in use" in growth.title) is (severity == "info")


@pytest.mark.parametrize(("others_mib", "rank"), [(0.0, 0), (0.6, None), (1.0, None)])
def test_growth_is_of_one_rank_where_the_others_have_none(tmp_path, others_mib, rank):
    build = Builder(tmp_path / "r")
    for of_rank in (0, 1):
        build.hello(of_rank, pid=of_rank + 1, world_size=2)
    for step in range(400):
        for of_rank, a_step in enumerate((1.0, others_mib)):
            jitter = 30 * (step % 3 == 0) * (of_rank == 1)  # too unsteady to be sure
            rss = int(300 + a_step * step + jitter) << 20
            build.step(of_rank, forward=8, backward=12, rss_bytes=rss)
    growth = found(build)["ME05"]
    assert growth.rank == rank


@pytest.mark.parametrize(("in_use", "ids"), [(20, ["ME05"]), (100, ["ME02"])])
def test_tensors_of_a_moment_are_no_leak_where_little_is_in_use(tmp_path, in_use, ids):
    build = rss_run(tmp_path, lambda step: 300 + step)
    counts(build, tensors=60, risen_bytes=240 << 20, in_use_bytes=in_use << 20)
    told = found(build)
    assert list(told) == ids
    assert (told[ids[0]].severity == "info") is (in_use == 20)


@pytest.mark.parametrize(
    ("rss_mib", "in_use", "holder", "ids"),
    [
        (lambda step: 300 + 0.1 * step, (10, 30), {"kept_in": "pool"}, ["ME02"]),
        (lambda step: 300 + 0.1 * step, (10, 30), {"grown_in": "seen"}, ["ME05"]),
        (lambda step: 300 + 0.1 * step, (10, 30), {}, []),  # nobody knows what it is
        (lambda step: 300 + 0.1 * step, (10, 14), {"kept_in": "pool"}, []),  # little
        (lambda step: 300 + 0.1 * min(step, 250), (10, 30), {"kept_in": "pool"}, []),  # full
        (lambda step: 300 + 0.1 * step, (30, 10), {"kept_in": "pool"}, []),  # it shrinks
    ],
)
def test_a_pile_with_a_name_is_told_early(tmp_path, rss_mib, in_use, holder, ids):
    build = rss_run(tmp_path, rss_mib)
    for step, more in zip((100, 250), in_use, strict=True):
        rss = int(rss_mib(step)) << 20
        places = {key.replace("_in", "_site"): "train.py:31" for key in holder}
        build.event(
            "tensors",
            rank=0,
            pid=1,
            step=step,
            memory_bytes=rss,
            anonymous_bytes=rss,
            tensors=100,
            with_graph=0,
            risen_bytes=more << 20,
            in_use_bytes=more << 20,
            **holder,
            **places,
        )
    told = found(build)
    assert list(told) == ids
    assert all(one.site == "train.py:31" and one.severity == "medium" for one in told.values())


def test_pages_of_a_mapped_file_are_no_growth(tmp_path):
    build = rss_run(tmp_path, lambda step: 300 + step)
    counts(build, tensors=3, anonymous=0.1)
    assert found(build) == {}


@pytest.mark.parametrize(
    "rss_mib",
    [
        lambda step: 300 + 200 * (1 - np.exp(-step / 40)),  # a cache that fills
        lambda step: 300 + 80 * (step % 7 == 0),  # noise
        lambda step: 300 + 150 * (step > 100),  # one buffer
        lambda step: 300 + 0.05 * step,  # too little
        lambda step: 380 + 0.03 * step + 60 * (step > 260),  # a profile that was asked for
    ],
)
def test_memory_that_comes_to_rest_is_no_growth(tmp_path, rss_mib):
    build = rss_run(tmp_path, rss_mib)
    counts(build, tensors=150)
    assert found(build) == {}


def test_a_buffer_that_fills_in_slow_first_steps_is_no_growth(tmp_path):
    build = Builder(tmp_path)
    build.hello()
    for step in range(200):
        build.step(forward=200 if step < 60 else 20, rss_bytes=int(300 + 3 * min(step, 60)) << 20)
    assert found(build) == {}


def test_fragmentation_on_a_synthetic_gpu(tmp_path):
    build = gpu_run(tmp_path, peak=45.0, reserved=74.0)
    allocator(build, 600)
    assert "ME03" not in found(build)
    build.event(
        "allocator", rank=0, step=599, device_allocs=40, retries=3, inactive_split_bytes=20 * GIB
    )
    torn = found(build)["ME03"]
    assert torn.severity == "medium" and "28.8 GiB" in torn.title


def test_empty_cache_in_each_step_of_a_synthetic_gpu(tmp_path):
    build = gpu_run(tmp_path)
    churn = {"device_allocs": 12.0, "empty_cache_calls": 1.0, "empty_cache_ms": 0.9}
    allocator(build, 600, **churn)
    last = {name: value * 600 for name, value in churn.items()}
    build.event("allocator", rank=0, step=600, **last, empty_cache_site="train.py:7 loop")
    flushed = found(build)["ME04"]
    assert flushed.site == "train.py:7 loop"
    assert flushed.recoverable_ms_per_step == pytest.approx(0.9)
    assert "empty_cache() is called 1 times a step" in flushed.title


def test_changing_shapes_on_a_synthetic_gpu_ask_the_driver(tmp_path):
    build = gpu_run(tmp_path)
    allocator(build, 600, device_allocs=0.5)
    churn = found(build)["ME04"]
    assert churn.recoverable_ms_per_step is None and churn.title.startswith(
        "the driver is asked for memory 0.5 times"
    )


def test_one_synthetic_rank_fuller_than_the_others(tmp_path):
    uneven = found(gpu_run(tmp_path, ranks=4, steps=150, peak=[40.0, 40.0, 65.0, 41.0]))["ME06"]
    assert uneven.rank == 2
    assert uneven.proof.value == pytest.approx(65.2 / 40.2, abs=0.05)


def test_alike_synthetic_ranks_are_no_finding(tmp_path):
    assert found(gpu_run(tmp_path, ranks=4, steps=150, peak=[60.0, 63.0, 65.0, 61.0])) == {}


def test_a_foreign_process_on_a_synthetic_gpu(tmp_path):
    build = gpu_run(tmp_path)
    build.state["gpus"] = [
        {"index": 0, "name": "H", "ours": True},
        {"index": 1, "name": "H", "ours": False},
    ]
    build.writer.write_state(build.state)
    for tick in range(24):
        for index, foreign in ((0, 3 * GIB), (1, 9 * GIB)):
            build.sample(
                "gpu", t_ns=T0 + tick * 500_000_000, index=index, memory_foreign_bytes=foreign
            )
    (foreign,) = [one for one in evaluate(build.open()) if one.id == "ME07"]
    assert (foreign.gpu, foreign.host) == (0, HOST) and "3.0 GiB" in foreign.title


def test_a_synthetic_gpu_that_hides_other_processes_is_not_judged(tmp_path):
    build = gpu_run(tmp_path)
    build.state["gpus"] = [{"index": 0, "name": "H", "ours": True}]
    build.writer.write_state(build.state)
    for tick in range(24):
        build.sample("gpu", t_ns=T0 + tick * 500_000_000, index=0, memory_foreign_bytes=-1)
    assert found(build) == {}


def test_unused_memory_of_a_synthetic_gpu_is_told_late_and_as_info(tmp_path):
    assert found(gpu_run(tmp_path / "a", peak=20.0, steps=400)) == {}
    assert found(gpu_run(tmp_path / "b", peak=20.0, steps=600))["ME08"].severity == "info"


def looks(build, count=4, **fields):
    for at in range(count):
        build.event("checkup", rank=0, pid=1, step=20 * (at + 1), alike=at + 1, **fields)


def test_gradients_kept_matter_on_a_full_synthetic_card(tmp_path):
    for peak, severity in ((60.0, "info"), (70.0, "medium")):
        build = gpu_run(tmp_path / severity, peak=peak)
        looks(build, held_bytes=14 * GIB, stale=False)
        assert found(build)["ME09"].severity == severity


def test_few_gradients_kept_are_no_finding(tmp_path):
    build = gpu_run(tmp_path)
    looks(build, held_bytes=GIB, stale=False)
    assert found(build) == {}


def test_graphs_in_evaluation(tmp_path):
    build = gpu_run(tmp_path)
    build.event("hello_update", rank=0, graph_eval={"forwards": 2, "ms": 80.0})
    assert found(build) == {}
    build.event("hello_update", rank=0, graph_eval={"forwards": 40, "ms": 800.0})
    graphs = found(build)["ME10"]
    assert graphs.severity == "medium" and "40 forwards" in graphs.title


LOADER = {"num_workers": 2, "site": "train.py:41", "dataset": "Rows"}


EACH_HALF_SECOND = tuple(tick * 0.5 for tick in range(24))
FAR_APART = (0.0, 1.5, 2.4, 4.0, 5.1, 6.6, 8.6, 10.2, 12.1, 13.7)


def of_workers(build, mb_per_s, at=EACH_HALF_SECOND, count=2, start_mb=180.0, **fields):
    """What each worker says of its own memory, ``at`` so many seconds."""
    for worker in range(count):
        slope = mb_per_s[worker] if isinstance(mb_per_s, list) else mb_per_s
        of_worker(build, worker, at, [start_mb + slope * second for second in at], **fields)


def of_worker(build, worker, at, sizes_mb, **fields):
    """What one says, ``at`` so many seconds."""
    build.event(
        "loader_worker",
        rank=0,
        pid=500 + worker,
        parent=100,
        worker=worker,
        looks=9,
        memory_ns=[T0 + int(second * 1e9) for second in at],
        memory_bytes=[int(size_mb * 1e6) for size_mb in sizes_mb],
        **fields,
    )


@pytest.mark.parametrize("at", [EACH_HALF_SECOND, FAR_APART], ids=["close", "far apart"])
def test_memory_that_grows_in_each_worker_is_told_for_all_of_them(tmp_path, at):
    build = Builder(tmp_path / "r", cpu_count=16)
    build.hello(dataloader=LOADER)
    build.steps(600, forward=8.0, backward=12.0)
    of_workers(build, mb_per_s=5.0, at=at)
    growth = found(build)["ME05"]
    told = re.match(r"the memory of the loader's 2 workers grows by (\d+) MB", growth.title)
    assert told and int(told[1]) == pytest.approx(600, rel=0.1), growth.title
    assert growth.site == LOADER["site"]
    assert "reads Rows" in growth.evidence


def test_what_grows_in_each_worker_is_named(tmp_path):
    build = Builder(tmp_path / "r", cpu_count=16)
    build.hello(dataloader=LOADER)
    build.steps(600, forward=8.0, backward=12.0)
    of_workers(build, mb_per_s=5.0, grown_in="cache", grown_site="rows.py:9")
    growth = found(build)["ME05"]
    assert growth.site == "rows.py:9" and "keep less in cache" in growth.fix
    assert "; cache gets longer by as much" in growth.evidence


@pytest.mark.parametrize(
    "mb_per_s",
    [0.3, [5.0, 0.0], 0.0],
    ids=["little", "one worker of two", "none"],
)
def test_workers_that_keep_nothing_are_not_told(tmp_path, mb_per_s):
    build = Builder(tmp_path / "r", cpu_count=16)
    build.hello(dataloader=LOADER)
    build.steps(600, forward=8.0, backward=12.0)
    of_workers(build, mb_per_s)
    assert "ME05" not in found(build)


def test_few_readings_of_workers_say_nothing(tmp_path):
    build = Builder(tmp_path / "r", cpu_count=16)
    build.hello(dataloader=LOADER)
    build.steps(600, forward=8.0, backward=12.0)
    of_workers(build, mb_per_s=50.0, at=EACH_HALF_SECOND[:6])
    assert "ME05" not in found(build)


@pytest.mark.parametrize(
    ("mb_per_s", "named", "said"), [(15.0, True, True), (15.0, False, False), (2.0, True, False)]
)
def test_of_few_readings_what_grows_by_a_name_is_told(tmp_path, mb_per_s, named, said):
    build = Builder(tmp_path / "r", cpu_count=16)
    build.hello(dataloader=LOADER)
    build.steps(600, forward=8.0, backward=12.0)
    fields = {"grown_in": "cache", "grown_site": "rows.py:9"} if named else {}
    of_workers(build, mb_per_s, at=EACH_HALF_SECOND[:6], **fields)
    assert ("ME05" in found(build)) == said


def test_a_cache_of_workers_that_is_full_is_none(tmp_path):
    build = Builder(tmp_path / "r", cpu_count=16)
    build.hello(dataloader=LOADER)
    build.steps(600, forward=8.0, backward=12.0)
    for worker in range(2):
        of_worker(build, worker, range(6), (90, 100, 160, 170, 170.1, 170.2), grown_in="cache")
    assert "ME05" not in found(build)


def test_where_the_collector_is_off_cycles_are_what_grows(tmp_path):
    build = rss_run(tmp_path, lambda step: 300 + step)
    for step, rise in ((100, 0), (250, 150)):
        sizes = {"memory_bytes": (400 + rise) << 20, "anonymous_bytes": (300 + rise) << 20}
        off = {"gc_off": True, "gc_off_at": "train.py:9"}
        counted = {"tensors": 100 + rise, "with_graph": 0}
        build.event("tensors", rank=0, pid=1, step=step, **sizes, **counted, **off)
    leak = found(build)["ME02"]
    assert leak.site == "train.py:9" and leak.fix.startswith("call gc.collect()")
    assert "garbage collector is switched off at train.py:9" in leak.evidence
