"""How a run is said to have ended, for how long it stands still, and whose hang it was when
somebody stopped it.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from analysis_support import T0, Builder
from quoted_tracebacks import ONLY_MISSED, PORT_TAKEN
from tui_support import a_finding

from gputop_agent import wire
from gputop_analysis.findings import evaluate
from gputop_analysis.findings.shares import ENOUGH_STEPS
from gputop_analysis.overview import JUDGED_AFTER
from gputop_analysis.report import Report, as_data, as_markdown, as_text
from gputop_analysis.series import WARM_UP_STEPS
from gputop_analysis.summary import summarise
from gputop_analysis.verdict import verdict

SECOND = 10**9


def trained(path, steps=60, ranks=1, **hello) -> Builder:
    build = Builder(path)
    for rank in range(ranks):
        build.hello(rank, world_size=ranks, **hello)
        build.steps(steps, rank, forward=6.0, backward=12.0)
    return build


def judged(build: Builder, now_ns: int | None = None):
    record = build.open()
    return verdict(summarise(record, now_ns=now_ns), evaluate(record))


def test_the_first_line_counts_all_other_findings_that_are_listed(tmp_path):
    """Those of ``info`` too; not that of the exit code, which the line says itself."""
    findings = [
        a_finding("critical", title="loss is NaN at step 200"),
        a_finding("info", None, id="IN04"),
        a_finding("info", None, id="HC09"),
    ]
    summary = summarise(trained(tmp_path / "run").open(), now_ns=T0 + SECOND)
    assert verdict(summary, findings).headline.endswith("loss is NaN at step 200 (+1 more)")


def interrupted(build: Builder, by="user", number=2, code: int = 130) -> Builder:
    build.event("interrupt", t_ns=build.clock[0], signal=number, by=by)
    build.end(exit_code=code)
    return build


# ---- verdicts


def test_a_run_that_its_user_stopped_is_no_failure(tmp_path):
    found = judged(interrupted(trained(tmp_path / "r", steps=383)))
    assert found.health == "stopped"
    assert found.headline.startswith("stopped by you at step 383")
    assert "exit" not in found.headline and "failed" not in found.headline


@pytest.mark.parametrize(
    ("by", "code", "says"),
    [
        ("signal", 143, "stopped by SIGTERM at step 60 (a scheduler, `timeout` or `kill`)"),
        ("signal", 0, "stopped by SIGTERM at step 60 (a scheduler, `timeout` or `kill`)"),
        ("calibrate", 130, "stopped by gputop run --calibrate at step 60"),
    ],
)
def test_who_stopped_a_run_is_said(tmp_path, by, code, says):
    found = judged(interrupted(trained(tmp_path / "r"), by, 15, code))
    assert found.health == "stopped" and found.headline.startswith(says)


def test_sigterm_that_did_not_come_through_gputop_is_told_as_such(tmp_path):
    build = trained(tmp_path / "r")
    build.end(exit_code=143, signal=15)
    found = judged(build)
    assert found.health == "stopped" and "SIGTERM" in found.headline


@pytest.mark.parametrize(
    ("code", "says"), [(3, "exit 3, and no exception was seen"), (137, "SIGKILL"), (139, "SIGSEGV")]
)
def test_a_failure_names_its_own_reason_before_anything_else(tmp_path, code, says):
    build = Builder(tmp_path / "r")
    build.hello(dataloader={"num_workers": 0})
    build.steps(200, data=60.0, forward=2.0)  # a high finding beside it
    build.end(exit_code=code)
    found = judged(build)
    assert (
        found.health == "failed"
        and found.headline == f"ended: 200 steps, {found.headline.partition(', ')[2]}"
    )
    assert says in found.headline and "data" not in found.headline


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (
            "loss 1.2\npython: can't open file 'x.py'\n\n",
            "ends with: python: can't open file 'x.py'",
        ),
        ("\x1b[31mno data\x1b[0m\n=====\n", "ends with: no data"),
        ("half\x1b]0;title\x07 said\x08\n", "ends with: half said\\x08"),
        (f"{'no data ' * 19}hf_{'aB3' * 12}\n", "no data no data [hidden]"),
        ("", "exit code 3 after at least 60 steps"),
    ],
    ids=["plain", "coloured, then a rule", "hostile", "a secret", "silent"],
)
def test_a_failure_without_an_exception_quotes_the_last_line(tmp_path, printed, said):
    build = trained(tmp_path / "r")
    build.end(exit_code=3)
    (build.path / "hosts" / "box" / "output.log").write_text(printed)
    (failure,) = (one for one in evaluate(build.open()) if one.id == "HC09")
    assert failure.evidence.endswith(said)
    if said.startswith("ends with: "):
        assert failure.title == f"exit 3; it printed last: {said.removeprefix('ends with: ')}"


def test_an_exception_is_the_reason_of_a_failure(tmp_path):
    build = trained(tmp_path / "r")
    head = {
        "class": "ValueError",
        "message": "bad shape",
        "site": "train.py:9 step",
        "phase": "forward",
        "step": 59,
    }
    build.event("exception", t_ns=build.clock[0], rank=0, **head)
    build.end(exit_code=1)
    found = judged(build)
    assert found.health == "failed" and "ValueError: bad shape" in found.headline


@pytest.mark.parametrize(("told", "done"), [(59, 60), (60, 60)])
def test_a_failure_is_told_at_as_many_steps_as_the_run_has_done(tmp_path, told, done):
    """A step stays open until the next one begins: what fails between them names the one before."""
    build = trained(tmp_path / "r")
    head = {"class": "ValueError", "message": "bad shape", "phase": "other", "step": told}
    build.event("exception", t_ns=build.clock[0], rank=0, **head)
    build.end(exit_code=1)
    (failed,) = [one for one in evaluate(build.open()) if one.id == "HC06"]
    assert failed.title.startswith(f"rank 0 fails at step {done}: ")
    assert summarise(build.open()).steps == done


def test_what_breaks_while_a_run_is_stopped_is_nobodys_fault(tmp_path):
    build = trained(tmp_path / "r", ranks=2)
    build.event("interrupt", t_ns=build.clock[0], signal=2, by="user")
    head = {
        "class": "RuntimeError",
        "message": "Connection closed by peer",
        "phase": "backward",
        "step": 59,
    }
    build.event("exception", t_ns=build.clock[0] + 10, rank=0, **head)
    build.end(exit_code=130)
    assert judged(build).health == "stopped"
    assert "HC06" not in {one.id for one in evaluate(build.open())}


@pytest.mark.parametrize("stopped", [False, True])
def test_a_critical_finding_stays_critical_at_exit_0(tmp_path, stopped):
    build = Builder(tmp_path / "r")
    build.hello()
    for step in range(200):
        bad = step >= 120
        build.step(
            forward=5.0, loss=float("nan") if bad else 1.0, flags=wire.F_NONFINITE if bad else 0
        )
    if stopped:
        interrupted(build)
    else:
        build.end(exit_code=0)
    found = judged(build)
    assert found.health == "critical" and "loss is" in found.headline
    assert found.headline.startswith("stopped by you" if stopped else "ended: 200 steps, exit 0")
    (rank,) = summarise(build.open()).ranks
    assert rank.not_finite == "NaN"


def test_a_signal_that_the_training_outlived_stopped_nothing(tmp_path):
    build = trained(tmp_path / "r", steps=60)
    build.event("interrupt", t_ns=build.clock[0], signal=15, by="signal")
    build.steps(4000, forward=20.0)
    build.end(exit_code=0)
    assert judged(build).headline.startswith("ended: 4,060 steps, exit 0")


@pytest.mark.parametrize(("steps", "says"), [(1, "1 step so far"), (2, "2 steps so far")])
def test_steps_and_their_number_agree(tmp_path, steps, says):
    build = trained(tmp_path / "r", steps=steps)
    found = judged(build, now_ns=build.clock[0] + SECOND)
    assert found.headline == f"{says}: judged once 30 have been seen"
    assert WARM_UP_STEPS + ENOUGH_STEPS == JUDGED_AFTER


# ---- silence


def silent(build: Builder, seconds: float):
    return summarise(build.open(), now_ns=build.clock[0] + int(seconds * SECOND))


def test_rates_stop_with_the_steps(tmp_path):
    build = trained(tmp_path / "r")
    assert silent(build, 2).steps_per_s > 40 and silent(build, 2).silent_s == 0
    build.sample(
        "process", t_ns=build.clock[0] + 240 * SECOND, kind=1, rank=0, pid=100
    )  # the recorder lives
    later = silent(build, 246)
    assert (later.state, later.steps_per_s, later.silent_s) == ("running", 0.0, pytest.approx(246))
    report = Report(build.open())
    report.__dict__["summary"] = later
    for text in (as_text(report), as_markdown(report)):
        assert "no step for 4 min 6 s" in text and "steps/s" not in text


@pytest.mark.parametrize(
    ("phase", "doing"),
    [("eval", "evaluating"), ("checkpoint", "saving a checkpoint"), ("backward", "")],
)
def test_what_the_training_does_meanwhile(tmp_path, phase, doing):
    build = trained(tmp_path / "r")
    build.event("stacks", t_ns=build.clock[0] - SECOND, rank=0, phase="data", total=3)
    build.event("stacks", t_ns=build.clock[0] + 20 * SECOND, rank=0, phase="other", total=1)
    build.event("stacks", t_ns=build.clock[0] + 20 * SECOND + 1000, rank=0, phase=phase, total=38)
    build.sample("process", t_ns=build.clock[0] + 39 * SECOND, kind=1, rank=0, pid=100)
    assert silent(build, 40).doing == doing


def test_what_one_rank_does_that_the_others_wait_for_is_what_the_run_does(tmp_path):
    build = trained(tmp_path / "r", ranks=2)
    at = max(build.clock.values()) + 9 * SECOND
    for rank, phase in ((1, "comm"), (0, "checkpoint")):
        build.event("stack_dump", t_ns=at, rank=rank, phase=phase, step=60, reason="standing")
    build.sample("process", t_ns=at + 5 * SECOND, kind=1, rank=0, pid=100)
    now = summarise(build.open(), now_ns=at + 6 * SECOND)
    assert now.doing == "saving a checkpoint" and not now.stands


def test_slow_steps_are_no_silence(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello()
    build.steps(30, forward=30_000.0)
    build.sample("process", t_ns=build.clock[0] + 49 * SECOND, kind=1, rank=0, pid=100)
    assert silent(build, 50).silent_s == 0 and silent(build, 50).steps_per_s > 0


def test_rates_of_an_ended_run_are_named_means(tmp_path):
    build = trained(tmp_path / "r")
    build.end()
    assert "mean past the first 10 steps" in as_text(Report(build.open()))


# ---- hangs


def dump(build, at, rank, waits, line="train.py:50 main"):
    state = "started" if waits else "completed"
    threads = [{"name": "MainThread", "training": True, "frames": [line]}]
    collective = {"seq": 60, "op": "all_reduce", "state": state}
    phase = "backward" if waits else "other"
    build.event(
        "stack_dump",
        t_ns=at,
        rank=rank,
        phase=phase,
        step=60,
        threads=threads,
        collective=collective,
    )


def hanging(path, stuck: int, ranks: int) -> tuple[Builder, int]:
    """A run in which one rank deadlocks at line 8 and the others wait for it; and when that was
    suspected.
    """
    build = trained(path, ranks=ranks)
    at = build.clock[0] + 15 * SECOND
    build.event("hang_suspected", t_ns=at, ranks=list(range(ranks)), silent_s=15.0, limit_s=15.0)
    for rank in range(ranks):
        dump(
            build,
            at + 10**7,
            rank,
            rank != stuck,
            "train.py:6 step" if rank != stuck else "train.py:8 lock",
        )
    return build, at


STOPS = list(itertools.permutations(("interrupt", "lost", "suspected")))


@pytest.mark.parametrize("order", STOPS, ids="-".join)
@pytest.mark.parametrize(("ranks", "stuck"), [(2, 0), (2, 1), (3, 1)])
def test_a_hang_is_judged_as_it_was_before_the_stop(tmp_path, ranks, stuck, order):
    """Whatever comes after the first stop, in whatever order: the blame does not move."""
    build, at = hanging(tmp_path / "r", stuck, ranks)
    for place, what in enumerate(order):
        now = at + (200 + place) * SECOND
        if what == "interrupt":
            build.event("interrupt", t_ns=now, signal=2, by="user")
        elif what == "lost":
            build.event("rank_lost", t_ns=now, rank=stuck, reason="process ended", step=60)
            build.event("hang_over", t_ns=now + 1000, ranks=[stuck], reason="gone")
        else:
            others = [rank for rank in range(ranks) if rank != stuck]
            build.event("hang_suspected", t_ns=now, ranks=others, silent_s=215.0, limit_s=15.0)
            for rank in others:
                dump(build, now + 1000, rank, waits=rank != others[0], line="train.py:6 step")
    build.end(exit_code=130)
    (hang,) = [one for one in evaluate(build.open()) if one.id == "HC01"]
    assert (hang.rank, hang.site, hang.severity) == (stuck, "train.py:8 lock", "critical")
    data = as_data(Report(build.open()))
    assert data["verdict"]["health"] == "critical" and data["verdict"]["rank"] == stuck


@pytest.mark.parametrize("reason", ["steps", "gone"])
def test_a_run_that_went_on_and_then_failed_failed_by_what_it_raised(tmp_path, reason):
    """Its end was known to the recorder before it had looked for steps again."""
    build, at = hanging(tmp_path / "r", 0, 1)
    build.clock[0] = at + 20 * SECOND
    build.steps(20, forward=3.0, backward=5.0)
    end_ns = build.clock[0]
    build.event(
        "exception",
        t_ns=end_ns + 1000,
        rank=0,
        **{"class": "ValueError"},
        message="boom",
        site="train.py:9 <module>",
        step=build.open().steps(0)["step"][-1].item(),
    )
    build.event("goodbye", t_ns=end_ns + 2000, rank=0)
    build.event("hang_over", t_ns=end_ns + SECOND, ranks=[0], reason=reason)
    build.end(exit_code=1)
    found = evaluate(build.open())
    (hang,) = [one for one in found if one.id == "HC01"]
    assert hang.severity == "high" and hang.title.startswith("hung")
    assert found[0].id == "HC06"


def test_a_hang_that_went_away_is_over_whatever_comes_later(tmp_path):
    build, at = hanging(tmp_path / "r", 1, 2)
    build.event("hang_over", t_ns=at + 20 * SECOND, ranks=[0, 1], reason="steps")
    build.event("interrupt", t_ns=at + 30 * SECOND, signal=2, by="user")
    build.event("rank_lost", t_ns=at + 31 * SECOND, rank=1, reason="process ended", step=90)
    build.event("hang_suspected", t_ns=at + 46 * SECOND, ranks=[0], silent_s=16.0, limit_s=15.0)
    dump(build, at + 46 * SECOND, 0, True)
    build.end(exit_code=130)
    (hang,) = [one for one in evaluate(build.open()) if one.id == "HC01"]
    assert hang.severity == "high" and hang.rank == 1


def test_a_stop_of_a_run_that_trains_is_no_hang(tmp_path):
    build = trained(tmp_path / "r", ranks=2)
    at = build.clock[0]
    build.event("interrupt", t_ns=at + SECOND, signal=2, by="user")
    build.event("rank_lost", t_ns=at + 2 * SECOND, rank=1, reason="process ended", step=59)
    build.event("hang_suspected", t_ns=at + 17 * SECOND, ranks=[0], silent_s=17.0, limit_s=15.0)
    dump(build, at + 17 * SECOND, 0, True)
    build.end(exit_code=137)
    assert not [
        one for one in evaluate(build.open()) if one.id.startswith("HC0") and "hang" in one.title
    ]


@pytest.mark.parametrize(
    ("departure", "says"),
    [
        ({"type": "rank_lost", "reason": "process ended"}, "gone"),
        ({"type": "goodbye"}, "ended its"),
    ],
)
def test_a_rank_that_has_left_is_what_the_others_wait_for(tmp_path, departure, says):
    build = trained(tmp_path / "r", ranks=2)
    at = build.clock[0]
    build.event(departure.pop("type"), t_ns=at, rank=1, **departure)
    build.event("hang_suspected", t_ns=at + 15 * SECOND, ranks=[0], silent_s=15.0, limit_s=15.0)
    dump(build, at + 15 * SECOND, 0, True)
    (hang,) = [one for one in evaluate(build.open(), live=True) if one.id == "HC01"]
    assert hang.rank == 1 and says in hang.title


def test_another_hang_of_the_next_attempt_is_another_hang(tmp_path):
    build, at = hanging(tmp_path / "r", 1, 2)
    for rank in (0, 1):
        build.event("rank_lost", t_ns=at + SECOND, rank=rank, reason="process ended", step=60)
    build.event("hang_over", t_ns=at + SECOND, ranks=[0, 1], reason="gone")
    for rank in (0, 1):
        build.event("rank_start", t_ns=at + 5 * SECOND, rank=rank, record_index=60, attempt=1)
    build.event("hang_suspected", t_ns=at + 60 * SECOND, ranks=[0, 1], silent_s=15.0, limit_s=15.0)
    dump(build, at + 60 * SECOND, 0, False, "train.py:99 again")
    dump(build, at + 60 * SECOND, 1, True)
    (hang,) = [one for one in evaluate(build.open()) if one.id == "HC01"]
    assert (hang.rank, hang.site) == (0, "train.py:99 again")


def test_the_first_step_is_not_averaged(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello()
    build.step(forward=1.0, other=5_000.0)
    build.steps(100, forward=9.0, other=1.0)
    build.end()
    shares = {one.name: one.share for one in summarise(build.open()).phases}
    assert shares["forward"] == pytest.approx(0.9, abs=0.01)
    assert np.isclose(sum(shares.values()), 1.0)


def test_a_port_that_is_taken_is_no_line_to_mend(tmp_path):
    build = Builder(tmp_path / "r")
    build.end(exit_code=1)
    (build.path / "hosts" / "box" / "output.log").write_text(PORT_TAKEN)
    (failure,) = (one for one in evaluate(build.open()) if one.id == "HC09")
    assert failure.site is None and "--master-port" in str(failure.fix)


def test_the_line_that_missed_another_rank_is_not_the_one_to_mend(tmp_path):
    build = trained(tmp_path / "r", ranks=2)
    build.event("rank_lost", t_ns=build.clock[0], rank=0, reason="process gone", step=59)
    build.end(exit_code=1)
    (build.path / "hosts" / "box" / "output.log").write_text(ONLY_MISSED)
    (failure,) = (one for one in evaluate(build.open()) if one.id == "HC09")
    assert "look at why rank 0 (process gone) went" in str(failure.fix)
    assert "mend" not in str(failure.fix)


def test_of_ranks_that_one_stop_ends_none_went_first(tmp_path):
    build = trained(tmp_path / "r", ranks=2)
    build.event("rank_lost", t_ns=build.clock[0], rank=1, reason="process ended", step=59)
    (end,) = (
        one for one in evaluate(interrupted(build, "signal", 15, 1).open()) if one.id == "HC09"
    )
    assert (end.rank, end.severity) == (None, "info") and "went first" not in end.title
    assert str(end.fix) == "somebody asked it to end: the scheduler, a time limit, or a person"


def test_a_rank_that_ended_by_itself_went_before_the_one_that_was_ended(tmp_path):
    build = trained(tmp_path / "r", ranks=2)
    build.event("goodbye", t_ns=build.clock[0], rank=1, steps=60, reason="exit")
    build.event("rank_lost", t_ns=build.clock[0] + 10**8, rank=0, reason="process gone", step=59)
    build.end(exit_code=1)
    told = "multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit code 3\n"
    (build.path / "hosts" / "box" / "output.log").write_text(told)
    (failure,) = (one for one in evaluate(build.open()) if one.id == "HC09")
    assert failure.rank == 1 and "rank 1 went first" in failure.title
    assert "look for what ends rank 1, such as sys.exit()" in str(failure.fix)


ROOT_CAUSE = """\
terminate called without an active exception
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
[1]:
  time      : 2026-11-29_14:01:56
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 76)  (SIGTERM)
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:01:56
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 77)  (SIGABRT)
  traceback : Signal 6 (SIGABRT) received by PID 77
"""


@pytest.mark.parametrize(
    ("code", "in_order", "how", "fix"),
    [
        (-6, True, "by SIGABRT after 60 steps, as Python ended", "the training was through"),
        (-6, False, "by SIGABRT after 60 steps", "native code gave up"),
        (-9, False, "by SIGKILL after 60 steps", "SIGKILL cannot be caught"),
        (5, True, "with exit code 5 after 60 steps", "look for what ends rank 1"),
    ],
)
def test_the_process_that_torchrun_saw_end_first_is_told(tmp_path, code, in_order, how, fix):
    build = trained(tmp_path / "r", ranks=2)
    if in_order:
        build.event("goodbye", t_ns=build.clock[0], rank=1, steps=60, reason="exit")
    build.end(exit_code=1)
    (build.path / "hosts" / "box" / "output.log").write_text(ROOT_CAUSE.format(code=code))
    (failure,) = (one for one in evaluate(build.open()) if one.id == "HC09")
    assert failure.title == f"exit 1: rank 1 went first: it ended {how}"
    assert failure.rank == 1 and fix in str(failure.fix)
    assert "ChildFailedError" not in failure.evidence + str(failure.fix)


def test_an_exception_says_more_than_the_launchers_root_cause(tmp_path):
    build = trained(tmp_path / "r", ranks=2)
    raised = (
        "[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: a shard is missing\n"
    )
    build.end(exit_code=1)
    (build.path / "hosts" / "box" / "output.log").write_text(raised + ROOT_CAUSE.format(code=1))
    (failure,) = (one for one in evaluate(build.open()) if one.id == "HC09")
    assert failure.title == "exit 1: ValueError: a shard is missing"


def test_a_training_that_was_through_when_python_ended_is_not_told_to_mend_native_code(tmp_path):
    build = trained(tmp_path / "r")
    build.event("goodbye", t_ns=build.clock[0], rank=0, steps=60, reason="exit")
    build.end(exit_code=134)
    printed = "done\nterminate called without an active exception\n"
    (build.path / "hosts" / "box" / "output.log").write_text(printed)
    (failure,) = (one for one in evaluate(build.open()) if one.id == "HC09")
    assert "SIGABRT" in failure.title and "the training was through" in str(failure.fix)


TOLD_BY_TORCHRUN = """\
E1127 19:47:34 14611 torch/elastic/multiprocessing/api.py:1002] failed (exitcode: {code}) \
local_rank: 1 (pid: 77) of binary: /opt/bin/python
[0]:
  exitcode  : -15 (pid: 76)  (SIGTERM)
"""


@pytest.mark.parametrize(
    ("printed", "how", "fix"),
    [
        (TOLD_BY_TORCHRUN.format(code=-11), "by SIGSEGV", "a crash in native code: run"),
        (TOLD_BY_TORCHRUN.format(code=3), "with exit code 3", "os._exit(3)"),
        ("", "without an exception", "out-of-memory killer"),
    ],
)
def test_how_a_rank_vanished_is_told_where_its_launcher_did(tmp_path, printed, how, fix):
    build = trained(tmp_path / "r", ranks=4)
    at = build.clock[0]
    build.event("rank_lost", t_ns=at, rank=1, pid=77, reason="process ended", step=59)
    for rank in (3, 0, 2):
        missed = {"class": "RuntimeError", "message": "Connection closed by peer", "step": 59}
        build.event("exception", t_ns=at + SECOND, rank=rank, **missed)
    build.end(exit_code=1)
    (build.path / "hosts" / "box" / "output.log").write_text(printed)
    (first,) = (one for one in evaluate(build.open()) if one.id == "HC06")
    assert first.title == f"rank 1 vanished first, at step 60, {how}"
    assert "; ranks 0-3 but 1 then failed" in first.evidence
    assert fix in str(first.fix)


@pytest.mark.parametrize(
    ("other", "rank", "title"),
    [
        ({}, None, "all ranks fail at step 60: ValueError: too short"),
        ({"step": 61}, 1, "rank 1 fails first at step 60: ValueError: too short"),
        ({"message": "Connection closed"}, 1, "rank 1 fails first at step 60: ValueError: too"),
        (None, 1, "rank 1 fails first at step 60: ValueError: too short"),
    ],
)
def test_what_all_ranks_raise_is_told_of_no_rank(tmp_path, other, rank, title):
    build = trained(tmp_path / "r", ranks=2)
    error = {"class": "ValueError", "message": "too short", "site": "bank.py:9 push", "step": 59}
    build.event("exception", t_ns=build.clock[0], rank=1, **error)
    if other is not None:
        build.event("exception", t_ns=build.clock[0] + 9, rank=0, **(error | other))
    build.end(exit_code=1)
    (first,) = (one for one in evaluate(build.open()) if one.id == "HC06")
    assert first.rank == rank and first.title.startswith(title)
    assert ("follow from it" in str(first.fix)) is (rank is not None)


def test_parameters_without_a_gradient_are_no_line_to_mend(tmp_path):
    build = trained(tmp_path / "r", ranks=2)
    message = "Expected to have finished reduction in the prior iteration before starting a new one"
    head = {"class": "RuntimeError", "message": message, "site": "train.py:42 main", "step": 60}
    build.event("exception", t_ns=build.clock[0], rank=1, **head)
    build.end(exit_code=1)
    (first,) = (one for one in evaluate(build.open()) if one.id == "HC06")
    assert "find_unused_parameters=True" in str(first.fix) and "mend" not in str(first.fix)


def test_a_failure_over_weights_that_are_no_numbers_is_one_of_numbers(tmp_path):
    build = trained(tmp_path / "r", ranks=1)
    head = {"class": "ValueError", "message": "logits", "site": "play.py:84 play", "step": 60}
    build.event("exception", t_ns=build.clock[0], rank=0, bad_weight="trunk.0.weight", **head)
    build.end(exit_code=1)
    found = {one.id: one for one in evaluate(build.open())}
    assert found["HC06"].site == found["NU01"].site == "play.py:84 play"
    assert "trunk.0.weight was no number by then" in found["HC06"].fix
    assert found["NU01"].title == "weights are NaN or infinite where rank 0 fails at step 60"
    assert "--watch-numerics" in found["NU01"].fix


FAULT = """epoch 3
Fatal Python error: Segmentation fault

Thread 0x00007f57 (most recent call first):
  File "/home/u/feed.py", line 5 in wait

Current thread 0x00007f58 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/u/train.py", line 71 in main
  File "/home/u/train.py", line 90 in <module>

Extension modules: torch._C (total: 1)
"""


def test_the_line_of_a_crash_in_native_code_is_what_the_fault_handler_printed(tmp_path):
    build = trained(tmp_path / "r", ranks=1)
    build.end(exit_code=139)
    (build.path / "hosts" / "box" / "output.log").write_text(FAULT)
    (crash,) = (one for one in evaluate(build.open()) if one.id == "HC09")
    assert (crash.site, crash.title) == ("train.py:71 main", "exit 139: ended by SIGSEGV")
    assert "Fatal Python error: Segmentation fault, at train.py:71 main" in crash.evidence
    assert crash.fix.startswith("native code crashed below train.py:71 main")
