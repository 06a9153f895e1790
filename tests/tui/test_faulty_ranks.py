"""One faulty rank among many: the first screen says which, without a key."""

from __future__ import annotations

import math

import pytest
from analysis_support import T0, Builder
from tui_pilot import screen_text, settle, step
from tui_screens import still
from tui_support import StillFeed

from gputop.feed.build import build
from gputop_agent import wire
from gputop_analysis.findings import evaluate

SECOND = 10**9
STEPS = 60
REPORTED = {"straggler": "▲", "hang": "✖", "nan": "✖", "crash": "✖"}
"""Faults, and the mark of the rank that has one."""


def trained(folder, ranks: int, odd: int, fault: str) -> Builder:
    """Ranks that wait for the slowest of them in each backward."""
    made = Builder(folder, command=("torchrun", "train.py"))
    for rank in range(ranks):
        made.hello(rank, world_size=ranks)
        slow_ms = 12.0 if fault == "straggler" and rank == odd else 0.0
        wait_ms = 12.3 - slow_ms if fault == "straggler" else 0.3
        for number in range(STEPS):
            bad = fault == "nan" and rank == odd and number >= 40
            made.step(
                rank,
                wait_ms=wait_ms,
                forward=6.0,
                backward=12.0 + slow_ms + 0.1 * math.sin(number + rank),
                loss=math.nan if bad else 2.0 - number / 100,
                flags=wire.F_NONFINITE if bad else 0,
            )
    return made


def hang(made: Builder, ranks: int, odd: int, at_ns: int) -> None:
    """All but one wait in a collective."""
    everybody = list(range(ranks))
    threads = [{"rank": rank, "pid": 100 + rank, "state": "S"} for rank in everybody]
    threads[odd]["call"] = "sleep"
    silence = {"silent_s": 31.0, "limit_s": 30.0, "threads": threads}
    made.event("hang_suspected", t_ns=at_ns, ranks=everybody, **silence)
    for rank in everybody:
        waits = rank != odd
        frames = ["torch/distributed/x.py:9 all_reduce", "train.py:80 main"]
        collective = {"group": "0", "seq": 61, "op": "gloo:all_reduce", "state": "started"}
        if not waits:
            frames = ["train.py:92 evaluate", "train.py:50 main"]
            collective |= {"seq": 60, "state": "completed"}
        made.event(
            "stack_dump",
            t_ns=at_ns + 10,
            rank=rank,
            phase="comm" if waits else "other",
            step=STEPS,
            threads=[{"name": "MainThread", "training": True, "frames": frames}],
            collective=collective,
        )


def crash(made: Builder, ranks: int, odd: int, at_ns: int) -> None:
    """One raises, and the others lose it."""
    head = {"phase": "forward", "step": STEPS, "class": "ValueError", "message": "bad batch"}
    made.event("exception", t_ns=at_ns, rank=odd, site="train.py:33 forward", **head)
    lost = head | {"class": "RuntimeError", "message": "Connection closed by peer"}
    for rank in range(ranks):
        if rank != odd:
            made.event("exception", t_ns=at_ns + SECOND + rank, rank=rank, **lost)
    made.end(exit_code=1)


@pytest.mark.parametrize("ranks", [16, 24, 64])
@pytest.mark.parametrize("fault", REPORTED)
async def test_which_rank_is_read_off_the_first_screen(tmp_path, fault, ranks):
    odd = ranks - 2
    made = trained(tmp_path / "r", ranks, odd, fault)
    now_ns = max(made.clock.values()) + SECOND
    if fault == "hang":
        now_ns += 40 * SECOND
        hang(made, ranks, odd, now_ns - 9 * SECOND)
    if fault == "crash":
        crash(made, ranks, odd, now_ns)
    ended = fault == "crash"
    size = {"memory_total_bytes": 16 << 30, "memory_available_bytes": 8 << 30}
    for moment in (T0, now_ns):
        made.sample("host", t_ns=moment, cpu_count=64, cgroup_memory_max_bytes=-1, **size)
    record = made.open()
    findings = tuple(evaluate(record, None if ended else 1000, live=not ended))
    seen = build(record, findings, window_steps=1000, now_ns=now_ns, ended=ended)
    app = still(seen)
    assert isinstance(app.feed, StillFeed)
    async with app.run_test(size=(120, 40)) as pilot:
        app.feed.next = seen._replace(sequence=seen.sequence + 1)
        await step(app, pilot)
        await settle(app, pilot)
        lines = screen_text(app).splitlines()
    assert f"rank {odd} " in lines[0] and "healthy" not in lines[0]
    marked = [line.partition(REPORTED[fault] + "  ")[2].split() for line in lines]
    assert any(words[:1] == [str(odd)] for words in marked), "the table marks it"
    text = "\n".join(lines)
    assert ("NO STEP FOR" in text) == (fault == "hang")
    assert ("NaN since 40" in text) == (fault == "nan")
