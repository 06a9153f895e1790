"""The place of a finding: the innermost line that surely holds most of the samples, or none."""

import pytest
from analysis_support import Builder
from quoted_tracebacks import CHAINED

from gputop_analysis.findings import evaluate
from gputop_analysis.findings.sites import top_site
from gputop_analysis.view import RunView

MAIN, LOOP = "train.py:90 <module>", "train.py:50 train"


def seen(tmp_path, samples, phase="other"):
    """A run whose loop was seen at two lines while it computed, and in ``phase`` as ``samples``
    say.
    """
    build = Builder(tmp_path / "r")
    build.hello(0)
    build.steps(60, forward=5.0, backward=5.0, other=8.0)
    elsewhere = [_sample([MAIN, "train.py:41 train"], 9)]
    build.event("stacks", rank=0, phase="forward", period_ms=50, total=9, samples=elsewhere)
    told = [_sample(*one) for one in samples]
    build.event(
        "stacks",
        rank=0,
        phase=phase,
        period_ms=50,
        total=sum(s["count"] for s in told),
        samples=told,
    )
    return build


def _sample(path, count, inside=""):
    site, _, function = path[-1].partition(" ")
    return {
        "site": site,
        "function": function,
        "caller": "",
        "path": path,
        "inside": inside,
        "count": count,
    }


CASES = {
    "one line": ([([MAIN, LOOP, "log.py:3 log"], 20)], "log.py:3 log"),
    "a few of many": ([([MAIN, f"train.py:{50 + n} train"], 2) for n in range(5)], None),
    "two of ten": (
        [([MAIN, LOOP], 2), *(([MAIN, f"train.py:{60 + n} train"], 1) for n in range(8))],
        None,
    ),
    "all lines of what a line calls": (
        [([MAIN, LOOP, f"ema.py:{n} update"], 4) for n in range(9)],
        LOOP,
    ),
    "two lines of what a line calls": (
        [
            ([MAIN, LOOP, "bank.py:3 gather", "bank.py:9 each"], 14),
            ([MAIN, LOOP, "bank.py:4 gather", "bank.py:9 each"], 14),
            ([MAIN, "train.py:51 train"], 4),
        ],
        "bank.py:3 gather",
    ),
    "a generator, in the line below it": (
        [([MAIN, LOOP, "log.py:9 count", "log.py:9 <genexpr>", "log.py:8 <genexpr>"], 20)],
        "log.py:9 count",
    ),
    "a generator that is gone through elsewhere": (
        [([MAIN, LOOP, "log.py:8 <genexpr>"], 20)],
        "log.py:8 <genexpr>",
    ),
    "a call deeper": (
        [([MAIN, LOOP, "ema.py:9 update", f"ema.py:{n} each"], 4) for n in range(9)],
        LOOP,  # update was seen at this line only, as main is: the loop's line is the place
    ),
    "a function that the training does not run in": (
        [([MAIN, LOOP, f"grid.py:{n % 4} draw"], 9 - n % 4) for n in range(5)]
        + [([MAIN, "train.py:52 train", f"grid.py:{n} draw"], 8) for n in range(3)],
        "grid.py:0 draw",
    ),
    "the function that the training runs in": (
        [([MAIN, f"train.py:{50 + n} train"], 6) for n in range(7)],
        None,
    ),
    "one of several callbacks": (
        [([MAIN, "loop train.py:49 train", LOOP, f"log.py:{n} after"], 6) for n in range(5)],
        "log.py:0 after",
    ),
    "the head of the loop, which fetches": (
        [
            ([MAIN, "loop train.py:49 train", "train.py:49 train", "rows.py:8 __iter__"], 20),
            ([MAIN, "loop train.py:49 train", "train.py:49 train", "rows.py:3 collate"], 4),
        ],
        "rows.py:8 __iter__",
    ),
    "the loop in which nearly all of a call lies": (
        [
            ([MAIN, LOOP, "notes.py:9 note", "loop notes.py:3 add", "notes.py:4 add"], 48),
            ([MAIN, LOOP, "notes.py:9 note"], 3),
            ([MAIN, LOOP, "world.py:5 step"], 6),
            *[([MAIN, f"train.py:{52 + n} train", f"grid.py:{n} draw"], 5) for n in range(6)],
        ],
        "notes.py:3 add",
    ),
    "two lines of the loop": ([([MAIN, LOOP], 10), ([MAIN, "train.py:51 train"], 10)], LOOP),
    "inside a trainer": ([([MAIN], 30, "lightning/loops/fit.py:3 run")], None),
    "below a trainer": (
        [([MAIN, "(lightning)", "model.py:7 training_step"], 30)],
        "model.py:7 training_step",
    ),
}


@pytest.mark.parametrize(("samples", "place"), CASES.values(), ids=CASES)
def test_the_place_is_the_innermost_line_that_surely_holds_most(tmp_path, samples, place):
    site = top_site(RunView(seen(tmp_path, samples).open()), "other", 0)
    assert site is not None and site.site == place
    assert ("spread over" in site.words) == (place is None and len(samples) > 1)


def test_two_lines_that_share_the_time_are_both_named(tmp_path):
    samples, _ = CASES["two lines of the loop"]
    site = top_site(RunView(seen(tmp_path, samples).open()), "other", 0)
    assert "50 % and 50 % at train.py:51 train of 20 stack samples" in site.words


@pytest.mark.parametrize(
    ("path", "caller"),
    [
        ([MAIN, LOOP, "log.py:9 each", "log.py:3 area"], "log.py:9 each"),
        ([MAIN, LOOP, "loop log.py:2 area", "log.py:3 area"], LOOP),
        ([MAIN, LOOP, "log.py:8 <listcomp>", "log.py:3 area"], LOOP),
        ([LOOP], ""),
    ],
)
def test_the_line_that_calls_the_place_is_told_beside_it(tmp_path, path, caller):
    site = top_site(RunView(seen(tmp_path, [(path, 20)]).open()), "other", 0)
    assert site is not None and site.caller == caller
    assert (f", called at {caller} (100 %" in site.words) is bool(caller)


@pytest.mark.parametrize("inside", [["log.py:3 area"], ["log.py:1 area", "log.py:3 <genexpr>"]])
@pytest.mark.parametrize(
    ("shared", "is_call"), [([], False), ([LOOP], False), (["log.py:9 each"], True)]
)
def test_of_a_function_that_several_lines_call_the_call_is_the_place(
    tmp_path, inside, shared, is_call
):
    build = seen(tmp_path, [])
    sample = _sample([MAIN, LOOP, "log.py:9 each", *inside], 20)
    sample["shared_calls"] = shared
    build.event("stacks", rank=0, phase="other", period_ms=50, total=20, samples=[sample])
    site = top_site(RunView(build.open()), "other", 0)
    assert site is not None and (site.site == "log.py:9 each") is is_call
    assert (f", inside {inside[-1]} (100 %" in site.words) is is_call


def test_two_lines_of_a_function_that_several_lines_call_leave_the_call_the_place(tmp_path):
    build = seen(tmp_path, [([MAIN, "train.py:51 train"], 4)])
    samples = [_sample([MAIN, LOOP, f"bank.py:{line} gather"], 14) for line in (3, 4)]
    for sample in samples:
        sample["shared_calls"] = [LOOP]
    build.event("stacks", rank=0, phase="other", period_ms=50, total=28, samples=samples)
    site = top_site(RunView(build.open()), "other", 0)
    assert site is not None and site.site == LOOP


def test_no_line_is_named_from_two_of_ten_samples(tmp_path):
    samples, _ = CASES["two of ten"]
    one = {f.id: f for f in evaluate(seen(tmp_path, samples).open())}["HO06"]
    assert (
        one.site is None
        and "train.py:50" not in one.title
        and "spread over 9 lines" in one.evidence
    )


def test_a_deepcopy_is_host_code_with_all_that_it_copies(tmp_path):
    samples = [
        ([MAIN, LOOP], 12, "copy.py:172 deepcopy"),
        ([MAIN, "train.py:51 train"], 4, "torch/optim/sgd.py:1 f"),
    ]
    site = top_site(RunView(seen(tmp_path, samples).open()), "other", 0)
    assert site is not None and (site.site, site.torch_share) == (LOOP, 0.25)


def test_an_exit_code_comes_with_its_exception(tmp_path):
    build = seen(tmp_path, [([MAIN, LOOP], 9)])
    build.end(exit_code=1)
    (build.path / "hosts" / "box" / "output.log").write_text(CHAINED)
    one = {f.id: f for f in evaluate(build.open())}["HC09"]
    assert one.title.startswith("exit 1: RuntimeError: gave up") and one.site == "train.py:22 main"
    assert "at train.py:22 main" in one.evidence and one.fix == "mend train.py:22 main"


def test_checkpoints_and_collections_have_their_line(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello(0)
    for step in range(200):
        saved = step % 20 == 19
        build.step(0, forward=5.0, backward=5.0, checkpoint=40.0 if saved else 0.0, gc_ns=2_000_000)
        if saved:
            build.event(
                "checkpoint",
                rank=0,
                step=step,
                duration_ms=40.0,
                path="last.pt",
                site="train.py:77 ",
            )
    sample = {**_sample([MAIN, "train.py:60 train"], 3), "code": "gc.collect()"}
    build.event("stacks", rank=0, phase="other", period_ms=50, total=3, samples=[sample])
    found = {f.id: f for f in evaluate(build.open())}
    assert found["HO07"].site.startswith("train.py:77")
    assert found["HO03"].site == "train.py:60 train" and found["HO03"].fix.startswith(
        "collect less often at train.py:60"
    )
