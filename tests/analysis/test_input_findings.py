"""Input and resource findings on built records: each fires on what shows it and stays silent where
it must.

Those that need a GPU, a second socket or a nearly full /dev/shm are synthetic here: no such machine
made the records.
"""

from typing import Any

import numpy as np
import pytest
from analysis_support import HOST, T0, Builder, pack

from gputop_analysis.findings import evaluate
from gputop_analysis.findings.input.loader_looks import surely
from gputop_analysis.report.words import speed
from gputop_analysis.summary import summarise
from gputop_probes.record.layout import PROCESS_RANK, PROCESS_WORKER

LOADER = {
    "num_workers": 2,
    "site": "train.py:41",
    "batch_size": 8,
    "dataset": "Rows",
    "collate_fn": "pad",
}
SAME = {name: LOADER[name] for name in ("num_workers", "batch_size", "dataset")}


def found(build) -> dict[str, Any]:
    return {one.id: one for one in evaluate(build.open())}


def waiting(tmp_path, data=12.0, loader=LOADER, steps=200, **hello):
    """A run that waits ``data`` milliseconds a step for its batches."""
    build = Builder(tmp_path / "r", cpu_count=16)
    build.hello(dataloader=loader, **hello)
    build.steps(steps, forward=6.0, backward=6.0, data=data)
    return build


def looks(build, rank=0, **counts):
    given = {
        "looks": 60,
        "empty": 0,
        "fetching": 0,
        "behind": 0,
        "unpacking": 0,
        "states": {},
        "waited_for": [],
    }
    build.event("loader", rank=rank, **{**SAME, **given, "epochs": 0, "epoch_starts": [], **counts})


def workers(build, cpu=0.1, state="S", read_per_s=0.0, count=2, seconds=4, resting=0):
    for tick in range(seconds + 1):
        for pid in range(count + resting):
            build.sample(
                "process",
                t_ns=T0 + tick * 10**9,
                cpu_ns_total=int(cpu * tick * 1e9) if pid < count else tick,
                read_bytes_total=int(read_per_s * tick),
                pid=500 + pid,
                rank=0,
                kind=PROCESS_WORKER,
                state=ord(state),
            )


def host(build, seconds=4, **columns):
    """One sample a second; a pair is a counter's start and growth a second."""
    for tick in range(seconds + 1):
        values = {k: v[0] + v[1] * tick if isinstance(v, tuple) else v for k, v in columns.items()}
        build.sample("host", t_ns=T0 + tick * 10**9, **values)


def of_rank(build, seconds=4, **columns):
    for tick in range(2 * seconds + 1):
        values = {
            k: int(v[0] + v[1] * tick / 2) if isinstance(v, tuple) else v
            for k, v in columns.items()
        }
        build.sample(
            "process", t_ns=T0 + tick * 5 * 10**8, pid=100, rank=0, kind=PROCESS_RANK, **values
        )


@pytest.mark.parametrize(
    ("data_ms", "queued", "severity", "said"),
    [
        (4.0, 0.0, "medium", "set num_workers="),
        (2.0, 0.0, "info", "take whole batches"),
        (9.0, 0.75, "medium", "take whole batches"),
        (4.0, 0.5, "info", "take whole batches"),
        (1.5, 0.5, None, ""),
    ],
)
def test_batches_that_a_worker_could_not_hand_over_faster(
    tmp_path, data_ms, queued, severity, said
):
    build = waiting(tmp_path, data=data_ms, loader={**LOADER, "num_workers": 0})
    of_rank(build, run_wait_ns_total=(0, queued * 1e9), seconds=3)
    only = found(build).get("IN02")
    assert (
        (only.severity, only.fix.startswith(said)) == (severity, True) if severity else only is None
    )


def test_busy_workers_are_too_few(tmp_path):
    build = waiting(tmp_path)
    looks(build, empty=55, fetching=30, states={"R": 28})
    workers(build, cpu=0.97)
    only = found(build)
    assert only["IN03"].absorbed == ("IN01",)
    assert only["IN03"].recoverable_ms_per_step == pytest.approx(12, rel=0.05)
    assert only["IN03"].fix.startswith("raise num_workers from 2 to 4")
    assert only["IN03"].proof.value > only["IN03"].proof.threshold


@pytest.mark.parametrize("resting", [2, 0])
def test_workers_of_an_evaluation_that_rest_do_not_count(tmp_path, resting):
    build = waiting(tmp_path)
    looks(build, empty=55, fetching=30, states={"R": 28})
    workers(build, cpu=0.97, resting=resting)
    assert "its workers use 97 % of a core each" in found(build)["IN03"].evidence


@pytest.mark.parametrize(
    ("cpu", "counts"),
    [(0.2, {"empty": 55}), (0.97, {"empty": 3}), (0.97, {"empty": 5, "looks": 8})],
    ids=["idle workers", "batches lie ready", "too few looks"],
)
def test_the_workers_are_not_to_blame(tmp_path, cpu, counts):
    build = waiting(tmp_path)
    looks(build, **counts)
    workers(build, cpu=cpu)
    assert "IN03" not in found(build)
    assert "IN01" in found(build)


def test_without_looks_or_samples_only_the_wait_is_told(tmp_path):
    assert set(found(waiting(tmp_path))) == {"IN01"}


def test_looks_at_another_loader_do_not_count(tmp_path):
    build = waiting(tmp_path)
    build.event(
        "loader",
        rank=0,
        **{**SAME, "dataset": "Validation"},
        looks=60,
        empty=60,
        fetching=40,
        behind=40,
    )
    workers(build, cpu=0.97)
    assert set(found(build)) == {"IN01"}


def test_ready_batches_behind_one_slow_worker(tmp_path):
    build = waiting(tmp_path)
    looks(
        build,
        fetching=40,
        behind=36,
        waited_for=[{"worker": 1, "looks": 35}, {"worker": 0, "looks": 1}],
    )
    blocked = found(build)["IN06"]
    assert "worker 1 of 2" in blocked.title
    assert "in_order=False" in blocked.fix
    assert blocked.recoverable_ms_per_step == pytest.approx(12 * 0.9, rel=0.05)
    low, high = blocked.interval_ms_per_step
    assert low <= blocked.recoverable_ms_per_step <= high


def test_batches_in_many_pieces(tmp_path):
    build = waiting(tmp_path)
    looks(build, fetching=40, unpacking=38)
    workers(build, cpu=0.3)
    unpacking = found(build)["IN10"]
    assert unpacking.absorbed == ("IN01",)
    assert "collate_fn, now pad" in unpacking.fix


@pytest.mark.parametrize(("tensors", "ids"), [(2, ["IN04"]), (30, ["IN04", "IN10"])])
def test_few_tensors_that_wait_for_a_core_are_no_pieces(tmp_path, tensors, ids):
    build = waiting(tmp_path, batch={"shapes": {str(one): [8] for one in range(tensors)}})
    looks(build, fetching=40, unpacking=38)
    workers(build, cpu=0.3)
    of_rank(build, run_wait_ns_total=(0, 0.5e9))
    assert sorted(found(build)) == ids


@pytest.mark.parametrize(("of_data_ms", "ids"), [(1.0, ["IN04"]), (5.0, ["IN04", "IN10"])])
def test_python_objects_are_rebuilt_by_the_training_itself_on_a_full_machine(
    tmp_path, of_data_ms, ids
):
    build = Builder(tmp_path / "r", cpu_count=16)
    build.hello(dataloader=LOADER, batch={"shapes": {"0": [8], "1": [8]}})
    for _ in range(200):
        cpu = {"compute_cpu_ns": 12_000_000, "cpu_ns": int((12 + of_data_ms) * 1e6)}
        build.step(forward=6.0, backward=6.0, data=12.0, **cpu)
    looks(build, fetching=40, unpacking=38)
    workers(build, cpu=0.3)
    of_rank(build, run_wait_ns_total=(0, 0.5e9))
    assert sorted(found(build)) == ids


def test_workers_that_are_late_in_any_case_are_named_on_a_full_machine(tmp_path):
    build = waiting(tmp_path, data=6.0)
    of_rank(build, run_wait_ns_total=(0, 0.3e9))
    assert "IN01" not in found(build)
    looks(build, empty=55, fetching=50)
    workers(build, cpu=0.2)
    assert found(build)["IN01"].severity == "high"


@pytest.mark.parametrize(("queued", "said"), [(0.3, True), (0.8, False)])
def test_a_wait_for_data_that_exceeds_the_wait_for_cores_is_said_beside_it(tmp_path, queued, said):
    build = waiting(tmp_path, data=48.0)
    of_rank(build, run_wait_ns_total=(0, queued * 1e9))
    assert ("IN01" in found(build), "IN04" in found(build)) == (said, True)


def begun(build, starts, steps, **given):
    """A loader event: ``starts`` iterators were made in all, each for ``steps / starts`` steps."""
    looks(build, epochs=starts, **{"looks": 0, **given})


def test_a_loader_with_workers_that_is_built_at_each_step(tmp_path):
    build = waiting(tmp_path, data=30.0)
    begun(build, 200, 200, starts_ms=200 * 12.0, firsts_ms=200 * 18.0)
    anew = found(build)["IN15"]
    assert "at each step" in anew.title and anew.absorbed == ("IN01",)
    assert (
        anew.recoverable_ms_per_step == pytest.approx(30.0, rel=0.02) and anew.site == "train.py:41"
    )


@pytest.mark.parametrize(
    ("length", "persists", "words"),
    [
        (
            4,
            False,
            "keep the workers over epochs, with persistent_workers=True; or make epochs longer",
        ),
        (4, True, "make epochs longer"),
        (100, False, "take all batches from one iterator of it, with persistent_workers=True"),
    ],
)
def test_a_loader_that_comes_to_its_end_after_few_batches_is_to_have_more(
    tmp_path, length, persists, words
):
    loader = LOADER | {"loop": "train.py:60", "length": length, "persistent_workers": persists}
    build = waiting(tmp_path, data=30.0, loader=loader)
    begun(build, 49, 200, starts_ms=49 * 40.0, firsts_ms=49 * 50.0)
    anew = found(build)["IN15"]
    assert "every 4 steps" in anew.title and "50 iterators" in anew.evidence
    assert words in anew.fix


def test_short_epochs_of_workers_that_persist_cost_what_restarting_them_takes(tmp_path):
    build = waiting(tmp_path, data=30.0, loader=LOADER | {"persistent_workers": True})
    begun(build, 50, 200, starts_ms=50 * 2.0, firsts_ms=50 * 30.0)
    assert "IN15" not in found(build) and "IN01" in found(build)


def test_first_fetches_that_wait_like_any_other_are_no_start(tmp_path):
    build = waiting(tmp_path, data=30.0)
    begun(build, 50, 200, starts_ms=50 * 1.0, firsts_ms=50 * 31.0)
    assert "IN15" not in found(build)


@pytest.mark.parametrize(
    ("inside", "collecting_ms", "said"),
    [
        ("torch/utils/data/sampler.py:180 __iter__", 0.0, True),
        ("torch/utils/data/sampler.py:180 __iter__", 29.5, False),
        ("", 0.0, False),
    ],
    ids=["shuffles", "collects garbage meanwhile", "does something else"],
)
def test_a_loader_without_workers_that_shuffles_all_for_one_batch(
    tmp_path, inside, collecting_ms, said
):
    build = Builder(tmp_path / "r", cpu_count=16)
    build.hello(dataloader=LOADER | {"num_workers": 0})
    for _ in range(200):
        build.step(forward=6.0, backward=6.0, data=30.0, gc_ns=round(collecting_ms * 1e6))
    begun(build, 200, 200, num_workers=0, starts_ms=200 * 0.1, firsts_ms=200 * 29.0)
    sample = {
        "site": "train.py:50",
        "function": "batch",
        "caller": "",
        "inside": inside,
        "code": "",
        "count": 40,
    }
    build.event("stacks", rank=0, phase="data", period_ms=50.0, total=40, samples=[sample])
    ids = found(build)
    assert ("IN15" in ids) == said
    assert said or ("IN02" in ids or "HO03" in ids)


def test_workers_that_compute_while_a_batch_is_handed_over_are_not_idle(tmp_path):
    build = waiting(tmp_path)
    looks(build, fetching=40, unpacking=38)
    workers(build, cpu=0.8)
    assert "IN10" not in found(build)


def test_workers_that_wait_for_a_disk(tmp_path):
    build = waiting(tmp_path)
    looks(build, empty=50, fetching=40, states={"D": 30, "S": 8})
    workers(build, read_per_s=5e6)
    storage = found(build)["IN07"]
    assert storage.absorbed == ("IN01",)
    assert "10.0 MB/s" in storage.evidence  # two workers


def test_io_pressure_counts_only_where_our_workers_read(tmp_path):
    for name, read, expected in (("a", 5e6, True), ("b", 0.0, False)):
        build = waiting(tmp_path / name)
        looks(build, empty=50, fetching=40, states={"S": 38})
        workers(build, read_per_s=read)
        host(build, psi_io_some_pct=45.0)
        assert ("IN07" in found(build)) is expected


def epochs(tmp_path, pause_ms, loader=LOADER, begin=(60, 120, 180)):
    build = Builder(tmp_path / "r")
    build.hello(dataloader=loader)
    for step in range(240):
        build.step(forward=6.0, backward=6.0, data=pause_ms if step in begin else 0.2)
    starts = [
        {"step": step, "end_ms": 20.0, "start_ms": 30.0, "first_ms": pause_ms - 50.0}
        for step in begin
    ]
    looks(build, epochs=len(starts), epoch_starts=starts)
    return build


def test_a_pause_at_each_epoch(tmp_path):
    only = found(epochs(tmp_path, 900.0))
    assert list(only) == ["IN05"]  # and not IN01: the other steps do not wait
    assert only["IN05"].recoverable_ms_per_step == pytest.approx(3 * 900 / 240, rel=0.02)
    assert "persistent_workers=True" in only["IN05"].fix


def test_short_epochs_add_up_short_pauses(tmp_path):
    stall = found(epochs(tmp_path, 60.0, begin=range(24, 240, 24)))["IN05"]
    assert stall.recoverable_ms_per_step == pytest.approx(60 / 24, rel=0.15)


def test_one_quick_start_hides_no_stall(tmp_path):
    build = epochs(tmp_path, 900.0)
    looks(
        build,
        epochs=1,
        epoch_starts=[{"step": 230, "end_ms": 20.0, "start_ms": 30.0, "first_ms": 20.0}],
    )
    assert "IN05" in found(build)


@pytest.mark.parametrize(
    ("pause_ms", "loader", "begin"),
    [
        (900.0, {**LOADER, "persistent_workers": True}, (60, 120)),
        (900.0, LOADER, (60,)),
        (80.0, LOADER, (60, 120)),
    ],
    ids=["persistent already", "only one epoch seen", "short"],
)
def test_no_stall_of_epochs(tmp_path, pause_ms, loader, begin):
    assert "IN05" not in found(epochs(tmp_path, pause_ms, loader, begin))


def ranks(tmp_path, prints, parallel=None):
    build = Builder(tmp_path / "r")
    for rank, crcs in enumerate(prints):
        build.hello(
            rank,
            world_size=len(prints),
            dataloader=LOADER,
            parallel=parallel or {"ddp": {"buckets": 1}},
        )
        for step in range(120):
            crc = int(crcs[step // 10]) if step % 10 == 0 and step // 10 < len(crcs) else 0
            build.step(rank, forward=10.0, batch_crc=crc)
    return build


SHARDS = np.arange(1, 25).reshape(2, 12)


@pytest.mark.parametrize(
    ("prints", "parallel", "expected"),
    [
        ((SHARDS[0], SHARDS[0]), None, True),
        ((SHARDS[0], SHARDS[1]), None, False),
        ((np.full(12, 7), np.full(12, 7)), None, False),
        ((SHARDS[0][:4], SHARDS[0][:4]), None, False),
        ((SHARDS[0], SHARDS[0]), {"backend": "gloo"}, False),
        ((SHARDS[0], SHARDS[0]), {"fsdp": {"version": 2}, "mesh": {"shape": [2, 2]}}, False),
        ((SHARDS[0], SHARDS[1], SHARDS[0]), None, True),
    ],
    ids=[
        "same",
        "shards",
        "one batch for ever",
        "too few",
        "not data-parallel",
        "tensor-parallel",
        "two of three",
    ],
)
def test_ranks_with_the_same_batches(tmp_path, prints, parallel, expected):
    same: Any = found(ranks(tmp_path, prints, parallel)).get("IN12")
    assert (same is not None) is expected
    if len(prints) == 3:
        assert "ranks 0, 2 " in same.title


def test_a_sampler_that_gave_ranks_the_same_share_has_its_line(tmp_path):
    build = ranks(tmp_path, (SHARDS[0], SHARDS[0]), None)
    loader = {**LOADER, "sampler": "DistributedSampler", "sampler_at": "train.py:31"}
    for rank in range(2):
        build.hello(rank, world_size=2, dataloader=loader, parallel={"ddp": {"buckets": 1}})
    same = found(build)["IN12"]
    assert same.site == "train.py:31" and "rank= and num_replicas=" in same.fix


def test_a_rank_that_the_environment_does_not_have_gave_all_the_same_share(tmp_path):
    build = ranks(tmp_path, (SHARDS[0], SHARDS[0]), None)
    loader = {**LOADER, "rank_asked_at": "train.py:12"}
    for rank in range(2):
        build.hello(rank, world_size=2, dataloader=loader, parallel={"ddp": {"buckets": 1}})
    same = found(build)["IN12"]
    assert same.site == "train.py:12" and "get_rank()" in same.fix


@pytest.mark.parametrize(
    ("dealt_to", "site"), [((0, 1), "data.py:9"), ((0, 0), "train.py:31"), ((None, None), None)]
)
def test_samples_that_are_made_alike_whatever_their_index_is(tmp_path, dealt_to, site):
    build = ranks(tmp_path, (SHARDS[0], SHARDS[0]), None)
    for rank in range(2):
        loader = {**LOADER, "sampler_rank": dealt_to[rank], "dice_at": "data.py:9"}
        if site == "train.py:31":
            loader = {**loader, "sampler": "DistributedSampler", "sampler_at": site}
        build.hello(rank, world_size=2, dataloader=loader, parallel={"ddp": {"buckets": 1}})
    same = found(build)["IN12"]
    assert site is None or same.site == site
    assert ("seed the random numbers of the dataset (data.py:9)" in same.fix) is (
        site == "data.py:9"
    )


def test_an_input_straggler_is_one_card_and_says_what_differs(tmp_path):
    build = Builder(tmp_path / "r")
    for rank in range(3):
        slow = rank == 1
        loader = {**LOADER, "num_workers": 1 if slow else 4}
        build.hello(rank, world_size=3, dataloader=loader, parallel={"ddp": {"buckets": 1}})
        random = np.random.default_rng(rank)
        for _ in range(200):
            data = 8.0 * random.gamma(400, 1 / 400) if slow else 0.2
            build.step(rank, forward=5.0, backward=5.0, data=data, wait_ms=0.2 if slow else 8.0)
    only = found(build)
    assert "CR03" in only["IN11"].absorbed
    assert (only["IN11"].rank, "CR03" in only) == (1, False)
    assert "num_workers=1 and not 4" in only["IN11"].evidence


def test_padding(tmp_path):
    build = waiting(tmp_path, data=0.1)
    build.event("padding", rank=0, batches=20, places=20_000, tokens=8_000)
    padding = found(build)["IN14"]
    assert "60 %" in padding.title
    assert padding.recoverable_ms_per_step == pytest.approx(12 * 0.6, rel=0.05)


@pytest.mark.parametrize(
    ("more", "words"),
    [({}, " (60 % padding)"), ({"filling": "0"}, "")],
    ids=["by mask", "by a guess"],
)
def test_a_rate_of_tokens_says_how_much_of_it_is_padding(tmp_path, more, words):
    build = waiting(tmp_path, data=0.1)
    build.event("padding", rank=0, batches=20, places=20_000, tokens=8_000, **more)
    run = summarise(build.open())
    assert run.of_padding == words
    assert f"1,000 tokens/s{words}," in speed(
        run._replace(tokens_per_s=1000.0, steps_per_s=9.0, silent_s=0)
    )


@pytest.mark.parametrize("beside, promises", [(0, True), (20_000, True), (400_000, False)])
def test_padding_beside_pictures_promises_nothing(tmp_path, beside, promises):
    """As of CLIP: its tower of pictures computes on no padding, and how long it takes is not told
    apart.
    """
    build = waiting(tmp_path, data=0.1)
    build.event("padding", rank=0, batches=20, places=20_000, tokens=8_000, beside=beside)
    padding = found(build)["IN14"]
    assert (padding.recoverable_ms_per_step is not None) is promises
    assert ("other inputs" in padding.evidence) is not promises
    assert padding.severity == ("high" if promises else "medium")
    assert ("not known" in padding.proof.formula) is not promises


def test_rows_padded_to_one_length_are_not_mended_by_grouping(tmp_path):
    def fix(path, distinct):
        build = waiting(path, data=0.1, shapes={"distinct": distinct, "batches": 100})
        build.event("padding", rank=0, batches=20, places=20_000, tokens=8_000)
        return str(found(build)["IN14"].fix)

    one = fix(tmp_path / "one", 1)
    assert "pad each batch only to its longest" in one and "group" not in one
    several = fix(tmp_path / "several", 8)
    assert "group samples of similar length" in several and "longest" not in several


@pytest.mark.parametrize("kept", [{"kept": 20_000}, {}])
def test_batches_that_end_with_their_longest_row_are_not_to_be_padded_to_it(tmp_path, kept):
    build = waiting(tmp_path, data=0.1)
    build.event("padding", rank=0, batches=20, places=20_000, tokens=8_000, **kept)
    assert ("to its longest" in found(build)["IN14"].fix) is (not kept)


@pytest.mark.parametrize(
    ("kept", "distinct", "site"),
    [
        (9_000, 8, "data.py:7"),
        (20_000, 1, "data.py:7"),
        (20_000, 8, "train.py:9"),
    ],
    ids=["beyond the longest", "one length", "uneven rows"],
)
def test_the_line_of_padding(tmp_path, kept, distinct, site):
    loader = {**LOADER, "site": "train.py:9"}
    shapes = {"distinct": distinct, "batches": 100}
    build = waiting(tmp_path, data=0.1, loader=loader, shapes=shapes)
    counts = {"batches": 20, "places": 20_000, "tokens": 8_000, "kept": kept}
    build.event("padding", rank=0, **counts, padded_at="data.py:7")
    padding = found(build)["IN14"]
    assert padding.site == site
    if kept < 20_000:
        assert "pad each batch only to its longest" in padding.fix


def test_what_fills_rows_without_a_mask_is_told_unless_the_script_leaves_it_out(tmp_path):
    counts = {"batches": 20, "places": 20_000, "tokens": 8_000, "kept": 20_000, "filling": "0"}
    build = waiting(tmp_path / "told", data=0.1)
    build.event("padding", rank=0, **counts)
    assert "the others are 0 at the end or the begin of a row" in found(build)["IN14"].evidence
    build = waiting(tmp_path / "packed", data=0.1)
    build.event("padding", rank=0, **counts, left_out=True)
    assert "IN14" not in found(build)


@pytest.mark.parametrize(
    ("batches", "tokens"), [(20, 15_000), (4, 8_000)], ids=["little", "too few batches"]
)
def test_no_padding_to_speak_of(tmp_path, batches, tokens):
    build = waiting(tmp_path, data=0.1)
    build.event("padding", rank=0, batches=batches, places=20_000, tokens=tokens)
    assert "IN14" not in found(build)


def test_shared_memory_nearly_full_synthetic(tmp_path):
    for name, used, expected in (
        ("a", 60 << 20, "medium"),
        ("b", 63 << 20, "high"),
        ("c", 30 << 20, None),
    ):
        build = waiting(tmp_path / name, data=0.1)
        host(build, shm_used_bytes=used, shm_total_bytes=64 << 20)
        full = found(build).get("IN13")
        assert (full.severity if full else None) == expected


def test_open_files_near_the_limit(tmp_path):
    build = waiting(tmp_path, data=0.1, limits={"open_files": 1024})
    of_rank(build, seconds=2, open_files=900, run_wait_ns_total=-1)
    assert "900 of 1,024" in found(build)["IN13"].title


def test_no_limit_no_verdict_on_files(tmp_path):
    build = waiting(tmp_path, data=0.1)
    of_rank(build, seconds=2, open_files=900, run_wait_ns_total=-1)
    assert "IN13" not in found(build)


def test_a_cpu_quota(tmp_path):
    build = waiting(tmp_path, data=0.1)
    host(build, cgroup_throttled_us_total=(5_000_000, 300_000), cgroup_cpu_limit=0.7, cpu_count=8)
    quota = found(build)["HO05"]
    assert quota.recoverable_ms_per_step == pytest.approx(0.3 * 12.1, rel=0.05)
    assert "0.7 cores" in quota.evidence


@pytest.mark.parametrize(("waits", "share"), [(200, 0.2), (900, 0.3)])
def test_a_quota_promises_no_more_than_the_training_thread_waits(tmp_path, waits, share):
    """The kernel counts each core on which a process of the group is stopped."""
    build = waiting(tmp_path, data=0.1)
    host(build, cgroup_throttled_us_total=(5_000_000, 300_000), cgroup_cpu_limit=0.7, cpu_count=8)
    of_rank(build, seconds=3, run_wait_ns_total=(10**9, waits * 10**6))
    quota = found(build)["HO05"]
    assert quota.recoverable_ms_per_step == pytest.approx(share * 12.1, rel=0.05)


@pytest.mark.parametrize(
    "throttled", [-1, (5_000_000, 0), (5_000_000, 10_000)], ids=["unknown", "before", "1 %"]
)
def test_no_quota_that_costs(tmp_path, throttled):
    build = waiting(tmp_path, data=0.1)
    host(build, cgroup_throttled_us_total=throttled, cpu_count=8)
    assert "HO05" not in found(build)


@pytest.mark.parametrize(
    ("faults_per_s", "system_ms", "expected"),
    [
        (1_000_000, 600.0, True),
        (1_000_000, 2.0, False),
        (100_000, 400.0, False),
        (1_000_000, None, False),
    ],
    ids=["storm", "cheap", "few", "cost not known"],
)
def test_page_faults(tmp_path, faults_per_s, system_ms, expected):
    build = waiting(tmp_path, data=0.1)
    of_rank(build, seconds=2, minor_faults_total=(50_000, faults_per_s), run_wait_ns_total=-1)
    for second in range(1, 4) if system_ms is not None else ():
        t_ns = T0 + second * 10**9
        build.event(
            "paging", t_ns, rank=0, period_ms=1000, faults=faults_per_s, system_ms=system_ms
        )
    storm: Any = found(build).get("HO12")
    assert (storm is not None) is expected
    if expected:
        assert storm.recoverable_ms_per_step == pytest.approx(0.85 * 0.6 * 12.1, rel=0.1)


def test_page_faults_of_other_threads_may_not_make_a_step_longer(tmp_path):
    build = waiting(tmp_path, data=0.1)
    of_rank(build, seconds=2, minor_faults_total=(50_000, 1_000_000), run_wait_ns_total=-1)
    fields = {"faults": 1_000_000, "system_ms": 600.0, "thread_system_ms": 200.0}
    for second in range(1, 4):
        build.event("paging", T0 + second * 10**9, rank=0, period_ms=1000, **fields)
    storm: Any = found(build)["HO12"]
    assert storm.recoverable_ms_per_step == pytest.approx(0.85 * 0.2 * 12.1, rel=0.1)
    assert storm.interval_ms_per_step[1] == pytest.approx(0.6 * 12.1, rel=0.1)


@pytest.mark.parametrize(("phase", "site"), [("forward", "net.py:8 apart"), ("data", None)])
def test_page_faults_are_likely_where_a_phase_that_is_long_enough_spends_its_time(
    tmp_path, phase, site
):
    build = waiting(tmp_path, data=0.1)
    line = {"site": "net.py:8", "function": "apart", "path": ["a.py:1 run", "net.py:8 apart"]}
    build.event("stacks", rank=0, phase=phase, samples=[{**line, "count": 40}])
    of_rank(build, seconds=2, minor_faults_total=(50_000, 1_000_000), run_wait_ns_total=-1)
    for second in range(1, 4):
        t_ns = T0 + second * 10**9
        build.event("paging", t_ns, rank=0, period_ms=1000, faults=1_000_000, system_ms=600.0)
    assert found(build)["HO12"].site == site


@pytest.mark.parametrize(
    ("phases", "site"),
    [
        ({"backward": 700, "forward": 300}, "train.py:9"),
        ({"backward": 300, "forward": 700}, "net.py:8"),
        ({"optimizer": 700, "forward": 300}, None),
        ({"backward": 30, "forward": 35, "other": 35}, None),
    ],
)
def test_page_faults_are_where_most_of_them_were_counted(tmp_path, phases, site):
    build = waiting(tmp_path, data=0.1)
    for phase, line in (("forward", "net.py:8"), ("backward", "train.py:9")):
        sample = {"site": line, "function": "run", "path": [f"{line} run"], "count": 40}
        build.event("stacks", rank=0, phase=phase, samples=[sample])
    of_rank(build, seconds=2, minor_faults_total=(50_000, 1_000_000), run_wait_ns_total=-1)
    fields = {"faults": 1_000_000, "system_ms": 600.0, "phases": phases}
    for second in range(1, 4):
        build.event("paging", T0 + second * 10**9, rank=0, period_ms=1000, **fields)
    told = found(build)["HO12"].site
    assert (told and told.partition(" ")[0]) == site


@pytest.mark.parametrize(
    "env", [{"MALLOC_TRIM_THRESHOLD_": "-1"}, {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}]
)
def test_no_setting_of_malloc_is_proposed_twice(tmp_path, env):
    build = waiting(tmp_path, data=0.1)
    build.hello(0, env=env)
    of_rank(build, seconds=2, minor_faults_total=(50_000, 1_000_000), run_wait_ns_total=-1)
    for second in range(1, 4):
        t_ns = T0 + second * 10**9
        build.event("paging", t_ns, rank=0, period_ms=1000, faults=1_000_000, system_ms=600.0)
    storm = found(build)["HO12"]
    assert storm.recoverable_ms_per_step is None
    assert "MALLOC" not in storm.fix and "jemalloc" not in storm.fix


@pytest.mark.parametrize(
    ("threads", "run_wait", "expected"),
    [(8, 0.4, True), (1, 0.4, False), (8, 0.0, False)],
    ids=["many", "1", "idle"],
)
def test_threads_beyond_the_cores(tmp_path, threads, run_wait, expected):
    build = Builder(tmp_path / "r", cpu_count=4)
    build.hello(threads={"torch": threads})
    build.steps(300, forward=6.0, backward=6.0)
    of_rank(build, seconds=3, run_wait_ns_total=(0, run_wait * 1e9))
    only = found(build)
    assert ("HO14" in only) is expected
    if expected:
        assert only["HO14"].absorbed == ("IN04",)
        assert "OMP_NUM_THREADS=4" in only["HO14"].fix


@pytest.mark.parametrize(("own_cores", "promised"), [(3.0, True), (1.0, False)])
def test_fewer_threads_are_no_patch_where_others_have_the_cores(tmp_path, own_cores, promised):
    """Beside other programs more threads get more of the cores: fewer would win nothing."""
    build = Builder(tmp_path / "r", cpu_count=4)
    build.hello(threads={"torch": 12})
    build.steps(300, forward=6.0, backward=6.0)
    of_rank(build, seconds=3, run_wait_ns_total=(0, 4e8), cpu_ns_total=(0, own_cores * 1e9))
    for tick in range(7):
        build.sample("host", t_ns=T0 + tick * 5 * 10**8, cpu_pct=100.0, cpu_count=4)
    only = found(build)["HO14"]
    assert (only.recoverable_ms_per_step > 0) is promised
    assert any(option.mend for option in only.options) is promised
    assert ("other programs" in only.evidence) is not promised


def on_gpu(tmp_path, h2d, gpu_rows=0, rx=0.0, **hello):
    """Steps of 20 ms on the device's clock, ``h2d`` of them copies; ``rx`` in MB/s over a gen 5
    link of 16 lanes.
    """
    build = Builder(tmp_path / "r")
    build.state["gpus"] = [{"index": 3, "uuid": "GPU-1"}]
    build.writer.write_state(build.state)
    build.hello(device="cuda", device_uuid="GPU-1", dataloader=LOADER, **hello)
    for step in range(120):
        build.step(forward=3.0, backward=5.0)
        row = {
            "data_ms": 0.1,
            "h2d_ms": h2d,
            "forward_ms": 5,
            "backward_ms": 10,
            "optimizer_ms": 1,
            "other_ms": 0.1,
        }
        build.writer.append_rank(
            "device", 0, pack("device", t_end_ns=build.clock[0], step=step, total_ms=20.0, **row)
        )
    for tick in range(gpu_rows):
        build.sample(
            "gpu", t_ns=T0 + tick * 10**8, index=3, pcie_gen=5, pcie_width=16, pcie_rx_mb_s=rx
        )
    return build


@pytest.mark.parametrize(
    ("h2d", "pinned", "expected"),
    [(2.0, False, True), (2.0, True, False), (0.2, False, False), (2.0, None, False)],
)
def test_pageable_copies_synthetic(tmp_path, h2d, pinned, expected):
    build = on_gpu(tmp_path, h2d, batch={"pinned": pinned})
    assert ("IN08" in found(build)) is expected


@pytest.mark.parametrize(
    ("rx", "gpu_rows", "expected"), [(5_000.0, 20, True), (1_000.0, 20, False), (5_000.0, 0, False)]
)
def test_copies_as_fast_as_the_link_on_the_critical_path_synthetic(
    tmp_path, rx, gpu_rows, expected
):
    build = on_gpu(tmp_path, 2.0, gpu_rows, rx, batch={"pinned": True})
    assert ("IN09" in found(build)) is expected


@pytest.mark.parametrize(("near", "expected"), [(2, True), (28, False)])
def test_a_rank_on_the_wrong_socket_synthetic(tmp_path, near, expected):
    build = waiting(tmp_path, data=0.1, affinity={"allowed_cpus": "0-63", "device_cpus": "32-63"})
    for _ in range(3):
        build.event("placement", rank=0, looks=10, near=near // 3)
    only = found(build)
    assert ("HO13" in only) is expected
    if expected:
        assert "32-63" in only["HO13"].fix
        assert only["HO13"].host == HOST


@pytest.mark.parametrize(("seen", "of"), [(0, 0), (0, 10), (10, 10), (5, 10), (500, 1000)])
def test_the_lower_end_of_a_counted_share(seen, of):
    low = surely(seen, of)
    assert 0.0 <= low <= (seen / of if of else 0.0)
    assert surely(10 * seen, 10 * of) >= low  # more looks, surer


@pytest.mark.parametrize(
    ("loader", "same", "changed", "is_told"),
    [
        ({"num_workers": 2, "iterable": True}, 5, 4, True),
        ({"num_workers": 8, "iterable": True}, 9, 3, True),
        ({"num_workers": 2, "iterable": False}, 5, 4, False),
        ({"num_workers": 1, "iterable": True}, 5, 4, False),
        ({"num_workers": 2, "iterable": True}, 9, 0, False),
        ({"num_workers": 2, "iterable": True}, 3, 6, False),
    ],
    ids=["two", "eight", "map-style", "one", "constant", "different"],
)
def test_workers_that_repeat_each_other(tmp_path, loader, same, changed, is_told):
    build = waiting(tmp_path, data=0.1, loader={"dataset": "Shards", **loader})
    build.event("repeats", rank=0, batches=9, same=same, changed=changed)
    told = found(build).get("IN16")
    assert (told is not None) == is_told
    if told is not None:
        assert "Shards.__iter__" in told.fix


def in_worker(build, *counts, rank=0):
    samples = [
        {
            "site": f"data.py:{line}",
            "function": name,
            "path": [f"data.py:{line} {name}"],
            "count": n,
        }
        for line, name, n in counts
    ]
    build.event("loader_worker", rank=rank, parent=100, worker=0, looks=100, samples=samples)


def test_the_line_that_workers_spend_their_time_in_is_named(tmp_path):
    build = waiting(tmp_path, data=48.0)
    in_worker(build, (40, "__getitem__", 50), (12, "decode", 8))
    late = found(build)["IN01"]
    assert "in its workers most often at data.py:40 __getitem__ (86 % of 58 stack samples)" in (
        late.evidence
    )
    assert late.site == "data.py:40 __getitem__"
    assert late.fix.startswith("raise num_workers from 2"), "where there are cores"


def test_where_no_core_is_left_for_a_worker_the_place_is_the_costly_line(tmp_path):
    build = Builder(tmp_path / "r", cpu_count=2)
    build.hello(dataloader=LOADER)
    build.steps(200, forward=6.0, backward=6.0, data=48.0)
    workers(build, cpu=0.98)
    in_worker(build, (40, "__getitem__", 50), (12, "decode", 8))
    late = found(build)["IN01"]
    assert late.site == "data.py:40 __getitem__"
    assert late.fix.startswith("make what data.py:40 __getitem__ does for a batch cheaper")


def test_workers_whose_time_is_spread_name_no_line(tmp_path):
    build = waiting(tmp_path, data=48.0)
    in_worker(build, *((line, "__getitem__", 10) for line in range(40, 46)))
    late = found(build)["IN01"]
    assert "in its workers spread over 6 lines" in late.evidence
    assert late.site == LOADER["site"]


def test_few_looks_at_workers_name_no_line(tmp_path):
    build = waiting(tmp_path, data=48.0)
    in_worker(build, (40, "__getitem__", 4))
    assert "in its workers" not in found(build)["IN01"].evidence


@pytest.mark.parametrize(
    ("empty", "data_ms", "severity"),
    [(1, 5.0, "info"), (1, 12.0, "high"), (40, 5.0, "high")],
    ids=["ready", "ready but long", "late"],
)
def test_a_batch_that_lies_ready_is_only_taken_over(tmp_path, empty, data_ms, severity):
    build = waiting(tmp_path, data=data_ms, loader=LOADER)
    looks(build, empty=empty, fetching=20, unpacking=19)
    late = found(build)["IN01"]
    assert late.severity == severity
    assert f"a batch lay ready in {60 - empty} of 60 looks" in late.evidence or empty > 1


def test_the_line_that_takes_each_batch_from_a_new_iterator_is_the_place(tmp_path):
    build = waiting(tmp_path, data=30.0, loader=LOADER | {"loop": "train.py:60"})
    begun(build, 200, 200, starts_ms=200 * 12.0, firsts_ms=200 * 18.0)
    assert found(build)["IN15"].site == "train.py:60"
