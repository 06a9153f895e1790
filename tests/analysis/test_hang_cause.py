"""Who holds up a training and how, by what ranks told: a table of faults, and 256 ranks."""

from dataclasses import replace

import pytest

from gputop_analysis.findings.crash.hang_advice import advice_on
from gputop_analysis.hangs.call_order import Call, deviation
from gputop_analysis.hangs.cause import judge
from gputop_analysis.hangs.mismatch import of_a_mismatch
from gputop_analysis.hangs.stack_calls import call_of_stack
from gputop_analysis.hangs.standing import Group, RankStanding, ThreadPlace
from gputop_analysis.text import rank_list

STEPS = 20
EVERY = 10
MAIN = "train.py:5 main"


def groups_of(world, inner):
    """The default group, and for a second dimension its groups and those across them."""
    found = {"0": Group("default_pg", frozenset(range(world)))}
    if inner:
        for start in range(0, world, 2):
            found[f"tp{start}"] = Group("mesh_tp", frozenset((start, start + 1)))
        for place in (0, 1):
            found[f"dp{place}"] = Group("mesh_dp", frozenset(range(place, world, 2)))
    return found


def program(rank, step, inner):
    """(group, operation, shapes, line) of a step of a rank."""
    data = f"dp{rank % 2}" if inner else "0"
    if inner:
        yield f"tp{rank - rank % 2}", "all_reduce", "4x8", 20
    yield data, "all_reduce", "552", 30
    yield "0", "all_reduce", "1", 40
    yield "0", "all_gather", "7", 50
    if step % EVERY == 0:
        yield "0", "barrier", "", 60


def blocks(line):
    """As in a script whose gather stands in a ``try`` and whose barrier in an ``if``."""
    return ("10 for", *{40: ("39 if",), 50: ("49 try",), 60: ("59 if",)}.get(line, ()))


class Ranks:
    """Plays the ranks' programs until nobody can go on."""

    def __init__(self, world, inner, odd, fault):
        self.groups = groups_of(world, inner)
        self.wanted = {rank: list(self.of(rank, inner, rank == odd and fault))
                       for rank in range(world)}  # fmt: skip
        self.counts = {rank: {} for rank in range(world)}
        self.calls = {rank: [] for rank in range(world)}

    @staticmethod
    def of(rank, inner, fault):
        for step in range(STEPS + 3):
            if fault == "early" and step == STEPS:
                yield "0", "barrier", "", 70
                return
            for group, operation, shapes, line in program(rank, step, inner):
                last = step == STEPS
                if last and fault == {40: "skip", 50: "swallow", 60: "barrier"}.get(line):
                    continue
                if last and fault == "stuck" and line == 40:
                    return
                if last and fault == "other" and line == 40:
                    operation, line = "broadcast", 38
                if last and fault == "shape" and line == 40:
                    shapes = "3"
                yield group, operation, shapes, line

    def play(self):
        """Every rank starts its next call; one that all members called alike ends."""
        places = dict.fromkeys(self.wanted, 0)
        now, moved = 0, True
        pending = {}
        while moved:
            moved = False
            for rank, program_of in self.wanted.items():
                if rank not in pending and places[rank] < len(program_of):
                    group, operation, shapes, line = program_of[places[rank]]
                    number = self.counts[rank][group] = self.counts[rank].get(group, 0) + 1
                    pending[rank] = (group, number, operation, shapes, line)
                    places[rank] += 1
                    now, moved = now + 1, True
                    self.calls[rank].append((*pending[rank], now))
            by_call = {}
            for rank, call in pending.items():
                by_call.setdefault(call[:4], []).append(rank)
            for call, came in by_call.items():
                if len(came) == len(self.groups[call[0]].ranks):
                    moved = True
                    for rank in came:
                        del pending[rank]
        return {rank: self.standing(rank, rank in pending) for rank in self.wanted}

    def standing(self, rank, waits):
        calls = [
            Call(group, number, f"gloo:{operation}", shapes, f"train.py:{line} main",
                 done=True, at_ns=at)
            for group, number, operation, shapes, line, at in self.calls[rank]
        ]  # fmt: skip
        line = 90
        if waits:
            line = self.calls[rank][-1][4]
            last = calls.pop()
            calls.append(Call(last.group, last.number, last.operation, last.shapes, last.site,
                              done=False, at_ns=last.at_ns))  # fmt: skip
        inside = ("10 for",) if line == 90 else blocks(line) if line < 70 else ()
        place = ThreadPlace(f"train.py:{line}", "main", inside)
        frame = (
            "torch/distributed/distributed_c10d.py:1 all_reduce" if waits else "train.py:90 main"
        )
        return RankStanding(
            tuple(calls), (place,), frame, step=STEPS, system_call="sleep", state="S"
        )


KINDS = {
    "skip": "skipped",
    "swallow": "swallowed an exception",
    "barrier": "skipped",
    "other": "other operation",
    "shape": "other size",
    "early": "ended early",
    "stuck": "sleeps",
}


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("fault", KINDS)
def test_rank_and_kind(fault, world, inner):
    for odd in {0, world // 2, world - 1}:
        played = Ranks(world, inner, odd, fault)
        cause = judge(played.play(), played.groups)
        assert cause is not None
        assert (cause.kind, cause.rank) == (KINDS[fault], odd), cause
        if fault == "skip":
            assert "took the other branch at train.py:39" in cause.words
        if fault == "early":
            assert "left the loop at train.py:10" in cause.words


@pytest.mark.parametrize(
    ("description", "words"),
    [
        ("default_pg", "the default group"),
        ("mesh_tp", "the tp group"),
        ("metrics", "group metrics"),
        ("undefined", "a group without a name"),
    ],
)
def test_groups_in_words(description, words):
    assert Group(description, frozenset((0, 1))).words == words


def test_256_ranks_are_judged_and_told_in_short():
    played = Ranks(256, True, 137, "skip")
    cause = judge(played.play(), played.groups)
    assert cause is not None and (cause.kind, cause.rank) == ("skipped", 137)
    assert cause.waiting.startswith("ranks 0-255 but 137 wait in all_reduce")


def waiting_for(peer, *more, state="started"):
    call = Call("0", 1, "recv", "8", "train.py:9 f", peer=peer, done=state == "completed")
    return RankStanding(
        (*more, call), (ThreadPlace("train.py:9", "f"),), "torch/distributed/x.py:1 recv"
    )


def test_a_chain_of_messages_leads_to_who_waits_for_nobody():
    ranks = {
        0: waiting_for(1),
        1: waiting_for(2),
        2: RankStanding(places=(ThreadPlace("train.py:50", "load"),), frame="train.py:50 load",
                    state="S", system_call="read", path="/data/x"),
    }  # fmt: skip
    cause = judge(ranks, {})
    assert cause is not None and (cause.kind, cause.rank) == ("reads", 2)
    assert cause.words.endswith("waits to read: /data/x")
    assert cause.waiting.startswith("rank 0 waits in recv from rank 1 (train.py:9)")


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"state": "T"}, "stopped"),
        ({"state": "D", "phase": "data"}, "storage"),
        ({"phase": "data"}, "loader"),
        ({"cpu_share": 1.0}, "endless loop"),
        ({"system_call": "futex"}, "lock"),
        ({"handled": "OSError: no"}, "handles an exception"),
        ({"answered": False}, "no answer"),
        ({"left": "died"}, "died"),
        ({"frame": "torch/distributed/distributed_c10d.py:9 _store_based_barrier"}, "new group"),
        ({"places": (ThreadPlace("t.py:3", "f", (), "store.wait(['done'])"),)}, "store"),
    ],
)
def test_what_the_rank_does_that_the_others_wait_for(changes, kind):
    odd = RankStanding(**{"state": "S", "frame": "train.py:3 f", **changes})
    cause = judge({0: waiting_for(1), 1: odd}, {})
    assert cause is not None and (cause.kind, cause.rank) == (kind, 1)


def test_two_that_differ_from_the_start_are_both_told():
    a = RankStanding((Call("0", 1, "gloo:all_reduce", done=False),), (), "torch/a.py:1 f")
    b = RankStanding((Call("0", 1, "gloo:broadcast", done=False),), (), "torch/a.py:1 f")
    cause = judge({0: a, 1: b}, {"0": Group("", frozenset((0, 1)))})
    assert cause is not None and cause.rank is None
    assert "all_reduce" in cause.waiting and "broadcast" in cause.waiting


def test_a_rare_call_that_comes_in_time_is_no_deviation():
    lines = [line for step in range(31) for line in ((1, 2, 3) if step % 10 == 0 else (1, 2))]
    calls = [Call("0", i, "all_reduce", "4", f"t.py:{line} f") for i, line in enumerate(lines)]
    assert deviation(calls) is None
    away = deviation(calls[:-1] + [Call("0", 99, "all_reduce", "4", "t.py:1 f")])
    assert away is not None and away.usual.site == "t.py:3 f" and away.seen_before


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([3], "rank 3"),
        ([0, 1], "ranks 0, 1"),
        ([0, 1, 2, 3, 4, 6, 7], "ranks 0-7 but 5"),
        ([0, 1, 2, 8], "ranks 0-2, 8"),
        (range(0, 40, 4), "ranks 0, 4, 8, 12, 16, 20 and 4 more"),
    ],
)
def test_lists_of_ranks_are_short(ranks, words):
    assert rank_list(ranks) == words


def without_lines(standing):
    """As an exception has it sent: no lines, and calls that failed are done too."""
    calls = tuple(
        Call(
            call.group, call.number, call.operation, f"{call.shapes} {call.site}", at_ns=call.at_ns
        )
        for call in standing.calls
    )
    return RankStanding(calls)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("fault", ["skip", "swallow", "shape"])
def test_who_left_the_order_is_blamed_and_not_who_died_of_it(fault, world):
    odd, gone = world - 1, 0
    played = Ranks(world, False, odd, fault)
    standings = played.play()
    failed = {rank: without_lines(standings[rank]) for rank in standings if rank != gone}
    cause = of_a_mismatch(failed, gone, (552, 4), played.groups)
    kind = {"skip": "skipped", "swallow": "skipped", "shape": "other size"}[fault]
    assert (cause.kind, cause.rank) == (kind, odd), cause
    assert cause.waiting.startswith("rank 0 ended of it: it received 552 bytes and waited for 4")


def test_who_died_is_blamed_where_all_others_went_on_as_ever():
    played = Ranks(3, False, 0, "skip")
    standings = played.play()
    failed = {rank: without_lines(standings[rank]) for rank in (1, 2)}
    cause = of_a_mismatch(failed, 0, (552, 4), played.groups)
    assert (cause.kind, cause.rank) == ("different collectives", 0)


@pytest.mark.parametrize(
    ("world", "told", "suspect", "words"),
    [
        (4, (2,), None, "one of ranks 0, 1 left the order of collectives"),
        (3, (1,), 0, "rank 0 left the order of collectives"),
    ],
)
def test_who_died_is_cleared_by_a_rank_in_the_same_call(world, told, suspect, words):
    """The last rank waited for 4 bytes, as those that told their calls; others were ended first."""
    played = Ranks(world, False, world - 1, "")
    standings = played.play()
    failed = {}
    for rank in told:
        calls = tuple(replace(call, site="", done=True) for call in standings[rank].calls)
        last = max(place for place, call in enumerate(calls) if call.shapes == "1")
        failed[rank] = RankStanding(calls=calls[: last + 1])
    cause = of_a_mismatch(failed, world - 1, (536, 4), played.groups)
    assert (cause.kind, cause.rank) == ("different collectives", suspect)
    assert words in cause.words


def queued_call(number, operation="nccl:all_reduce", shapes="8"):
    return Call("0", number, operation, shapes, done=False, at_ns=number)


def test_calls_queued_on_a_device_do_not_hide_where_a_program_stands():
    """NCCL: every rank has calls that have not ended, and rank 1 sleeps."""
    groups = {"0": Group("default_pg", frozenset(range(3)))}
    calls = tuple(map(queued_call, range(5, 12)))
    asleep = RankStanding(
        calls=calls[:3],
        places=(ThreadPlace("train.py:40", "main"),),
        system_call="sleep",
        answered=True,
    )
    found = judge({0: RankStanding(calls=calls), 1: asleep, 2: RankStanding(calls=calls)}, groups)
    assert (found.kind, found.rank, found.site) == ("sleeps", 1, "train.py:40 main")


@pytest.mark.parametrize(
    "odd, kind",
    [
        (queued_call(7, "nccl:broadcast"), "other operation"),
        (queued_call(7, shapes="9"), "other size"),
    ],
)
def test_a_queued_call_that_differs_from_that_of_the_others(odd, kind):
    groups = {"0": Group("default_pg", frozenset(range(3)))}
    ranks = {rank: RankStanding(calls=tuple(map(queued_call, (5, 6, 7)))) for rank in (0, 1)}
    ranks[2] = RankStanding(calls=(queued_call(5), queued_call(6), odd))
    found = judge(ranks, groups)
    assert (found.kind, found.rank) == (kind, 2)
    assert "where the others call" in found.words


def test_ranks_that_wait_in_python_wait_for_the_one_that_does_not():
    """A monitored barrier: no flight recorder knows of it."""
    inside = RankStanding(frame="torch/distributed/distributed_c10d.py:9 monitored_barrier")
    asleep = RankStanding(
        frame="train.py:7 evaluate",
        places=(ThreadPlace("train.py:7", "evaluate"),),
        system_call="sleep",
    )
    cause = judge({0: inside, 1: inside, 2: asleep}, {})
    assert (cause.kind, cause.rank) == ("sleeps", 2)
    assert judge({0: asleep, 1: asleep}, {}) is None


def in_broadcast(root):
    call = Call("0", 8, "gloo:broadcast", "2", "train.py:9 f", done=False)
    return RankStanding((call,), frame="torch/distributed/distributed_c10d.py:1 f", root=root)


def test_who_names_a_root_that_has_gone_on_is_wrong():
    """Rank 2 takes from rank 1, which has its values from rank 0 and waits in the next call."""
    done = Call("0", 8, "gloo:broadcast", "2", "train.py:9 f")
    following = Call("0", 9, "gloo:all_reduce", "8", "train.py:30 f", done=False)
    gone_on = RankStanding((done, following), frame="torch/distributed/distributed_c10d.py:1 f")
    groups = {"0": Group("default_pg", frozenset(range(4)))}
    ranks = {0: in_broadcast(0), 1: gone_on, 2: in_broadcast(1), 3: gone_on}
    cause = judge(ranks, groups)
    assert (cause.kind, cause.rank, cause.site) == ("other source", 2, "train.py:9 f")
    assert "with rank 1 as its root, and others with rank 0" in cause.words


def numbered(lines, **last):
    """Calls of a group by line, the last of which has not ended."""
    calls = [
        Call("0", number, "gloo:all_reduce", "8", f"train.py:{line} main", at_ns=number)
        for number, line in enumerate(lines)
    ]
    return (*calls[:-1], replace(calls[-1], done=False, **last))


def in_torch(calls, line, code="", blocks=("10 for",)):
    place = ThreadPlace(f"train.py:{line}", "main", blocks, code)
    return RankStanding(calls, (place,), "torch/distributed/distributed_c10d.py:1 f", step=STEPS)


STEP = (30, 40)
"""A backward's line and that of a metric; a save's (60) follows every fifth step."""


def steps(count):
    return [line for step in range(count) for line in (*STEP, *((60,) if step % 5 == 4 else ()))]


def test_a_rank_that_left_out_a_pass_is_ahead_and_took_no_other_branch():
    """Its save comes a step too early, after the call that a save follows."""
    groups = {"0": Group("default_pg", frozenset((0, 1)))}
    ahead = in_torch(numbered([*steps(24), 60]), 60)
    other = in_torch(numbered([*steps(24), 30]), 30, "loss.backward()", ("10 for", "29 if"))
    cause = judge({0: other, 1: ahead}, groups)
    assert (cause.kind, cause.rank) == ("skipped", 1)
    assert "in an earlier pass of its loop" in cause.words and "branch" not in cause.words


def test_a_rank_that_asks_for_a_batch_while_another_has_one_has_fewer():
    """As accelerate's loader does, which hands its random numbers round at the start of a pass."""
    groups = {"0": Group("default_pg", frozenset((0, 1)))}
    ahead = in_torch(numbered([*steps(24), 10]), 10, "for batch in loader:", ())
    other = in_torch(numbered([*steps(24), 30]), 30, "loss.backward()", ("10 for",))
    cause = judge({0: other, 1: ahead}, groups)
    assert (cause.kind, cause.rank, cause.site) == ("ended early", 1, "train.py:10")
    assert "asks for a batch at train.py:10" in cause.words


def test_a_rank_at_its_next_batch_may_have_left_out_a_call_of_a_branch():
    """A metric that a rank without any does not sum, in a group of its own."""
    groups = {
        "0": Group("default_pg", frozenset((0, 1))),
        "9": Group("figures", frozenset((0, 1))),
    }
    lines = [line for _ in range(24) for line in (10, 30, 40)]

    def calls_of(lines):
        made = [
            replace(call, group="9") if "train.py:40" in call.site else call
            for call in numbered(lines)
        ]
        return (*made[:-1], replace(made[-1], done=False))

    ahead = in_torch(calls_of([*lines[:-1], 10]), 10, "for batch in loader:", ())
    other = in_torch(calls_of(lines), 40, "dist.all_reduce(own, figures)", ("10 for", "39 if"))
    cause = judge({0: other, 1: ahead}, groups)
    assert (cause.kind, cause.rank) == ("skipped", 1)
    assert "batch" not in cause.words


def test_a_backward_that_does_not_reduce_may_have_run():
    groups = {"0": Group("default_pg", frozenset((0, 1)))}
    odd = in_torch(numbered([*steps(23), 40]), 40)
    other = in_torch(numbered([*steps(23), 30]), 30, "loss.backward()", ("10 for", "29 if"))
    cause = judge({0: other, 1: odd}, groups)
    assert (cause.kind, cause.rank, cause.site) == ("skipped", 1, "train.py:30 main")
    assert "no_sync" in cause.words


def test_a_message_that_no_step_had_before_is_met_by_none():
    def message(number, line, done=True):
        site = f"train.py:{line} pipe"
        return Call("0", number, "send", "8", site, peer=1, done=done, at_ns=number)

    usual = [replace(call, at_ns=2 * call.number) for call in numbered(STEP * 8)]
    sends = [message(number, 50) for number in range(8)]
    calls = [call for pair in zip(usual[::2], sends, strict=True) for call in pair]
    odd = in_torch((*calls, replace(usual[0], done=True), message(9, 55, done=False)), 55)
    other = in_torch(numbered([30] * 12), 30)
    cause = judge({0: odd, 1: other}, {"0": Group("default_pg", frozenset((0, 1)))})
    assert (cause.kind, cause.rank) == ("message missing", 0)
    assert "waits in send to rank 1 (train.py:55), which its earlier steps did not" in cause.words


@pytest.mark.parametrize(
    ("waited", "kind", "words"),
    [
        (4, "skipped", "rank 1 skipped all_reduce [9408] of the default group"),
        (20, "other size", "rank 1 waited for 20 bytes in all_reduce [9408]"),
        (1600, "different collectives", "left the order of collectives"),
    ],
)
def test_what_the_one_gone_did_is_told_by_what_it_waited_for(waited, kind, words):
    """An all_reduce of 9,408 numbers of four ranks is sent in parts of 4,704 bytes."""
    shapes = ["400"] + ["9408", "1"] * 12 + ["9408"]
    calls = tuple(
        Call("0", number, "gloo:all_reduce", shape, at_ns=number)
        for number, shape in enumerate(shapes)
    )
    groups = {"0": Group("default_pg", frozenset(range(4)))}
    failed = {rank: RankStanding(calls) for rank in (0, 2, 3)}
    cause = of_a_mismatch(failed, 1, (4704, waited), groups)
    assert (cause.kind, cause.rank) == (kind, 1), cause
    assert words in cause.words


def test_a_rare_call_that_all_ranks_made_blames_none():
    """Two saves in the ring foretell no third; all ranks came to it."""
    shapes = ["9408", "1"] * 6 + ["60"] + ["9408", "1"] * 8 + ["60", "9408"]
    calls = tuple(
        Call("0", number, "gloo:all_reduce", shape, at_ns=number)
        for number, shape in enumerate(shapes)
    )
    assert deviation(calls) is not None
    groups = {"0": Group("default_pg", frozenset(range(4)))}
    cause = of_a_mismatch({rank: RankStanding(calls) for rank in (0, 1, 3)}, 2, (4704, 4), groups)
    assert (cause.kind, cause.rank) == ("skipped", 2)


def test_who_died_is_blamed_by_one_in_the_call_that_it_received():
    """Rank 3 was ended before it told anything; rank 0 was in the call of 4,704 bytes."""
    shapes = ["9408", "1"] * 12 + ["9408"]
    calls = tuple(
        Call("0", number, "gloo:all_reduce", shape, at_ns=number)
        for number, shape in enumerate(shapes)
    )
    groups = {"0": Group("default_pg", frozenset(range(4)))}
    cause = of_a_mismatch({0: RankStanding(calls)}, 1, (4704, 4), groups)
    assert (cause.kind, cause.rank) == ("skipped", 1)


@pytest.mark.parametrize(
    ("line", "blocks", "kind"),
    [(60, ("10 for",), "skipped"), (60, ("10 for", "31 else"), "other order"),
     (20, ("10 for",), "other order")],
)  # fmt: skip
def test_a_call_of_another_group_that_the_rank_went_past_was_left_out(line, blocks, kind):
    """It waits in one that no step had before: that a step's order is another is not known."""
    groups = {
        "0": Group("default_pg", frozenset((0, 1))),
        "1": Group("aside", frozenset((0, 1))),
    }
    usual = numbered([40] * 20)
    aside = Call("1", 5, "gloo:all_reduce", "8", "train.py:50 main", at_ns=90, done=False)
    was = [replace(aside, number=n, at_ns=20 + n, done=True) for n in range(5)]
    made = (*usual[:-1], replace(usual[-1], done=True), *was)
    other = in_torch((*made, aside), 50)
    away = in_torch((*made, replace(usual[-1], number=21, at_ns=90, site=f"train.py:{line} main")),
                    line, blocks=blocks)  # fmt: skip
    cause = judge({0: other, 1: away}, groups)
    assert (cause.kind, cause.rank) == (kind, 1)


@pytest.mark.parametrize(("others_step", "kind"), [(9, "other operation"), (8, "skipped")])
def test_a_call_of_another_group_that_one_rank_alone_makes(others_step, kind):
    """The other is at a line further up, in the next pass of the loop."""
    groups = {
        "0": Group("default_pg", frozenset((0, 1))),
        "1": Group("aside", frozenset((0, 1))),
    }
    usual = numbered([40] * 20)
    done = (*usual[:-1], replace(usual[-1], done=True))
    waits = replace(usual[-1], number=21, at_ns=95, done=False)
    asks = Call("1", 1, "gloo:all_reduce", "1", "train.py:60 main", at_ns=90, done=False)
    other = replace(in_torch((*done, waits), 40), step=others_step)
    alone = replace(in_torch((*done, asks), 60), step=8)
    cause = judge({0: other, 1: alone}, groups)
    assert (cause.kind, cause.rank) == (kind, 1)
    assert ("alone calls all_reduce of group aside" in cause.words) is (kind != "skipped")


def test_the_line_is_that_of_a_loop_that_goes_round_less_often_on_one_rank():
    """A reduce for each class that a rank has: the last one is what the other does next."""
    groups = {"0": Group("default_pg", frozenset((0, 1)))}
    usual = numbered([40, 40, 40, 50] * 6 + [40, 40])
    done = (*usual[:-1], replace(usual[-1], done=True))
    again = replace(usual[-1], number=len(usual) + 1, at_ns=95, done=False)
    stops = replace(again, operation="gloo:broadcast", shapes="1", site="train.py:70 told")
    cause = judge({0: in_torch((*done, again), 40), 1: in_torch((*done, stops), 70)}, groups)
    assert (cause.kind, cause.rank, cause.site) == ("other operation", 1, "train.py:40 main")
    assert "makes all_reduce (train.py:40) less often in a row" in cause.words


@pytest.mark.parametrize("later", [0, 1])
def test_of_two_unusual_calls_that_meet_the_other_operation_is_at_fault(later):
    groups = {"0": Group("default_pg", frozenset((0, 1)))}
    usual = numbered([40, 50] * 10)
    done = (*usual[:-1], replace(usual[-1], done=True))
    number = len(usual) + 1
    size = replace(usual[-2], number=number, at_ns=95, done=False, shapes="8", site="train.py:70")
    told = replace(size, operation="gloo:broadcast", at_ns=94 + 2 * later)
    cause = judge({0: in_torch((*done, size), 70), 1: in_torch((*done, told), 70)}, groups)
    assert cause.rank == 1 and "rank 1 calls broadcast" in cause.words


@pytest.mark.parametrize(
    ("step", "kind", "words"),
    [
        (9, "lock", "rank 1 is stuck at train.py:60 main: it waits for a lock, after its last "
         "step: rank 0 ended"),
        (5, "ended early", "rank 0 ended its training after 10 steps, the others go on"),
    ],
)  # fmt: skip
def test_a_rank_that_has_made_all_its_steps_stands_by_itself(step, kind, words):
    """The one that ended was blamed for a rank that stands in the end of the program."""
    place = ThreadPlace("train.py:60", "main")
    stands = RankStanding(places=(place,), state="S", system_call="futex", step=step)
    cause = judge({0: RankStanding(left="ended early", step=10), 1: stands}, {})
    assert cause is not None and (cause.kind, cause.words) == (kind, words)
    assert cause.is_at_the_end == (kind == "lock")
    assert ("destroy_process_group" in advice_on(cause, {})) == cause.is_at_the_end


def by_stack(frames, *places, step=30):
    """A rank of torch 2.7 under gloo: nothing is told but its stack."""
    call = call_of_stack(
        {
            "threads": [{"frames": [f"torch/distributed/distributed_c10d.py:9 {frames}"]}],
            "places": [{"site": place.site, "function": place.function} for place in places],
        }
    )
    return RankStanding(
        (call,) if call else (), places, f"torch/distributed/distributed_c10d.py:9 {frames}",
        step=step,
    )  # fmt: skip


def test_without_a_record_of_calls_stacks_tell_who_is_past_the_loop():
    """As of open_clip with torch 2.7: one rank has returned from its epoch."""
    epochs = ThreadPlace("main.py:652", "main", ("647 for",))
    in_loop = ThreadPlace("train.py:441", "train_one_epoch", ("393 for", "439 if"))
    after = ThreadPlace("main.py:745", "main", ("647 for", "744 if"))
    ranks = {0: by_stack("all_reduce", in_loop, epochs), 1: by_stack("barrier", after)}
    cause = judge(ranks, {})
    assert cause is not None and (cause.kind, cause.rank) == ("ended early", 1)
    assert cause.site == "train.py:393" and "number" not in cause.waiting
    assert "rank 1 waits in barrier" in cause.waiting


def test_stacks_at_one_line_accuse_nobody():
    place = ThreadPlace("train.py:441", "train", ("393 for",))
    assert judge({rank: by_stack("all_reduce", place) for rank in (0, 1)}, {}) is None


def test_stacks_at_two_lines_of_one_block_name_both():
    lines = {0: ThreadPlace("train.py:40", "train"), 1: ThreadPlace("train.py:50", "train")}
    cause = judge({rank: by_stack("all_reduce", place) for rank, place in lines.items()}, {})
    assert cause is not None and (cause.kind, cause.rank) == ("different collectives", None)
    three = {rank: by_stack("all_reduce", lines[rank == 2]) for rank in range(3)}
    cause = judge(three, {})
    assert cause is not None and cause.rank == 2


def test_stacks_at_as_many_lines_as_ranks_accuse_none_of_them():
    apart = {rank: ThreadPlace(f"train.py:{40 + 10 * rank}", "train") for rank in range(3)}
    cause = judge({rank: by_stack("all_reduce", place) for rank, place in apart.items()}, {})
    assert cause is not None and (cause.kind, cause.rank) == ("different collectives", None)


def test_a_message_is_no_collective():
    assert not by_stack("recv", ThreadPlace("train.py:4", "f")).calls


@pytest.mark.parametrize(
    ("before", "branch", "has_left"),
    [
        ("train.py:441 train_one_epoch", (), True),
        ("main.py:640 main", (), False),
        ("train.py:441 train_one_epoch", ("650 if",), False),
    ],
    ids=["returned", "never there", "another branch"],
)
def test_a_rank_that_has_returned_from_a_loop_left_it_and_one_that_was_never_there_did_not(
    before, branch, has_left
):
    """What it called before tells, and the branches around the others' call."""
    in_loop = ThreadPlace("train.py:441", "train_one_epoch", ("393 for",))
    epochs = ThreadPlace("main.py:652", "main", ("647 for", *branch))
    after = ThreadPlace("main.py:745", "main", ("647 for",))
    usual = Call("0", 8, "gloo:all_reduce", "1", "train.py:441 train_one_epoch", done=False)
    earlier = [replace(usual, number=n, done=True, at_ns=n) for n in range(8)]
    frame = "torch/distributed/distributed_c10d.py:9 barrier"
    left = [*earlier[:-1], replace(earlier[-1], site=before)]
    barrier = Call("0", 8, "gloo:barrier", "", "main.py:745 main", done=False, at_ns=9)
    ranks = {
        0: RankStanding((*earlier, usual), (in_loop, epochs), frame, step=30),
        1: RankStanding((*left, barrier), (after,), frame, step=30),
    }
    cause = judge(ranks, {})
    assert cause is not None and cause.rank == 1
    assert ("has left the loop at train.py:393" in cause.words) is has_left, cause
