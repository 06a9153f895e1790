"""Allocator snapshots: real ones replayed to the byte, made-up ones worked out on paper, evil ones
refused.
"""

import gzip
import json
import pickle
import random
import struct
from pathlib import Path

import pytest
from recordings_support import BUNDLED, event, frame, recordings, segment, write_snapshot

from gputop.cli import main
from gputop_analysis.evidence import gather
from gputop_analysis.snapshots import SnapshotError, load
from gputop_analysis.snapshots.analyse import analyse
from gputop_analysis.snapshots.difference import changes
from gputop_analysis.snapshots.frames import layer, site
from gputop_analysis.snapshots.history import history
from gputop_analysis.snapshots.play import play_as_recorded
from gputop_analysis.snapshots.text import as_text
from gputop_analysis.snapshots.values import begins_a_pickle, plain_values
from gputop_analysis.vram.allocator import Allocator, OutOfMemoryError
from gputop_analysis.vram.conf import parse

MIB = 1 << 20
BASE = 1 << 40


@pytest.mark.parametrize(
    "name, allocated, reserved",
    [
        ("attention-from-empty", 3249143816, 3781165056),
        ("cnn-many-snapshots", 108258676, 134217728),
        ("lm-2.7b-ctx512-step-after-empty-cache", 54868051972, 62830673920),
    ],
)
def test_the_replay_of_a_real_gpu_reserves_what_was_recorded_after_every_event(
    name, allocated, reserved
):
    memory = analyse(load(BUNDLED / f"{name}.pickle.gz"))
    assert memory.first_difference is None
    assert memory.replayed_peak_reserved == memory.peak_reserved == reserved
    assert memory.peak_allocated == allocated
    assert sum(holder.bytes for holder in memory.holders) == allocated
    parts = memory.fragmentation
    assert parts.used + parts.pinned + parts.cached == parts.reserved == reserved


def test_all_recordings_at_hand_replay_to_the_byte():
    files = sorted(recordings("snapshots").glob("*.pickle.gz"))
    assert files
    for path in files:
        snapshot = load(path)
        for device in snapshot.devices:
            course = history(device)
            played = play_as_recorded(course, snapshot.conf)
            assert played == (max(course.reserved), None), path


def test_the_history_ends_where_the_snapshot_does():
    snapshot = load(BUNDLED / "cnn-many-snapshots.pickle.gz")
    course = history(snapshot.devices[0])
    at_end = [block for one in snapshot.devices[0].segments for block in one.blocks]
    assert course.allocated[-1] == sum(block.requested for block in at_end)
    assert [(block.address, block.requested) for block in course.blocks_at(len(course.events))] == [
        (block.address, block.requested) for block in at_end
    ]


def test_holders_are_the_sums_of_torchs_own_reader(tmp_path):
    from torch.cuda import _memory_viz

    with gzip.open(BUNDLED / "attention-from-empty.pickle.gz") as file:
        content = pickle.load(file)
    content["device_traces"] = []
    lines = _memory_viz.memory(content, format_flamegraph=str).splitlines()
    sums = [int(line.rsplit(" ", 1)[1]) for line in lines if ";active_allocated" in line]
    gaps = [int(line.rsplit(" ", 1)[1]) for line in lines if ";active_allocated;<gaps>" in line]
    memory = analyse(load(write_snapshot(tmp_path / "end.pickle", content)))
    assert memory.peak_allocated == sum(sums) - sum(gaps) == 31719428
    assert memory.settings == ()
    text = as_text(memory, 100)
    assert "no history" in text and "allocated when it was taken 30.25 MiB" in text
    assert "at the allocated peak" not in text


def test_the_gpu_that_ran_out_is_the_one_that_is_judged(tmp_path):
    """It holds less than another."""
    held = [segment(1 << 30, 4 << 20, [(4 << 20, 4 << 20)]), segment(2 << 30, 64 << 20)]
    held[1]["device"] = 1
    ran_out = [event("alloc", 1 << 30, 2 << 20), event("oom", 0, 9 << 20)]
    ran_out.insert(0, event("free_completed", 1 << 30, 2 << 20))
    content = {"segments": [held[1], held[0]], "device_traces": [ran_out, []]}
    snapshot = load(write_snapshot(tmp_path / "oom.pickle", content))
    assert analyse(snapshot).device == 0
    assert analyse(snapshot).failed_bytes == 9 << 20
    assert analyse(snapshot, device=1).device == 1


def test_a_stack_of_windows_names_the_users_line():
    stack = [
        frame("linear", "C:\\venv\\Lib\\site-packages\\torch\\nn\\modules\\linear.py", 3),
        frame("forward", "D:\\work\\net.py", 7),
    ]
    assert (site(stack), layer(stack)) == ("net.py:7 forward", "net.py:7")


def made_up(events, segments=()):
    return {"segments": list(segments), "device_traces": [list(events)]}


STEP = [frame("mm", "train.py", 7)]
UPDATE = [
    frame("_init_group", "/x/site-packages/torch/optim/adam.py", 9),
    frame("go", "train.py", 8),
]


def two_lines():
    """A segment of 20 MiB with blocks of 6 and 4 MiB; the first is freed in the end."""
    return made_up(
        [
            event("segment_alloc", BASE, 20 * MIB),
            event("alloc", BASE, 6 * MIB, STEP),
            event("alloc", BASE + 6 * MIB, 4 * MIB, UPDATE),
            event("free_requested", BASE, 6 * MIB),
            event("free_completed", BASE, 6 * MIB),
        ],
        [segment(BASE, 20 * MIB, [(6 * MIB, None), (4 * MIB, 4 * MIB), (10 * MIB, None)])],
    )


def test_who_holds_the_peak_and_what_keeps_a_segment(tmp_path):
    memory = analyse(load(write_snapshot(tmp_path / "a.pickle", two_lines())))
    assert [tuple(holder) for holder in memory.holders] == [
        ("train.py:7 mm", "temporaries", 6 * MIB, 1),
        ("train.py:8 go", "optimizer", 4 * MIB, 1),
    ]
    assert memory.fragmentation[:4] == (20 * MIB, 10 * MIB, 10 * MIB, 0)
    assert [(one.site, one.bytes) for one in memory.fragmentation.culprits] == [
        ("train.py:7 mm", 5 * MIB),
        ("train.py:8 go", 5 * MIB),
    ]


def test_the_difference_of_two_snapshots(tmp_path):
    before = analyse(load(write_snapshot(tmp_path / "a.pickle", two_lines())))
    more = two_lines()
    more["device_traces"][0][2]["size"] = 5 * MIB
    more["segments"] = [
        segment(BASE, 20 * MIB, [(6 * MIB, None), (5 * MIB, 5 * MIB), (9 * MIB, None)])
    ]
    after = analyse(load(write_snapshot(tmp_path / "b.pickle", more)))
    assert [tuple(one) for one in changes(before, after)] == [
        ("train.py:8 go", "optimizer", MIB, 0)
    ]
    assert changes(before, before) == ()


def test_a_wrong_recording_is_told_from_a_right_one(tmp_path):
    """A segment that the allocator would not have asked for."""
    content = two_lines()
    content["device_traces"][0][2:2] = [event("segment_alloc", BASE + 64 * MIB, 20 * MIB)]
    content["segments"].append(segment(BASE + 64 * MIB, 20 * MIB, [(20 * MIB, None)]))
    memory = analyse(load(write_snapshot(tmp_path / "a.pickle", content)))
    assert memory.first_difference == 3
    assert "parts from the recording at event 3" in as_text(memory, 120)


def test_expandable_segments_are_replayed(tmp_path):
    page = 20 * MIB
    events = [
        event("segment_map", BASE, 2 * page),
        event("alloc", BASE, 30 * MIB, STEP),
        event("segment_map", BASE + 2 * page, page),
        event("alloc", BASE + 30 * MIB, 25 * MIB, STEP),
        event("free_requested", BASE, 30 * MIB),
        event("free_completed", BASE, 30 * MIB),
        event("segment_unmap", BASE, page),
    ]
    end = [
        segment(
            BASE + page,
            2 * page,
            [(10 * MIB, None), (25 * MIB, 25 * MIB), (5 * MIB, None)],
            is_expandable=True,
        )
    ]
    content = made_up(events, end) | {"allocator_settings": {"expandable_segments": True}}
    memory = analyse(load(write_snapshot(tmp_path / "a.pickle", content)))
    assert memory.first_difference is None
    assert memory.peak_reserved == memory.replayed_peak_reserved == 60 * MIB


@pytest.mark.parametrize("seed", range(4))
def test_settings_reserve_what_the_allocator_does_with_the_same_requests(tmp_path, seed):
    rng = random.Random(seed)
    recorder, live, events = Allocator(), [], []
    for _ in range(300):
        if live and rng.random() < 0.45:
            block, address, size = live.pop(rng.randrange(len(live)))
            recorder.free(block)
            events += [event(kind, address, size) for kind in ("free_requested", "free_completed")]
            continue
        size = rng.choice([300, 70_000, 3 * MIB, 12 * MIB, 90 * MIB]) + rng.randrange(1000)
        before, start = recorder.reserved, recorder.next_address
        block = recorder.malloc(size)
        if recorder.reserved > before:
            grown = (recorder.reserved - before) * 512
            events.append(event("segment_alloc", start * 512, grown))
        events.append(event("alloc", block.at * 512, size))
        live.append((block, block.at * 512, size))
    places = {one["addr"]: one["size"] for one in events if one["action"] == "segment_alloc"}
    sizes = {block.at * 512: (block.size * 512, size) for block, _, size in live}
    segments = []
    for start, total in places.items():
        blocks, at = [], start
        for address in sorted(one for one in sizes if start <= one < start + total):
            blocks += [(address - at, None)] * (address > at) + [sizes[address]]
            at = address + sizes[address][0]
        blocks += [(start + total - at, None)] * (start + total > at)
        segments.append(segment(start, total, blocks, small=total == 2 * MIB))
    path = write_snapshot(tmp_path / "a.pickle", made_up(events, segments))
    memory = analyse(load(path))
    assert memory.first_difference is None
    for setting in memory.settings[1:]:
        conf, room = parse(setting.name), None
        if conf.garbage_collection_threshold:
            conf, room = conf._replace(memory_fraction=1.0), memory.peak_reserved
        assert setting.peak_reserved == peak_of(Allocator(conf, room), events), setting.name


def peak_of(allocator, events):
    blocks = {}
    try:
        for one in events:
            if one["action"] == "alloc":
                blocks[one["addr"]] = allocator.malloc(one["size"])
            elif one["action"] == "free_requested":
                allocator.free(blocks.pop(one["addr"]))
    except OutOfMemoryError:
        return None
    return allocator.stats.peak_reserved


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("/tmp/gputop-was-here"),))


def memo_bomb() -> bytes:
    return b"\x80\x04]r" + struct.pack("<I", 2**31 - 1) + b"."


def huge_bytes() -> bytes:
    return b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"."


@pytest.mark.parametrize(
    "data, said",
    [
        (pickle.dumps({"segments": [Evil()]}), "import or call"),
        (b"cos\nsystem\n(S'true'\ntR.", "import or call"),
        (memo_bomb(), "nothing was allocated"),
        (huge_bytes(), "cut off"),
        (b"", "cut off"),
        (b'{"segments": []}', "no pickle as torch writes them"),
        (b"(" * 100_000 + b".", "damaged"),
        (b"(dp0\nVsegments\np1\n(I1\nI2", "cut off"),
        (b"(dp0\nVsegments\np1\nL" + b"9" * 5000 + b"L\ns.", "cut off"),
        (pickle.dumps({"segments": [Evil()]}, 0), "import or call"),
        (pickle.dumps({"segments": [{"address": -1}]}), "no allocator snapshot"),
        (pickle.dumps({"segments": []}), "nothing was allocated"),
        (gzip.compress(pickle.dumps({"segments": []}), mtime=0)[:-9], "cut off"),
    ],
    ids=[
        "class",
        "call",
        "memo bomb",
        "huge",
        "empty",
        "json",
        "marks",
        "words",
        "digits",
        "class in words",
        "address",
        "no blocks",
        "packed",
    ],
)
def test_what_is_no_snapshot_is_refused_in_one_line(tmp_path, data, said):
    path = tmp_path / "a.pickle"
    path.write_bytes(data)
    with pytest.raises(SnapshotError) as raised:
        load(path)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not Path("/tmp/gputop-was-here").exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_each_protocol_of_pickle_is_read_alike(tmp_path, protocol):
    plain = gzip.decompress((BUNDLED / "attention-from-empty.pickle.gz").read_bytes())
    content = pickle.loads(plain)
    data = pickle.dumps(content, protocol)
    assert begins_a_pickle(data) and plain_values(data) == content
    odd = ["é \n \\u0031 \U0001f600", -(1 << 70), 1.5, None, True, False, (), (1, 2, 3, 4), {}, []]
    assert plain_values(pickle.dumps(odd, protocol)) == odd
    for path, written in ((tmp_path / "a.pickle", data), (tmp_path / "b.pickle", plain)):
        path.write_bytes(written)
    peaks = {gather(path).cause for path in tmp_path.iterdir()}
    assert len(peaks) == 1


def test_blocks_of_the_first_versions_have_their_stack_in_a_history(tmp_path):
    """The figures are those that torch's own viewer takes."""
    history_of_block = [{"addr": BASE, "real_size": 900, "frames": [frame("step", "train.py", 7)]}]
    blocks = [
        {"size": 1024, "state": "active_allocated", "history": history_of_block},
        {"size": 1024, "state": "active_awaiting_free"},
        {"size": 2 * MIB - 2048, "state": "inactive"},
    ]
    content = {"segments": [{"address": BASE, "total_size": 2 * MIB, "blocks": blocks}]}
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(content))
    memory = analyse(load(tmp_path / "a.pickle"))
    assert memory.peak_allocated == 900 + 1024
    assert ("train.py:7 step", 900) in [(held.site, held.bytes) for held in memory.holders]


def test_mutated_snapshots_are_judged_or_refused(tmp_path):
    plain = gzip.decompress((BUNDLED / "attention-from-empty.pickle.gz").read_bytes())
    rng = random.Random(5)
    refused = 0
    for turn in range(60):
        data = bytearray(plain)
        for _ in range(rng.choice([1, 3, 20])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if turn % 5 == 0:
            del data[rng.randrange(len(data)) :]
        path = tmp_path / "a.pickle"
        path.write_bytes(data)
        try:
            as_text(analyse(load(path)), 100)
        except SnapshotError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 20


KEYS = {
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "replayed_peak_reserved_bytes",
    "replay_first_difference_event",
    "holders",
    "settings",
}


def test_the_command_prints_the_same_of_a_packed_file(tmp_path, capsys):
    answers = []
    for packed in (False, True):
        path = write_snapshot(tmp_path / f"{packed}.pickle", two_lines(), packed)
        assert main(["memory", str(path), "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]
    assert set(answers[0]) == KEYS
    assert answers[0]["holders"][0] == {
        "site": "train.py:7 mm",
        "category": "temporaries",
        "bytes": 6 * MIB,
        "blocks": 1,
    }
    assert answers[0]["settings"][0] == {"name": "as recorded", "peak_reserved_bytes": 20 * MIB}


def test_the_command_as_text(tmp_path, capsys):
    path = write_snapshot(tmp_path / "a.pickle", two_lines())
    assert main(["memory", str(path), "--against", str(path), "--gpu", "H100"]) == 0
    printed = capsys.readouterr().out
    assert "allocated peak 10 MiB" in printed
    assert "the same lines hold the same bytes" in printed
    assert max(map(len, printed.splitlines())) <= 120
    assert main(["memory", str(path), "--device", "3"]) == 2
    assert "has no GPU 3, only 0" in capsys.readouterr().err
