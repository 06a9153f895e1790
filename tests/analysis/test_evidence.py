"""Recordings of other tools: judged like runs, named by what they are, refused in one line where
they are damaged.
"""

import csv
import gzip
import io
import json
import pickle
import random
import tarfile

import pytest
from analysis_support import Builder
from recordings_support import recordings, two_segments

from gputop.cli import main
from gputop_analysis.evidence import EvidenceError, gather, is_evidence
from gputop_analysis.evidence.sources import largest_kind
from gputop_analysis.evidence.text import as_text
from gputop_analysis.stragglers import judge, load
from gputop_analysis.stragglers.timeline import COLUMNS
from gputop_analysis.text import share_words

SLOWDOWNS = {"AR": ("slow worker", 0), "ST": ("long last stage", None)}


@pytest.mark.parametrize("job", SLOWDOWNS)
def test_the_two_recorded_straggler_jobs(job):
    folder = recordings("stragglers")
    found = judge(load(folder / f"trace-{job}.csv.gz"))
    expected = json.loads((folder / f"result-{job}.json").read_text())
    assert (found.cause, found.rank) == SLOWDOWNS[job]
    assert found.slowdown == pytest.approx(expected["blocking_slowdown"], rel=1e-4)
    for stage, value in expected["blocking_decompose_by_stage"].items():
        assert found.by_stage[int(stage)] == pytest.approx(value, rel=1e-4)
    for name, value in expected["blocking_decompose_by_optype"].items():
        assert found.by_operation[name] == pytest.approx(value, rel=1e-4)


def pipeline(slow=None, last=1.0) -> bytes:
    """Two data-parallel ranks of two stages with two micro-batches, one forward after the other,
    then the backwards.
    """
    rows = []
    for step in range(3):
        for dp in range(2):
            ready = [0.0, 0.0]
            for kind in ("forward-compute", "backward-compute"):
                for index in range(2):
                    for stage in (0, 1) if kind.startswith("f") else (1, 0):
                        length = 1.0 * (last if stage == 1 else 1.0)
                        length *= 3.0 if (dp, stage) == slow else 1.0
                        rows.append((dp, stage, step, kind, ready[stage], length, index))
                        ready[stage] += length
            end = 40.0
            for stage in (0, 1):
                rows.append((dp, stage, step, "optimizer-clip-main-grad", end - 1, 1.0, 0))
                rows.append((dp, stage, step, "optimizer", end, 0.1, 0))
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow((*COLUMNS, "mb_id"))
    for dp, stage, step, kind, start, length, index in rows:
        rank = 2 * stage + dp
        writer.writerow((dp, stage, rank, step, kind, start, length, index, 0, stage, index))
    return out.getvalue().encode()


def test_a_slow_worker_and_a_long_last_stage_are_told_apart(tmp_path):
    path = tmp_path / "timeline.csv"
    path.write_bytes(pipeline(slow=(1, 0)))
    found = judge(load(path))
    assert (found.cause, found.rank) == ("slow worker", 1)
    assert found.step_s > found.ideal_s > 0
    path.write_bytes(pipeline(last=4.0))
    assert judge(load(path)).cause == "long last stage"
    path.write_bytes(pipeline())
    assert judge(load(path)).cause == "no straggler"
    assert 0 < judge(load(path)).bubbles[0] < 1
    assert judge(load(path)).slowdown == pytest.approx(1.0)


def kernel(name, start, length, correlation, cat="kernel"):
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "ts": start,
        "dur": length,
        "pid": 0,
        "tid": 7,
        "args": {"device": 0, "stream": 7, "correlation": correlation},
    }


def launch(correlation):
    event = kernel("cudaLaunchKernel", 0, 1, correlation, "cuda_runtime")
    return event | {"pid": 99}


def trace(path, events, rank=0):
    content = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}
    path.write_text(json.dumps(content))
    return path


def test_parts_of_a_device_add_up_and_work_from_before_is_left_out(tmp_path):
    path = trace(
        tmp_path / "a.json",
        [
            launch(1),
            launch(2),
            launch(3),
            launch(4),
            kernel("gemm", 1000, 1000, 1),
            kernel("ncclDevKernel_AllReduce_Sum", 1500, 1000, 2),
            kernel("Memcpy HtoD", 2400, 300, 3, "gpu_memcpy"),
            kernel("Memset (Device)", 3000, 1000, 4, "gpu_memset"),
            kernel("from before", 5000, 900, 77),
        ],
    )
    evidence = gather(path)
    (device,) = evidence.devices
    assert device.as_data() == {
        "name": "GPU 0",
        "busy_ms": pytest.approx(2.7),
        "compute_ms": pytest.approx(2.0),
        "communication_ms": pytest.approx(1.0),
        "exposed_communication_ms": pytest.approx(0.5),
        "copy_ms": pytest.approx(0.2),
        "idle_ms": pytest.approx(0.3),
    }
    assert any("0.9 ms of work" in one for one in evidence.unknown)
    assert any("of 2 ranks 1 is here" in one for one in evidence.unknown)


@pytest.mark.parametrize("slow", [0, 1])
def test_the_rank_that_the_others_wait_for(tmp_path, slow):
    for rank in (0, 1):
        events = []
        for step in range(5):
            length = 100 if rank == slow else 900
            start = 10_000 * step
            events += [launch(2 * step), launch(2 * step + 1)]
            events.append(kernel("gemm", start, 1000 - length, 2 * step))
            name = "ncclDevKernel_AllReduce_Sum"
            events.append(kernel(name, start + 1000 - length, length, 2 * step + 1))
        trace(tmp_path / f"rank-{rank}.json", events, rank)
    evidence = gather(tmp_path)
    assert (evidence.cause, evidence.rank) == ("slow rank", slow)
    assert evidence.slowdown > 1.05


def test_recordings_of_one_rank_are_no_ranks(tmp_path):
    """Two cycles of one process, as a schedule that repeats writes them, and one of another."""
    for name, length in (("a_7.1623143089861", 5), ("a_7.1623143566756", 50), ("b_9.16231430", 7)):
        events = [launch(1), kernel("ncclDevKernel_AllReduce_Sum", 0, 1000 * length, 1)]
        path = tmp_path / f"{name}.pt.trace.json"
        path.write_text(json.dumps({"traceEvents": events}))
    evidence = gather(tmp_path)
    assert [device.busy_ms for device in evidence.devices] == pytest.approx([50.0, 7.0])
    assert any("a_7.1623143089861" in sentence for sentence in evidence.unknown)
    assert any("numbered by their names" in sentence for sentence in evidence.unknown)
    (tmp_path / "b_9.16231430.pt.trace.json").unlink()
    assert gather(tmp_path).devices[0].rank is None


def operator(name, start, length):
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "ts": start,
        "dur": length,
        "pid": 9,
        "tid": 9,
    }


@pytest.mark.parametrize(
    "form", ["rank_{}/trace.json", "iteration_{}0/rank{}.json", "trace_{}.json"]
)
def test_ranks_are_found_in_folders_below_and_by_the_numbers_in_names(tmp_path, form):
    """Of ten, written without their ranks; of several iterations the last counts."""
    for rank in range(12):
        events = [launch(1), kernel("ncclDevKernel_AllReduce_Sum", 0, 1000 + 10 * rank, 1)]
        for iteration in (9, 10) if "iteration" in form else (rank,):
            path = tmp_path / form.format(iteration, rank)
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps({"traceEvents": events}))
    assert is_evidence(tmp_path)
    evidence = gather(tmp_path)
    assert [device.rank for device in evidence.devices] == list(range(12))
    busy_ms = [device.busy_ms for device in evidence.devices]
    assert busy_ms == pytest.approx([1 + 0.01 * rank for rank in range(12)])
    assert any("iteration_90/rank0.json shows" in one for one in evidence.unknown) == (
        "iteration" in form
    )


def test_a_run_below_and_a_folder_of_other_files_are_no_evidence(tmp_path):
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "run.json").write_text("{}")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "package.json").write_text('{"name": "another tool"}')
    assert not is_evidence(tmp_path)


def test_a_trace_that_ends_before_the_work_of_its_device_says_so(tmp_path):
    operators = [operator("aten::mm", 0, 50), launch(1), launch(2)]
    whole = json.dumps({"traceEvents": [*operators, kernel("gemm", 1000, 1000, 1)]})
    path = tmp_path / "cut.json"
    path.write_text(whole[: whole.index('"gemm"')])
    (told, *_) = gather(path).unknown
    assert "launched 2 kernels" in told and "the file ends before it" in told


def test_events_without_a_device_are_those_of_the_gpu(tmp_path):
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 5}
    (tmp_path / "a.json").write_text(json.dumps({"traceEvents": [event]}))
    (device,) = gather(tmp_path / "a.json").devices
    assert device.name == "GPU"


def test_of_several_snapshots_one_is_read_and_the_others_are_named(tmp_path):
    for rank in range(12):
        block = {"size": 1 << 20, "state": "active_allocated", "requested_size": (rank + 1) << 10}
        segment = {"address": 1 << 30, "total_size": 1 << 20, "blocks": [block], "device": rank}
        content = {"segments": [segment], "device_traces": []}
        (tmp_path / f"rank{rank}_snapshot.pickle").write_bytes(pickle.dumps(content))
    evidence = gather(tmp_path)
    assert evidence.files == (str(tmp_path / "rank0_snapshot.pickle"),)
    assert any("what rank1_snapshot.pickle and 10 more show" in one for one in evidence.unknown)


def test_a_trace_without_a_device_tells_what_its_thread_did(tmp_path):
    call = kernel("xpuLaunchKernel", 0, 1, 5, "xpu_runtime")
    events = [operator("aten::mm", 0, 600), operator("aten::add", 900, 100), call]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"traceEvents": events}))
    evidence = gather(path)
    assert evidence.cause == "time outside of operators"
    assert evidence.findings == [
        "thread 9: 70 % of 1.0 ms in operators, 30 % outside them (Python, data, waiting); of the "
        "operators' own time: aten::mm 86 %, aten::add 14 %"
    ]
    assert any("launched 1 kernel:" in sentence for sentence in evidence.unknown)


def test_a_slow_rank_is_named_without_a_device_too(tmp_path):
    for rank in (0, 1):
        length = 100 if rank == 1 else 900
        events = [operator("aten::mm", 0, 1000 - length)]
        events.append(operator("gloo:all_reduce", 1000 - length, length))
        events[1]["cat"] = "user_annotation"
        events.append(operator("aten::add", 1000, 10))
        trace(tmp_path / f"rank-{rank}.json", events, rank)
    evidence = gather(tmp_path)
    assert (evidence.cause, evidence.rank) == ("slow rank", 1)
    assert evidence.slowdown == pytest.approx(1010 / 210)


def test_a_share_that_is_not_quite_all_is_not_100_percent():
    words = [share_words(share) for share in (0.0, 0.001, 0.38, 0.996, 0.9999, 1.0)]
    assert words == ["0 %", "under 1 %", "38 %", "99.6 %", "over 99.9 %", "100 %"]


def test_pipeline_bubbles_of_two_stages(tmp_path):
    """Stage 1 waits 2 of 10 ms for its first micro-batch, of which the last half a millisecond runs
    beside a kernel; stage 0 waits 4 for its gradients.
    """
    send = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    stages = [
        [("gemm", 0, 4000), (send, 4000, 4000), ("gemm", 8000, 2000)],
        [(send, 0, 2000), ("gemm", 1500, 8500)],
    ]
    for rank, work in enumerate(stages):
        events = [launch(number) for number in range(3)]
        events += [
            kernel(name, 1000 + start, length, number)
            for number, (name, start, length) in enumerate(work)
        ]
        trace(tmp_path / f"rank-{rank}.json", events, rank)
    told = [one for one in gather(tmp_path).findings if "pipeline bubble" in one]
    assert [one.split(" while")[0] for one in told] == [
        "rank 0 computes nothing for 40 % of its time",
        "rank 1 computes nothing for 15 % of its time",
    ]


def dump(rank, sequence):
    entries = [
        {
            "process_group": ["0", "default_pg"],
            "collective_seq_id": number,
            "profiling_name": "nccl:all_reduce",
            "state": "completed" if number < 3 else "started",
            "is_p2p": False,
        }
        for number in range(1, sequence + 1)
    ]
    return {"version": "2.4", "pg_config": {"0": {"ranks": "[0, 1, 2]"}}, "entries": entries}


def test_a_rank_that_never_came_is_named_from_dumps(tmp_path):
    for rank, sequence in enumerate((3, 2, 3)):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump(rank, sequence)))
    (tmp_path / "notes.json").write_text('{"of": "another tool"}')
    assert is_evidence(tmp_path), "by names as torch gives them"
    evidence = gather(tmp_path)
    assert evidence.rank == 1
    assert any("rank 1 never came" in one for one in evidence.findings)


def test_a_rank_that_called_nothing_writes_no_entries_as_json(tmp_path):
    for rank in range(3):
        content = dump(rank, 3)
        if rank == 1:
            del content["entries"]
        (tmp_path / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(content))
    evidence = gather(tmp_path)
    assert (evidence.cause, evidence.rank) == ("a rank never came to a collective", 1)


def test_an_all_to_all_is_no_pipeline(tmp_path):
    """NCCL runs SendRecv for it too; the host's calls tell, or the kernel's own arguments."""
    for rank in (0, 1):
        work = kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 0, 5000, 1)
        events = [launch(1), work, operator("c10d::alltoall_base_", 0, 5)]
        trace(tmp_path / f"rank-{rank}.json", events, rank)
    assert not any("pipeline" in sentence for sentence in gather(tmp_path).findings)
    for rank in (0, 1):
        work["args"]["Collective name"] = "all_to_allv"
        work["dur"] = 5000 + rank * 4000
        trace(tmp_path / f"rank-{rank}.json", [launch(1), work], rank)
    evidence = gather(tmp_path)
    assert list(evidence.by_operation) == ["all_to_all"]
    assert not any("pipeline" in sentence for sentence in evidence.findings)


def queued(rank, numbers, sizes=(64,), group="ep"):
    """Calls of NCCL that wait on the device, as dumps of active entries alone have them."""
    entries = [
        {
            "process_group": [group, "EXPERT_GROUP"],
            "collective_seq_id": number,
            "profiling_name": "nccl:all_to_all",
            "input_sizes": [[size]],
            "state": "scheduled",
            "is_p2p": False,
            "time_created_ns": 10 * number,
        }
        for number, size in zip(numbers, sizes * len(numbers), strict=False)
    ]
    config = {group: {"desc": "EXPERT_GROUP", "ranks": "[0, 1, 2, 3]"}}
    return {"version": "2.9", "pg_config": config, "entries": entries}


def test_calls_that_wait_on_the_device_are_not_where_a_program_stands(tmp_path):
    """Rank 3 stopped at number 7, with its own calls pending; of other sizes than before, as
    routing makes them. Rank 2 waits for it too, and in a group of its own nobody is missing.
    """
    for rank in range(4):
        content = queued(rank, range(5, 8 if rank == 3 else 12), sizes=(64, 60 + rank))
        content["entries"] += queued(rank, [40], group=f"alone {rank}")["entries"]
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(content))
    evidence = gather(tmp_path)
    assert (evidence.cause, evidence.rank) == ("a rank never came to a collective", 3)
    assert evidence.findings[0].startswith("rank 3 never came to all_to_all number 8 of group ep")
    assert "ranks 0-2 wait for it" in evidence.findings[0]


def test_several_ranks_that_never_came_and_one_that_waits_for_them(tmp_path):
    for rank, last in enumerate((12, 6, 12, 6)):
        content = queued(rank, range(5, last))
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(content))
    evidence = gather(tmp_path)
    assert (evidence.rank, evidence.ranks) == (1, (1, 3))
    assert "ranks never came to a collective, ranks 1, 3" in as_text(evidence, 100)


def test_a_dump_alone_says_whose_are_missing(tmp_path):
    (tmp_path / "_dump_2").write_bytes(pickle.dumps(queued(2, [5])))
    evidence = gather(tmp_path / "_dump_2")
    assert evidence.cause == "nothing stands out"
    assert any("ranks 0-3 but 2" in sentence for sentence in evidence.unknown)
    assert not any("all ranks" in sentence for sentence in evidence.findings)


def test_a_collective_that_all_called_and_ranks_in_a_circle(tmp_path):
    for rank in range(4):
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(queued(rank, [5, 6])))
    assert gather(tmp_path).cause == "a collective that all its ranks called has not ended"
    for rank in range(4):
        content = queued(rank, [5] if rank % 2 else [5, 6])
        other = queued(rank, [9, 10] if rank % 2 else [9], group="other")
        content["entries"] += other["entries"]
        content["pg_config"] |= other["pg_config"]
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(content))
    assert gather(tmp_path).cause == "ranks wait for each other"


def test_dumps_of_the_first_versions(tmp_path):
    """One number for collectives and messages; groups that each rank numbers itself."""
    for rank in range(4):
        mates = [0, 1] if rank < 2 else [2, 3]
        last = 5 if rank == 3 else 7
        entries = [
            {
                "pg_id": 1,
                "seq_id": number,
                "profiling_name": "nccl:all_reduce",
                "state": "completed" if number < 5 else "started",
                "time_created_ns": number,
            }
            for number in range(last)
        ]
        content = {"version": "1.4", "pg_config": {1: mates}, "entries": entries}
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content))
    assert is_evidence(tmp_path), "by names as torch gives them"
    evidence = gather(tmp_path)
    assert (evidence.rank, evidence.ranks) == (3, (3,))
    assert "group 1 of ranks 2, 3" in evidence.findings[0]


def test_dumps_of_torch_2_2_are_lists_of_entries(tmp_path):
    for rank in range(3):
        entries = [
            {
                "pg_id": 0,
                "seq_id": number,
                "profiling_name": "nccl:all_reduce",
                "state": "completed" if number < 4 else "scheduled",
                "retired": number < 4,
                "time_created_us": 100 + number,
                "frames": [{"filename": "/home/me/train.py", "line": 20 + number, "name": "step"}],
            }
            for number in reversed(range(4 if rank == 1 else 6))
        ]
        entries.append({**entries[0], "pg_id": 1, "seq_id": rank, "state": "scheduled"})
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(entries, protocol=2))
    evidence = gather(tmp_path)
    assert (evidence.cause, evidence.rank) == ("a rank never came to a collective", 1)
    assert "/home/me/train.py:23" in evidence.findings[0], evidence.findings
    assert any("other groups" in words for words in evidence.unknown)


def test_nccl_inspector_names_rank_and_host(tmp_path):
    lines = []
    for number in range(4):
        for rank in range(3):
            call = {"coll": "AllReduce", "coll_sn": number}
            call["coll_exec_time_us"] = 50 if rank == 2 else 5000
            header = {"id": "0x1", "rank": rank, "n_ranks": 3}
            one = {"header": header, "metadata": {"hostname": f"node{rank}"}, "coll_perf": call}
            lines.append(json.dumps(one))
    path = tmp_path / "inspector.log"
    path.write_text("\n".join(lines) + "\n{broken")
    evidence = gather(path)
    assert (evidence.cause, evidence.rank, evidence.host) == ("slow rank", 2, "node2")


@pytest.mark.parametrize("form", ["no header", "several lines each", "one list"])
def test_nccl_inspector_as_other_writers_have_it(tmp_path, form):
    entries = []
    for number in range(3):
        for rank in range(2):
            call = {"coll": "AllReduce", "coll_sn": number}
            call["coll_exec_time_us"] = 50 if rank == 1 else 5000
            header = {"id": "0x1", "rank": rank, "n_ranks": 2}
            metadata = {"hostname": f"node{rank}"}
            if form == "no header":
                entries.append(header | metadata | {"coll_perf": call})
            else:
                entries.append({"header": header, "metadata": metadata, "coll_perf": call})
    indent = 1 if form == "several lines each" else None
    text = "\n".join(json.dumps(one, indent=indent) for one in entries)
    if form == "one list":
        text = json.dumps(entries)
    path = tmp_path / "inspector.json"
    path.write_text(text)
    evidence = gather(path)
    assert (evidence.cause, evidence.rank, evidence.host) == ("slow rank", 1, "node1")


def test_nccl_inspector_with_messages_alone_is_refused_in_words_that_name_what_is_missing(tmp_path):
    message = {"p2p": "Send", "p2p_sn": 0, "p2p_peer": 1, "p2p_exec_time_us": 90}
    metadata = {"inspector_output_format_version": "v4.3"}
    line = {"header": {"id": "0x1", "rank": 0}, "metadata": metadata, "p2p_perf": message}
    path = tmp_path / "inspector.log"
    path.write_text(json.dumps(line))
    with pytest.raises(EvidenceError, match=r"messages between two ranks only .*coll_perf"):
        gather(path)


def test_the_cause_of_a_peak_is_the_largest_kind_with_its_share():
    shares = {"activations": 100, "optimizer": 250, "unknown": 150}
    assert (
        largest_kind(shares, "the peak of 500 B")
        == "optimizer states hold 50 % of the peak of 500 B"
    )
    unknown = largest_kind({"activations": 1, "unknown": 3}, "the 4 B in use")
    assert unknown == "blocks without a recorded stack hold 75 % of the 4 B in use"
    assert largest_kind({}, "the peak of 0 B") == "nothing was allocated"


def test_lines_of_nccl_inspector_after_a_marker_belong_to_it(tmp_path):
    for rank in range(2):
        marker = {
            "header": {"id": "0x1", "rank": rank, "n_ranks": 2, "nnodes": 2},
            "metadata": {"inspector_output_format_version": "v5.0", "hostname": f"node{rank}"},
            "dump_stats": {"coll_records": 3},
        }
        calls = [
            {"coll_perf": {"coll": "AllReduce", "coll_sn": number, "coll_exec_time_us": us}}
            for number, us in enumerate([40 if rank == 1 else 4000] * 3)
        ]
        lines = [json.dumps(one) for one in (marker, *calls)]
        (tmp_path / f"node{rank}-pid{rank}.log").write_text("\n".join(lines))
    evidence = gather(tmp_path)
    assert (evidence.cause, evidence.rank, evidence.host) == ("slow rank", 1, "node1")


def test_the_rank_that_calls_something_else_is_named_from_dumps(tmp_path):
    for rank in range(4):
        content = dump(rank, 20)
        for number, entry in enumerate(content["entries"]):
            entry.update(state="completed", retired=True, time_created_ns=number)
        name = "nccl:broadcast" if rank == 2 else "nccl:all_reduce"
        content["entries"][-1].update(profiling_name=name, state="started", retired=False)
        content["pg_config"]["0"]["ranks"] = "[0, 1, 2, 3]"
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content))
    assert is_evidence(tmp_path), "by names as torch gives them"
    evidence = gather(tmp_path)
    assert (evidence.cause, evidence.rank) == ("other operation", 2)


def test_waits_are_those_of_the_process_group(tmp_path):
    """Pairs of ranks; rank 3 is slow in its own, and the other pair does not wait for it."""
    for rank in range(4):
        events = []
        for step in range(5):
            length = 900 if rank == 2 else 100
            events += [launch(2 * step), launch(2 * step + 1)]
            start = 10_000 * step
            events.append(kernel("gemm", start, 1000 - length, 2 * step))
            name = "ncclDevKernel_AllReduce_Sum"
            work = kernel(name, start + 1000 - length, length, 2 * step + 1)
            ranks = "[0, 1]" if rank < 2 else "[2, 3]"
            work["args"] |= {"Process Group Ranks": ranks, "Process Group Description": "tp"}
            events.append(work)
        trace(tmp_path / f"rank-{rank}.json", events, rank)
    evidence = gather(tmp_path)
    assert (evidence.cause, evidence.rank) == ("slow rank", 3)
    assert any(one.startswith("rank 0 waited 0.0 ms") for one in evidence.findings)
    assert list(evidence.by_operation) == ["all_reduce"]
    told = evidence.as_data()["evidence"]["fixes"]
    assert "look at rank 3" in told[0]["fix"] and told[0]["worth"].startswith("up to x1.")


SMI = "timestamp, name, index, utilization.gpu [%], clocks.sm [MHz], power.draw [W]\n"
DCGMI = (
    "#Entity   GPUTL        SMCLK        POWER             DRVER        TMPTR        \n"
    "ID                     MHz          W                              C            \n"
)
"""As dcgmi prints it: columns as wide as their values, and again after some rows."""
DMON = (
    "# gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk \n"
    "# Idx      W      C      C      %      %    MHz    MHz \n"
)


def dcgmi_rows():
    for sample in range(3):
        yield DCGMI
        for gpu in range(4):
            mhz = 900 if gpu == 3 else 1800
            if sample == 0:  # the first sample after the engine has started
                figures = f"N/A          {mhz}         N/A    "
            else:
                figures = f"99           {mhz}         397.637"
            yield f"GPU {gpu}     {figures}           550.1 beta   41           \n"
        yield "Switch 0  N/A          N/A          N/A               550.1 beta   N/A          \n"


def exported_rows():
    for gpu in range(4):
        labels = f'gpu="{gpu}",UUID="GPU-{gpu}",device="nvidia{gpu}",Hostname="node-1"'
        yield "# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).\n"
        yield f"DCGM_FI_DEV_SM_CLOCK{{{labels}}} {900 if gpu == 3 else 1800}\n"


LOGS = {
    "query": SMI
    + "".join(f"t, A100, {g}, 99 %, {900 if g == 3 else 1800} MHz, 300 W\n" for g in range(4)),
    "dcgmi": "".join(dcgmi_rows()),
    "dmon": DMON
    + "".join(
        f"    {g}     86     33      -     97     27   6250   {900 if g == 3 else 1800} \n"
        for g in range(4)
    ),
    "exporter": "".join(exported_rows()),
}


@pytest.mark.parametrize("form", LOGS)
def test_a_slow_clock_stands_out_of_a_log(tmp_path, form):
    path = tmp_path / "gpus.log"
    path.write_text(LOGS[form])
    evidence = gather(path)
    assert evidence.kind == ("DCGM log" if form in ("dcgmi", "exporter") else "nvidia-smi log")
    assert evidence.cause == "slow clock of GPU 3"
    assert evidence.slowdown == pytest.approx(2.0)
    assert len([one for one in evidence.findings if ": " in one]) == 4


def test_rows_above_the_first_header_of_a_log_are_passed_over(tmp_path):
    path = tmp_path / "gpus.log"
    path.write_text("#Entity   DRVER  \n" + "GPU 0     550.1   7  \n" + LOGS["dcgmi"])
    assert gather(path).cause == "slow clock of GPU 3"


def test_values_of_a_log_are_those_of_their_columns(tmp_path):
    path = tmp_path / "gpus.log"
    path.write_text(LOGS["dcgmi"])
    told = gather(path).findings[0]
    assert told == (
        "GPU 0: utilization 99 % (least 99, most 99), clock 1,800 MHz (least 1,800, most 1,800), "
        "power 398 W (least 398, most 398), temperature 41 C (least 41, most 41)"
    )


def test_an_event_with_an_impossible_time_is_passed_over(tmp_path):
    events = [launch(1), kernel("gemm", 1, 2, 1), kernel("gemm", 10**17, 2, 1)]
    (device,) = gather(trace(tmp_path / "a.json", events)).devices
    assert device.busy_ms == pytest.approx(0.002)


def test_a_run_is_no_evidence(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    assert not is_evidence(tmp_path)
    assert not is_evidence(tmp_path / "run.json")
    assert not is_evidence(tmp_path / "nothing")


TABLE = (
    "Sat Jan 31 14:36:05 2026\n"
    "+-----------------------------------------+------------------------+----------------------+\n"
    "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
    "|=========================================+========================+======================|\n"
)


def drawn_rows():
    for sample in range(2):
        yield TABLE
        for gpu, used in enumerate((10 + sample, 20)):
            yield (
                f"|   {gpu}  NVIDIA A40                     On  |"
                f"   00000000:{gpu}1:00.0 Off |  0 |\n"
            )
            power = "N/A /  N/A" if gpu else " 24W /  300W"
            yield (
                f"|  0%   27C    P0             {power} |    1835MiB /  46068MiB |     {used}%"
                "      Default |\n"
            )


AMD = (
    "device,Temperature (Sensor edge) (C),Average Graphics Package Power (W),GPU use (%),"
    "VRAM Total Memory (B),VRAM Total Used Memory (B)\n"
)


def page(bus, gpu, heat):
    """A page of ``nvidia-smi -q`` of one GPU with two instances' worth of sections that mislead."""
    return f"""
==============NVSMI LOG==============

Attached GPUs                             : 1
GPU {bus}
    Product Name                          : NVIDIA H100 80GB HBM3
    MIG Devices
        Index                             : 0
            FB Memory Usage
                Used                      : 7 MiB
    Fan Speed                             : N/A
    Clocks Event Reasons
        SW Power Cap                      : Not Active
        HW Slowdown                       : {heat}
            HW Thermal Slowdown           : {heat}
    FB Memory Usage
        Total                             : 81559 MiB
        Used                              : 60000 MiB
    BAR1 Memory Usage
        Used                              : 1 MiB
    Utilization
        Gpu                               : {gpu} %
        Memory                            : 30 %
    Temperature
        GPU Current Temp                  : 71 C
        Memory Current Temp               : 90 C
    GPU Power Readings
        Power Draw                        : 412.10 W
    Module Power Readings
        Power Draw                        : 900.00 W
    Clocks
        Graphics                          : 1200 MHz
        SM                                : 1980 MHz
    Max Clocks
        SM                                : 2000 MHz

"""


OTHER_LOGS = {
    "dcgmi profiling": (
        "#Entity   GRACT        SMACT        DRAMA\nID\n"
        + 3
        * "GPU 0     0.250        0.120        0.310\nGPU 1     N/A          N/A          N/A\n",
        "GPU 0: utilization 25 %",
    ),
    "table": ("".join(drawn_rows()), "GPU 0: utilization 10 %", "memory 1,835 MiB"),
    "dmon csv": (
        "#gpu, pwr, gtemp, mtemp, sm, mem, mclk, pclk\n#Idx, W, C, C, %, %, MHz, MHz\n"
        "0, 86, 33, -, 97, 27, 6250, 900\n0, 86, 33, -, 97, 27, 6250, 900\n",
        "GPU 0: utilization 97 %",
        "clock 900 MHz",
    ),
    "rocm-smi": (
        2 * f"{AMD}card0,45.0,812.0,82,309237645312,2147483648\ncard1,44.0,798.0,79,1,1048576\n\n",
        "GPU 0: utilization 82 %",
        "memory 2,048 MiB",
    ),
    "rocm-smi lines": (
        "===== ROCm System Management Interface =====\n"
        "GPU[0]\t\t: Temperature (Sensor edge) (C): 45.0\nGPU[0]\t\t: GPU use (%): 82\n"
        "GPU[0]\t\t: VRAM Total Used Memory (B): 2147483648\nGPU[1]\t\t: GPU use (%): 3\n",
        "GPU 0: utilization 82 %",
        "memory 2,048 MiB",
    ),
    "rocm-smi table": (
        "=== Concise Info ===\nDevice  [Model : Revision]  Temp  Power  Partitions  SCLK  MCLK "
        " Fan  Perf  PwrCap  VRAM%  GPU%\n        Name (20 chars)  (Edge)  (Avg)\n========\n"
        "0  [0x0b0c : 0x00]  55.0°C  292.0W  N/A, N/A  "
        "1425Mhz  1600Mhz  0%  manual  500.0W  38%  97%\n"
        "        AMD INSTINCT MI200 (\n"
        "1  [0x0b0c : 0x00]  51.0°C  N/A  N/A, N/A  "
        "1425Mhz  1600Mhz  0%  manual  0.0W  38%  100%\n",
        "GPU 0: utilization 97 %, clock 1,425 MHz, power 292 W, temperature 55 C",
    ),
    "rocm-smi table of old": (
        "GPU  Temp   AvgPwr  SCLK     MCLK     Fan  Perf    PwrCap  VRAM%  GPU%\n"
        "0    42.0c  N/A  1650Mhz  1600Mhz  0%   manual  500.0W   78%   95%\n",
        "GPU 0: utilization 95 %, clock 1,650 MHz, temperature 42 C",
    ),
    "amd-smi": (
        "timestamp,gpu,gfx_activity,umc_activity,socket_power,gfx_0_clk,mem_0_clk,edge,hotspot,mem\n"
        "1,0,95,80,1180,2100,2000,N/A,78,60\n2,0,93,80,1180,2100,2000,N/A,78,60\n",
        "GPU 0: utilization 94 %",
        "clock 2,100 MHz",
    ),
    "pmon": (
        "# gpu   pid  type    sm   mem    fb   command\n# "
        "Idx     #   C/G     %     %    MB   name\n"
        + 2
        * (
            "    0    11     C    40     4  1000   python train.py\n"
            "    0    12   C+G     8     1    20   Xorg\n    1     -     -     -     -     -   -\n"
        ),
        "GPU 0: utilization 48 % (least 48, most 48)",
        "memory 1,020 MiB",
    ),
    "pmon with times": (
        "#Date       Time        gpu   pid  type    sm   mem   command\n"
        " 20261123   09:00:01      0    11     C    40     4   python\n"
        " 20261123   09:00:02      0    11     C    60     4   python\n",
        "GPU 0: utilization 50 % (least 40, most 60)",
    ),
    "-q": (
        page("00000000:18:00.0", gpu=96, heat="Active")
        + page("00000000:18:00.0", gpu=98, heat="Not Active"),
        "GPU 00000000:18:00.0: utilization 97 %",
        "clock 1,980 MHz",
        "power 412 W",
        "temperature 71 C",
        "memory 60,000 MiB",
        "lowered by heat in 50 % of the samples with work",
    ),
}


@pytest.mark.parametrize("form", OTHER_LOGS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_logs_of_other_forms_and_encodings(tmp_path, form, encoding):
    text, *words = OTHER_LOGS[form]
    path = tmp_path / "gpus.log"
    path.write_bytes(text.encode(encoding))
    told = gather(path).findings[0]
    assert all(word in told for word in words), told


def test_a_row_with_more_cells_than_the_header_is_passed_over(tmp_path):
    """A decimal comma would move each value to the next column."""
    path = tmp_path / "gpu.csv"
    path.write_text(
        "timestamp,utilization.gpu,memory.used\n"
        "2024-01-01T00:00:00,123+00:00,90,4000\n"
        "2024-01-01T00:00:01,80,4000\n"
        "2024-01-01T00:00:02,70,4000,\n"
    )
    assert "utilization 75 % (least 70, most 80)" in gather(path).findings[0]


def test_gpus_that_share_an_index_are_told_apart_and_a_row_cut_off_is_passed_over(tmp_path):
    path = tmp_path / "gpus.csv"
    rows = [f"t,{gpu}, 0, {70 + gpu}" for gpu in (0, 1, 0, 1)]
    path.write_text("timestamp,gpu,index,power.draw\n" + "\n".join(rows) + "\n\0\0\0 0, 99\n")
    told = gather(path).findings
    assert [one.partition(" (")[0] for one in told] == ["GPU 0: power 70 W", "GPU 0 1: power 71 W"]


def test_what_is_no_such_log_is_refused_with_the_way_out(tmp_path):
    path = tmp_path / "gpus.csv"
    path.write_text("0, Tesla V100, 99 %, 1024 MiB\n")
    with pytest.raises(EvidenceError, match="without noheader"):
        gather(path)
    path.write_text("\n==============NVSMI LOG==============\n\n    Gpu    : 63 %\n")
    with pytest.raises(EvidenceError, match=r"log at least utilization\.gpu"):
        gather(path)
    path.write_text("[04-03-2021 @ 13:32:39] >  Temp: 58C  Power: 1/250 W\n")
    with pytest.raises(EvidenceError, match="none of these"):
        gather(path)
    path.write_text('{"schema": "1.0.3-chakra.0.0.4", "pid": 9, "nodes": []}')
    with pytest.raises(EvidenceError, match="execution trace"):
        gather(path)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(__file__, "trace.json")
    with pytest.raises(EvidenceError, match="unpack it"):
        gather(path)


HOT = "clocks_throttle_reasons.sw_thermal_slowdown"


@pytest.mark.parametrize(
    ("title", "hot", "cool"),
    [
        (HOT, "Active", "Not Active"),
        ("clocks_event_reasons.active", "0x0000000000000044", "0x0000000000000004"),
    ],
)
def test_heat_that_lowers_the_clock_under_load_is_the_cause(tmp_path, title, hot, cool):
    path = tmp_path / "gpus.csv"
    head = f"index, utilization.gpu [%], clocks.sm [MHz], {title}\n"
    path.write_text(head + 8 * f"0, 99 %, 1300 MHz, {cool}\n1, 99 %, 1300 MHz, {hot}\n")
    evidence = gather(path)
    assert evidence.cause == "heat lowers the clock of GPU 1 (in 100 % of its samples with work)"
    told = [one.partition("; its clock is lowered by ")[2] for one in evidence.findings]
    assert "heat" not in told[0] and told[1].startswith("heat in 100 %")
    path.write_text(head + 8 * f"0, 99 %, 1900 MHz, {cool}\n1, 99 %, 900 MHz, {hot}\n")
    assert gather(path).cause == "slow clock of GPU 1: heat"
    path.write_text(head + 8 * f"0, 99 %, 1900 MHz, {cool}\n1, 3 %, 900 MHz, {hot}\n")
    assert "heat" not in gather(path).cause


def test_a_counter_with_the_title_of_a_share_is_none(tmp_path):
    path = tmp_path / "gpus.csv"
    path.write_text("gpu,gfx_activity,socket_power\n0,87772295,152\n0,87772467,153\n")
    assert gather(path).findings[0].startswith("GPU 0: power 152 W")


def test_one_sample_says_nothing_of_the_time(tmp_path):
    path = tmp_path / "gpus.csv"
    path.write_text("index, utilization.gpu [%]\n0, 3 %\n")
    evidence = gather(path)
    assert evidence.cause == "nothing stands out"
    assert any("one sample" in sentence for sentence in evidence.unknown)


def one_of_each(folder):
    """A sound file of every kind, in memory."""
    snapshot = two_segments(folder / "s", kept=2).read_bytes()
    yield "a.json", json.dumps({"traceEvents": [kernel("gemm", 1, 2, 3), launch(3)]}).encode()
    yield "a.pickle", pickle.dumps(dump(0, 3))
    yield "b.pickle", snapshot
    for protocol in (0, 1):
        yield f"dump of {protocol}.pickle", pickle.dumps(dump(0, 3), protocol)
        yield f"snapshot of {protocol}.pickle", pickle.dumps(pickle.loads(snapshot), protocol)
    yield "a.csv", pipeline()
    yield "a.csv.gz", gzip.compress(pipeline(), mtime=0)
    inspector = {"header": {"id": "0x1", "rank": 0, "n_ranks": 2}, "metadata": {"hostname": "a"}}
    call = {"coll_perf": {"coll": "AllReduce", "coll_sn": 1, "coll_exec_time_us": 50}}
    yield "inspector.jsonl", (3 * (json.dumps(inspector | call) + "\n")).encode()
    yield "inspector.json", json.dumps(3 * [inspector | call], indent=1).encode()
    for form, text in LOGS.items():
        yield f"{form}.log", text.encode()
    for form, (text, *_) in OTHER_LOGS.items():
        yield f"{form}.log", text.encode()


def test_mutated_files_are_judged_or_refused_in_one_line(tmp_path):
    rng = random.Random(3)
    refused = 0
    for name, sound in list(one_of_each(tmp_path)):
        for turn in range(25):
            data = bytearray(sound)
            for _ in range(rng.choice([1, 4, 30])):
                data[rng.randrange(len(data))] = rng.randrange(256)
            if turn % 4 == 0:
                del data[rng.randrange(len(data)) :]
            path = tmp_path / name
            path.write_bytes(data)
            try:
                as_text(gather(path), 80)
            except EvidenceError as error:
                refused += 1
                assert "\n" not in str(error)
    assert refused > 30


def test_why_and_report_of_a_path(tmp_path, capsys):
    path = tmp_path / "timeline.csv"
    path.write_bytes(pipeline(slow=(1, 0)))
    assert main(["why", str(path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert list(answer) == [
        "cause",
        "rank",
        "host",
        "slowdown",
        "by_worker",
        "by_stage",
        "by_operation",
    ]
    assert (answer["cause"], answer["rank"]) == ("slow worker", 1)
    for words in (["why"], ["report"], ["report", "--md"]):
        assert main([*words, str(path)]) == 0
        assert "slow worker, rank 1" in capsys.readouterr().out
    page = tmp_path / "page.html"
    assert main(["report", str(path), "--html", str(page)]) == 0
    assert "slow worker, rank 1" in page.read_text()
    assert main(["report", str(path), "--watch"]) == 2
    assert "is for runs of gputop" in capsys.readouterr().err


async def test_open_shows_it_on_a_screen(tmp_path):
    from gputop.app.evidence import EvidenceApp

    path = tmp_path / "timeline.csv"
    path.write_bytes(pipeline(slow=(1, 0)))
    app = EvidenceApp(gather(path))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "slow worker, rank 1" in str(app.query_one("#text").render())
        await pilot.press("q")
    assert app.return_code == 0


def test_why_of_a_run_gives_the_first_finding_with_place_gain_and_fix(tmp_path, capsys):
    build = Builder(tmp_path / "r")
    build.hello(dataloader={"num_workers": 0, "dataset_length": 4000, "site": "train.py:9"})
    build.steps(200, forward=5.0, backward=5.0, data=20.0)
    assert main(["why", str(build.path)]) == 0
    answer = capsys.readouterr().out
    for words in (
        "IN02",
        "evidence",
        "wins back",
        "fix",
        "num_workers",
        f"gputop report {build.path}",
    ):
        assert words in answer
    quiet = Builder(tmp_path / "quiet")
    quiet.hello()
    quiet.steps(200, forward=5.0, backward=9.0)
    assert main(["why", str(quiet.path)]) == 0
    assert "bottleneck" in capsys.readouterr().out
