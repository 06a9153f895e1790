"""Which of the tracebacks that an output quotes is behind the end of the command."""

import pytest
import quoted_tracebacks as quoted

from gputop_analysis.findings.crash.tracebacks import parsed

SYNTAX = "SyntaxError: invalid syntax"
UNEVEN = "RuntimeError: stack expects each tensor to be equal size, but got [3] at entry 0"
SHARD = "ValueError: no such shard: 7"
OF_RANK_0 = (
    "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",
    "setup.py:12 setup",
)
OUTPUTS = {
    "a chain": (quoted.CHAINED, ("RuntimeError: gave up", "train.py:22 main")),
    "its first link": (quoted.CHAINED.partition("During")[0], (SHARD, "train.py:20 main")),
    "two ranks": (quoted.RANKS_OF_TORCHRUN + quoted.TORCHRUN, OF_RANK_0),
    "torchrun before 2.3": (quoted.OLDER_TORCHRUN, ("RuntimeError: gave up", "train.py:22 main")),
    "torchrun --tee": (quoted.TEED, OF_RANK_0),
    "accelerate launch": (quoted.ACCELERATE, ("RuntimeError: gave up", "train.py:22 main")),
    "mp.spawn": (quoted.SPAWNED, (SHARD, "train.py:41 worker")),
    "ranks without marks": (quoted.RANKS_WITHOUT_MARKS, (SHARD, "train.py:41 worker")),
    "srun --label": (quoted.LABELLED, (SHARD, "train.py:41 worker")),
    "rich": (quoted.BOXED, (SHARD, "train.py:14 main")),
    "an exception group": (quoted.GROUPED, (SHARD, "train.py:5 read")),
    "a script that is no Python": (quoted.UNCOMPILED, (SYNTAX, "train.py:2")),
    "a module that is no Python": (quoted.IMPORTED, (SYNTAX, "model.py:7")),
    "a loader's worker": (quoted.OF_A_WORKER, (UNEVEN, "train.py:7 <module>")),
    "a class of its own": (
        quoted.OF_ITS_OWN_KIND,
        ("__main__.Diverged: 3.0", "train.py:3 <module>"),
    ),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_cause_is_told(name):
    text, expected = OUTPUTS[name]
    assert parsed(text) == expected


def test_only_the_launcher_has_said_something():
    words = parsed(quoted.TORCHRUN)
    assert words is not None
    assert words.what.endswith("ChildFailedError:") and words.site is None


@pytest.mark.parametrize("text", ["step 3\nno error\n", "Traceback (most recent call last):\n", ""])
def test_no_exception(text):
    assert parsed(text) is None
