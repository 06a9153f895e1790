"""The device clock's pool and bookkeeping on events that a test can complete at will."""

import math

import pytest

from gputop_agent import wire
from gputop_agent.runtime import transport
from gputop_agent.timing import device, memory


class FakeGpu:
    """A stream whose clock the test moves; events complete when ``done_upto`` passes them."""

    def __init__(self):
        self.now_ms = 0.0
        self.done_upto = -1.0
        self.capturing = False
        self.made = 0

    def event(self):
        self.made += 1
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, gpu):
        self._gpu = gpu
        self.at = None

    def record(self):
        assert not self._gpu.capturing, "recorded inside a capture"
        self.at = self._gpu.now_ms

    def query(self):
        return self.at <= self._gpu.done_upto

    def elapsed_time(self, end):
        assert self.query() and end.query(), "read before it was done"
        return end.at - self.at


class FakeScalar:
    is_cuda = True

    def __init__(self, value):
        self.value = value

    def numel(self):
        return 1

    def detach(self):
        return self

    def reshape(self, _):
        return self

    def element_size(self):
        return 4

    dtype = "float32"


class FakeSlot:
    """Eight bytes of pinned memory, and the value that they are seen as."""

    value = 0.0

    def __getitem__(self, part):
        assert part == slice(4)
        return self

    def view(self, dtype):
        assert dtype == "float32", "a value is copied as it is: a conversion would be a kernel"
        return self

    def copy_(self, source, non_blocking):
        assert non_blocking
        self.value = source.value

    def item(self):
        return self.value


STEP_NS = 50_000_000


@pytest.fixture
def sent(monkeypatch):
    records = []
    monkeypatch.setattr(
        transport, "send_records", lambda kind, data: records.append(wire.DEVICE.unpack(data))
    )
    monkeypatch.setattr(
        transport, "send_event", lambda type_, **fields: records.append((type_, fields))
    )
    return records


@pytest.fixture
def gpu():
    return FakeGpu()


@pytest.fixture
def clock(gpu):
    return device.DeviceClock(gpu.event, lambda: gpu.capturing, [FakeSlot() for _ in range(4)])


def as_dict(record):
    return dict(zip([name for name, _ in wire.DEVICE_FIELDS], record, strict=True))


def run_step(clock, gpu, step, micro_batches=1, step_ns=STEP_NS):
    for _ in range(micro_batches):
        for point, cost in (
            ("data_end", 1),
            ("forward_begin", 2),
            ("forward_end", 10),
            ("backward_end", 20),
        ):
            gpu.now_ms += cost
            clock.mark(point)
    gpu.now_ms += 5
    clock.mark("optimizer_end")
    gpu.now_ms += 3
    clock.on_step_closed(step, (step + 1) * step_ns, 0)


def test_parts_add_up_and_arrive_two_steps_late(clock, gpu, sent):
    for step in range(3):
        run_step(clock, gpu, step)
    assert sent == []  # nothing is done yet on the device
    gpu.done_upto = gpu.now_ms
    run_step(clock, gpu, 3)
    found = as_dict(sent[0])
    assert (
        found["step"] == 1 and found["t_end_ns"] == 2 * STEP_NS
    )  # the clock starts at the first boundary
    parts = [
        found[f"{name}_ms"] for name in ("data", "h2d", "forward", "backward", "optimizer", "other")
    ]
    assert parts == [1, 2, 10, 20, 5, 3] and found["total_ms"] == 41
    assert math.isnan(found["loss"]) and math.isnan(found["grad_norm"])


def test_micro_batches_are_summed(clock, gpu, sent):
    for step in range(5):
        run_step(clock, gpu, step, micro_batches=3)
        gpu.done_upto = gpu.now_ms
    found = as_dict(sent[0])
    assert (
        found["forward_ms"] == 30 and found["backward_ms"] == 60 and found["total_ms"] == 33 * 3 + 8
    )


def test_events_are_reused(clock, gpu, sent):
    for step in range(200):
        gpu.done_upto = gpu.now_ms
        run_step(clock, gpu, step)
    assert len(sent) > 150 and gpu.made <= 7 * 4


def test_fast_loops_are_sampled_not_followed(clock, gpu, sent):
    for step in range(1000):
        gpu.done_upto = gpu.now_ms
        run_step(clock, gpu, step, step_ns=1_000_000)
    assert 20 <= len(sent) <= 25  # one in 40 ms of the 1000 ms


def test_a_device_far_behind_stops_the_sampling_but_not_the_training(clock, gpu, sent):
    for step in range(100):
        run_step(clock, gpu, step)
    assert gpu.made <= 7 * 10 and sent == []
    gpu.done_upto = math.inf
    run_step(clock, gpu, 100)
    assert len(sent) == device._MAX_PENDING


def test_nothing_is_recorded_while_a_graph_is_captured(clock, gpu, sent):
    run_step(clock, gpu, 0)
    gpu.capturing = True
    run_step(clock, gpu, 1)
    gpu.capturing = False
    gpu.done_upto = math.inf
    for step in range(2, 8):
        run_step(clock, gpu, step)
    assert [as_dict(record)["step"] for record in sent] == [3, 4, 5]


def test_late_scalars_come_with_the_step_and_slots_return(clock, gpu, sent, monkeypatch):
    ticks = iter(range(0, 10**12, 60_000_000))
    monkeypatch.setattr(device, "monotonic_ns", lambda: next(ticks))
    for step in range(30):
        gpu.done_upto = gpu.now_ms
        clock.late_scalar("loss", FakeScalar(float(step)))
        clock.late_scalar("grad_norm", FakeScalar(1e300 if step == 5 else 2.0))
        run_step(clock, gpu, step)
    by_step = {as_dict(r)["step"]: as_dict(r) for r in sent}
    assert all(
        found["loss"] == step for step, found in by_step.items() if not math.isnan(found["loss"])
    )
    assert sum(not math.isnan(found["loss"]) for found in by_step.values()) >= 10
    assert all(
        v == 2.0 or math.isinf(v)
        for v in (f["grad_norm"] for f in by_step.values())
        if not math.isnan(v)
    )


def test_a_nan_loss_on_the_device_is_an_event(clock, gpu, sent):
    clock.late_scalar("loss", FakeScalar(float("nan")))
    gpu.done_upto = math.inf
    for step in range(4):
        run_step(clock, gpu, step)
    assert ("nonfinite", {"step": 0, "value": "nan"}) in sent


def test_logged_cuda_scalars_become_a_log_event(clock, gpu, sent):
    clock.late_scalar(device.LOG_PREFIX + "reward", FakeScalar(7.0))
    gpu.done_upto = math.inf
    for step in range(4):
        run_step(clock, gpu, step)
    assert ("log", {"step": 0, "values": {"reward": 7.0}}) in sent


def _parts(clock, gpu, sent, *marks):
    """Phases of the second of some steps with these marks, each so many milliseconds later."""
    for step in range(6):
        for point, later_ms in marks:
            gpu.now_ms += later_ms
            clock.mark(point)
        gpu.done_upto = gpu.now_ms
        clock.on_step_closed(step, step * STEP_NS, 0)
    return next(as_dict(record) for record in sent if as_dict(record)["step"] == 2)


@pytest.mark.parametrize("gap_ms, forward_ms, other_ms", [(2, 10, 4), (9, 8, 13)])
def test_a_loss_after_the_forward_is_forward_and_host_code_there_is_other(
    clock, gpu, sent, gap_ms, forward_ms, other_ms
):
    forward = (("forward_begin", 1), ("forward_end", 8), ("backward_begin", gap_ms))
    later = (("backward_end", 16), ("optimizer_begin", 3), ("optimizer_end", 4))
    parts = _parts(clock, gpu, sent, *forward, *later)
    assert (parts["forward_ms"], parts["other_ms"]) == (forward_ms, other_ms)
    assert (parts["backward_ms"], parts["optimizer_ms"]) == (16, 4)


def test_gradients_that_are_clipped_belong_to_the_update(clock, gpu, sent):
    clip = (("optimizer_begin", 1), ("optimizer_begin", 2), ("optimizer_end", 4))
    marks = (("forward_begin", 1), ("forward_end", 8), ("backward_begin", 0), ("backward_end", 9))
    assert _parts(clock, gpu, sent, *marks, *clip)["optimizer_ms"] == 6


def test_without_cuda_the_marks_do_nothing():
    assert device.timer.mark is device._no_mark and device.timer.mark("data_end") is None
    device.on_step_closed(0, 0, 0)


class FakeAllocator:
    def __init__(self):
        self.current, self.peak, self.reserved = 100, 100, 500
        self._C = self

    def _cuda_memoryStats(self, index):
        return {
            "allocated_bytes": {"all": {"current": self.current, "peak": self.peak}},
            "reserved_bytes": {"all": {"current": self.reserved}},
        }


@pytest.fixture
def allocator():
    fake = FakeAllocator()
    memory.activate(fake, 0)
    yield fake
    memory.reset()


def test_peak_of_a_step_without_resetting_anything(allocator):
    allocator.peak = 900
    assert memory.read()[:3] == (100, 500, 900)  # grew since activation
    allocator.current = 300
    memory.note()
    allocator.current = 120
    assert memory.read()[:3] == (120, 500, 300)  # the counter stood still: the highest mark
    assert memory.read()[2] == 120
    allocator.peak = 950
    assert memory.read()[2] == 950
    allocator.peak = 400  # the user reset the statistics
    assert memory.read()[2] == 400


def test_resident_set_is_that_of_this_process():
    memory.reset()
    allocated, reserved, peak, rss = memory.read()
    assert (allocated, reserved, peak) == (-1, -1, -1)
    with open("/proc/self/status") as file:
        expected = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))
    assert abs(rss - expected) < 0.1 * expected
