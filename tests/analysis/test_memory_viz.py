"""Who holds the peak of a recorded snapshot, against the sums of torch's own ``_memory_viz``."""

import gzip
import importlib
import pickle
from collections import Counter

import pytest
from recordings_support import recordings

from gputop_analysis.snapshots import frames, load
from gputop_analysis.snapshots.analyse import analyse

NAMES = (
    "attention-from-empty",
    "cnn-many-snapshots",
    "lm-2.7b-ctx256-forward-autocast",
    "opt-out-of-memory-no-history",
)


def blocks_at_the_peak(segments, events):
    """(bytes, stack) of what is in use when most is, played forward from what the end leaves."""
    live = {}
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                stack = block.get("frames") or []
                live[address] = block["requested_size"], stack
            address += block["size"]
    for event in reversed(events):
        if event["action"] == "alloc":
            live.pop(event["addr"], None)
        elif event["action"] == "free_completed":
            live[event["addr"]] = event["size"], []
    used = sum(size for size, _ in live.values())
    most, peak = used, dict(live)
    for event in events:
        if event["action"] == "alloc":
            live[event["addr"]] = event["size"], event["frames"]
            used += event["size"]
            if used > most:
                most, peak = used, None
        elif event["action"] == "free_completed":
            if peak is None:
                peak = dict(live)
            used -= live.pop(event["addr"])[0]
    return list((live if peak is None else peak).values())


@pytest.mark.parametrize("name", NAMES)
def test_holders_of_the_peak_are_the_sums_of_memory_viz(name):
    path = recordings("snapshots") / f"{name}.pickle.gz"
    viz = importlib.import_module("torch.cuda._memory_viz")
    with gzip.open(path) as file:
        raw = pickle.load(file)
    memory = analyse(load(path))
    events = [one for one in raw.get("device_traces") or [] if one]
    segments = [one for one in raw["segments"] if one["device"] == memory.device]
    blocks = blocks_at_the_peak(segments, events[0] if events else [])
    state = "active_allocated"
    as_segment = [
        {"size": size, "requested_size": size, "state": state, "frames": stack}
        for size, stack in blocks
    ]
    text = viz.memory(
        {"segments": [{"stream": 0, "blocks": as_segment}]}, format_flamegraph=lambda lines: lines
    )
    sizes = [int(line.rpartition(" ")[2]) for line in text.splitlines()]
    assert len(sizes) == len(blocks) and sum(sizes) == memory.peak_allocated
    theirs, ours = Counter(), Counter()
    for size, (_, stack) in zip(sizes, blocks, strict=True):
        theirs[frames.site(stack)] += size
    for holder in memory.holders:
        ours[holder.site] += holder.bytes
    assert ours == theirs
