"""The trace analysis on hand-made traces whose answers are known to the nanosecond (synthetic
device traces).
"""

import gzip
import json
from pathlib import Path

import pytest

from gputop_analysis.traces import TraceError, analyse_trace, find_traces
from gputop_analysis.traces.html import as_html
from gputop_analysis.traces.text import as_dict, as_text

# as the profiler writes them: a double does not hold such a time to the nanosecond
BASE_US = 4_388_017_071_434


def span(cat, name, at, duration, pid=1, tid=1, **args):
    """One complete event; ``at`` and ``duration`` in us."""
    event = {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": BASE_US + at,
        "dur": duration,
    }
    return {**event, "args": args} if args else event


def kernel(name, at, duration, stream=7, device=0, link=None, **args):
    more = {} if link is None else {"correlation": link}
    return span(
        "kernel",
        name,
        at,
        duration,
        pid=device,
        tid=stream,
        device=device,
        stream=stream,
        **more,
        **args,
    )


def launch(at, duration, link, name="cudaLaunchKernel"):
    return span("cuda_runtime", name, at, duration, correlation=link)


def write(path, events, **header):
    path.write_text(
        json.dumps({"schemaVersion": 1, **header, "traceEvents": events, "traceName": "x"})
    )
    return path


@pytest.fixture
def one_device(tmp_path):
    """100 us: compute 10-40 and 60-70, all-reduce 30-55, a copy 50-58, the kernel at 60 launched at
    59, idle to 100.
    """
    events = [
        span("user_annotation", "ProfilerStep#3", 0, 50),
        span("user_annotation", "ProfilerStep#4", 50, 50),
        launch(0, 2, 1),
        launch(3, 2, 2),
        launch(4, 1, 3, "cudaMemcpyAsync"),
        launch(58.5, 0.5, 4),
        span("cuda_runtime", "cudaStreamSynchronize", 70, 25, correlation=9),
        kernel("gemm", 10, 30, link=1),
        kernel(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            30,
            25,
            stream=20,
            link=2,
            **{
                "Collective name": "allreduce",
                "In msg nelems": 1024,
                "Out msg nelems": 1024,
                "dtype": "Float",
            },
        ),
        {
            **kernel("Memcpy HtoD (Pinned -> Device)", 50, 8, link=3, bytes=4096),
            "cat": "gpu_memcpy",
        },
        kernel("gemm", 60, 10, link=4),
    ]
    return write(
        tmp_path / "trace.json", events, deviceProperties=[{"id": 0, "name": "NVIDIA H200"}]
    )


def test_a_device_is_split_exactly(one_device):
    (lane,) = analyse_trace(one_device).lanes
    assert (lane.name, lane.kind, lane.wall_ms) == ("GPU 0 NVIDIA H200", "device", 0.1)
    # idle: 0-2 nothing launched, 2-10 the gemm was launched, 58-59 nothing, 59-60 launched, 70-100
    # nothing
    assert lane.parts_ms == pytest.approx(
        {
            "compute": 0.040,
            "communication": 0.015,
            "copy": 0.003,
            "kernel_wait": 0.009,
            "host_wait": 0.033,
        },
        abs=1e-9,
    )
    assert lane.communication_ms == pytest.approx(0.025) and lane.overlapped == pytest.approx(0.4)


def test_steps_have_their_own_split(one_device):
    (lane,) = analyse_trace(one_device).lanes
    third, fourth = lane.steps
    assert (third.name, third.wall_ms) == ("3", 0.05)
    assert third.parts_ms == pytest.approx(
        {
            "compute": 0.030,
            "communication": 0.010,
            "copy": 0.0,
            "kernel_wait": 0.008,
            "host_wait": 0.002,
        },
        abs=1e-9,
    )
    assert fourth.parts_ms["copy"] == pytest.approx(0.003) and fourth.parts_ms[
        "compute"
    ] == pytest.approx(0.010)


def test_collectives_kernels_and_waits_by_name(one_device):
    report = analyse_trace(one_device)
    (lane,) = report.lanes
    (one,) = lane.collectives
    assert (one.name, one.operation, one.count, one.bytes) == (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "all_reduce",
        1,
        4096,
    )
    assert one.total_ms == pytest.approx(0.025) and one.exposed_ms == pytest.approx(0.015)
    hottest = lane.hot[0]
    assert (hottest.name, hottest.count, hottest.total_ms) == ("gemm", 2, pytest.approx(0.04))
    assert [(call.name, call.total_ms) for call in report.calls] == [
        ("cudaStreamSynchronize", pytest.approx(0.025))
    ]


def test_collectives_of_two_streams_count_exposed_time_once(tmp_path):
    events = [
        kernel("nccl:a AllGather", 0, 10, stream=1),
        kernel("ncclKernel_ReduceScatter_x", 5, 10, stream=2),
    ]
    (lane,) = analyse_trace(write(tmp_path / "t.json", events)).lanes
    assert lane.parts_ms["communication"] == pytest.approx(0.015)
    assert sum(one.exposed_ms for one in lane.collectives) == pytest.approx(
        0.020
    )  # each on its own
    assert "idle" in lane.parts_ms  # no launches in the trace: why it is idle is not known


def test_devices_apart_and_a_graph_launched_at_once(tmp_path):
    events = [launch(0, 1, 5, "cudaGraphLaunch")]
    events += [
        kernel("a", 2, 3, device=0, link=5),
        kernel("b", 9, 1, device=0, link=5),
        kernel("c", 4, 2, device=1),
    ]
    first, second = analyse_trace(write(tmp_path / "t.json", events)).lanes
    assert first.name == "GPU 0" and first.parts_ms["kernel_wait"] == pytest.approx(
        0.004
    )  # the gap inside the graph
    assert second.name == "GPU 1" and second.wall_ms == pytest.approx(0.002)


def test_bytes_come_from_the_host_operator_where_the_kernel_has_none(tmp_path):
    told = {
        "External id": 77,
        "Collective name": "_allgather_base",
        "In msg nelems": 8,
        "Out msg nelems": 16,
    }
    events = [
        span("cpu_op", "record_param_comms", 0, 1, **told, dtype="BFloat16"),
        kernel("ncclDevKernel_Generic(x)", 3, 1, **{"External id": 77}),
    ]
    (one,) = analyse_trace(write(tmp_path / "t.json", events)).lanes[0].collectives
    assert one.bytes == 32 and one.operation == "all_gather"


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float", "all_reduce"),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce"),
        (
            "ncclDevKernel_ReduceScatter_Sum_bf16_RING_SIMPLE(ncclDevComm*, "
            "unsigned long, ncclWork*)",
            "reduce_scatter",
        ),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("void ncclDevKernel_AllGather_RING_LL(x)", "all_gather"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t", "broadcast"),
        ("void c10d::symmetric_memory::two_shot_all_reduce_kernel<float>(x)", "all_reduce"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel<2>(x)", "all_reduce"),
        ("void quickreduce::allreduce_prototype_twoshot<4>(x)", "all_reduce"),
        ("void deep_ep::internode_ll::dispatch<true, 7168>(void*)", "dispatch"),
        ("void dpsk::ep::intranode::combine<__nv_bfloat16, 8>(int4*)", "combine"),
        ("EpCombineInterNodeKernel_bf16", "combine"),
        ("void moeA2ADispatchKernel<8>(int const*)", "dispatch"),
        ("kuserbuffers_pushsend(int, int*)", "userbuffers"),
    ],
)
def test_names_of_old_and_new_collectives(tmp_path, name, operation):
    events = [kernel(name, 0, 4), kernel("void at::native::reduce_kernel<512>(x)", 1, 2)]
    (lane,) = analyse_trace(write(tmp_path / "t.json", events)).lanes
    assert [one.operation for one in lane.collectives] == [operation]
    assert lane.parts_ms["communication"] == pytest.approx(0.002)


def test_a_training_thread_where_there_is_no_device(tmp_path):
    """0-10 forward, 10-20 Python, 20-40 backward, 40-60 waiting for the all-reduce that runs from
    30 to 60.
    """
    events = [
        {
            "ph": "M",
            "name": "thread_name",
            "pid": 1,
            "tid": 1,
            "args": {"name": "thread 1 (python)"},
        },
        span("cpu_op", "aten::linear", 0, 10),
        span("cpu_op", "aten::addmm", 1, 8),
        span("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 20, 20),
        span("cpu_op", "c10d::allreduce_", 28, 2),
        span("user_annotation", "gloo:all_reduce", 30, 30, tid=2),
        span("cpu_op", "aten::copy_", 30, 5, tid=2),
        span("cpu_op", "_c10d_functional::wait_tensor", 40, 20),
        span("python_function", "train.py(3): main", 0, 1000),
    ]
    report = analyse_trace(
        write(tmp_path / "t.json", events, distributedInfo={"rank": 1, "world_size": 2})
    )
    (lane,) = report.lanes
    assert (lane.name, lane.kind, report.rank, report.world_size) == (
        "thread 1 (python)",
        "thread",
        1,
        2,
    )
    assert lane.parts_ms == pytest.approx(
        {"compute": 0.028, "communication": 0.020, "host": 0.012}, abs=1e-9
    )
    assert (
        lane.collectives[0].exposed_ms == pytest.approx(0.020) and lane.collectives[0].bytes is None
    )
    assert {hot.name: hot.total_ms for hot in lane.hot}["aten::linear"] == pytest.approx(
        0.002
    )  # less what is inside


def test_math_attention_is_flagged(tmp_path):
    events = [span("cpu_op", "aten::_scaled_dot_product_attention_math", i, 1) for i in range(3)]
    events.append(span("cpu_op", "aten::_scaled_dot_product_flash_attention_for_cpu", 9, 1))
    report = analyse_trace(write(tmp_path / "t.json", events))
    assert (
        report.math_attention
        and report.attention == {"math": 3, "flash": 1}
        and "CE06" in as_text(report, 80)
    )


def test_every_form_of_the_file_says_the_same(one_device):
    whole = analyse_trace(one_device).lanes
    data = json.loads(one_device.read_text())
    packed = one_device.with_suffix(".json.gz")
    packed.write_bytes(
        gzip.compress(one_device.read_bytes()[:500]) + gzip.compress(one_device.read_bytes()[500:])
    )
    indented = one_device.with_name("indented.json")
    indented.write_text(json.dumps(data, indent=2).replace("traceName", "näme\t"))
    assert analyse_trace(packed).lanes == whole and analyse_trace(indented).lanes == whole
    bare = one_device.with_name("bare.json")
    bare.write_text(json.dumps(data["traceEvents"]))
    assert analyse_trace(bare).lanes[0].parts_ms == whole[0].parts_ms


def test_a_cut_off_trace_is_analysed_as_far_as_it_goes(tmp_path):
    events = [kernel("k", 10 * i, 5) for i in range(50_000)]  # several chunks of reading
    path = write(tmp_path / "t.json", events)
    data = path.read_bytes()
    assert analyse_trace(path).lanes[0].parts_ms["compute"] == pytest.approx(250.0)
    for cut, packed in (
        (len(data) - 3, False),
        (len(data) * 2 // 3, False),
        (len(data) // 3, True),
    ):
        path.write_bytes(gzip.compress(data)[: -len(data) // 60] if packed else data[:cut])
        report = analyse_trace(path)
        assert report.torn and 1000 < report.events <= 50_000 and "not whole" in as_text(report, 80)
        assert report.lanes[0].parts_ms["compute"] == pytest.approx(report.events * 0.005)
    middle = data.index(b'{"ph"', len(data) // 2)
    path.write_bytes(data[:middle] + b"garbage, " + data[middle:])
    report = analyse_trace(path)
    assert report.torn == "the file is damaged" and report.events > 20_000


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"{}", b'{"traceEvents": []}', b"[1, 2]", b"\x1f\x8bxx", b'{"a": 1']
)
def test_a_foreign_file_is_one_line(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        analyse_trace(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_an_empty_list_of_events_is_called_so(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": []}')
    with pytest.raises(TraceError, match="traceEvents is empty"):
        analyse_trace(path)


@pytest.mark.parametrize("bare", [False, True])
def test_a_mark_of_the_byte_order_is_no_part_of_a_trace(tmp_path, bare):
    """As PowerShell and editors on Windows put it before what they write."""
    from gputop_analysis.evidence import gather

    path = tmp_path / "x.json"
    events = [span("cpu_op", "aten::mm", 0, 10), span("kernel", "gemm", 5, 10)]
    text = json.dumps(events if bare else {"traceEvents": events})
    path.write_text(text, encoding="utf-8-sig")
    assert analyse_trace(path).events == 2
    assert gather(path).kind == "torch.profiler trace"


def test_odd_events_do_no_harm(tmp_path):
    odd = [
        None,
        3,
        {"ph": "X"},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": "soon"},
        {"ph": "M", "name": "thread_name"},
    ]
    odd += [
        span("kernel", ["a"], 0, 1),
        span("kernel", "k", 0, -4),
        {**span("cpu_op", "x", 0, 1), "pid": {}},
    ]
    odd.append({**kernel("k", 0, 1), "args": {"device": 0, "stream": None, "correlation": "x"}})
    report = analyse_trace(write(tmp_path / "t.json", [*odd, kernel("good", 0, 4, link=2**70)]))
    assert {hot.name for hot in report.lanes[0].hot} >= {"good"}


def test_output_for_people_and_programs(one_device):
    report = analyse_trace(one_device)
    text = as_text(report, 80)
    assert max(map(len, text.splitlines())) <= 80 and "host wait" in text and text.isascii()
    data = json.loads(json.dumps(as_dict(report), allow_nan=False))
    assert (
        data["lanes"][0]["parts_ms"]["compute"] == pytest.approx(0.04)
        and data["math_attention"] is False
    )
    assert "<script" not in as_html(report) and "ncclDevKernel_AllReduce" in as_html(report)


def test_traces_of_a_run_are_found(tmp_path):
    (tmp_path / "traces").mkdir()
    names = ["host_1.17.pt.trace.json.gz", "run.json", "traces/rank-00000.trace.json"]
    for name in names:
        (tmp_path / name).touch()
    assert [str(p.relative_to(tmp_path)) for p in find_traces(Path(tmp_path))] == [
        names[0],
        names[2],
    ]
