"""Which lines a loader's workers are seen in, with real worker processes."""

import sys

import pytest
from agent_support import run_script

torch = pytest.importorskip("torch")

from gputop_agent.watchers.loaders import worker_looks  # noqa: E402

SCRIPT = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset, Subset

class Rows(Dataset):
    def __init__(self, caches): self.caches, self.cache = caches, {}
    def __len__(self): return 4000
    def __getitem__(self, index):
        if self.caches: self.cache[index] = torch.ones(20000)  # what fills it
        row = torch.zeros(4)
        return decoded(row)

def decoded(row):
    until = time.perf_counter() + 0.01
    while time.perf_counter() < until: pass  # the costly line
    return row

def main():
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    loader = DataLoader(
        Subset(Rows({caches}), range(4000)), 4, num_workers=2, multiprocessing_context=sys.argv[1],
        sampler=range({samples}), persistent_workers=False,
    )
    for rows in loader:
        net(rows).sum().backward(); optimizer.step(); optimizer.zero_grad()

if __name__ == "__main__":
    main()
"""
COSTLY = next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if "the costly line" in line)


FILLS = next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if "what fills it" in line)


def trained(tmp_path, method, samples=400, caches=False):
    script = tmp_path / "train.py"
    body = SCRIPT.replace("{samples}", str(samples)).replace("{caches}", str(caches))
    script.write_text(body)
    outcome = run_script([str(script), method])
    assert (outcome.exit_code, outcome.stderr, outcome.agent_errors) == (0, "", "")
    assert outcome.guest.n_steps == samples // 4
    return outcome.workers


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_tell_the_line_that_takes_their_time(tmp_path, method):
    told = trained(tmp_path, method)
    assert {event["worker"] for event in told} == {0, 1}
    assert len({event["parent"] for event in told if method != "forkserver"}) <= 1
    counts = {}
    for event in told:
        assert event["looks"] >= event["idle"] + sum(one["count"] for one in event["samples"])
        for sample in event["samples"]:
            assert "main" not in " ".join(sample["path"]), "only what lies inside torch's loop"
            counts[sample["site"]] = counts.get(sample["site"], 0) + sample["count"]
    assert sum(counts.values()) >= 10
    assert counts[f"train.py:{COSTLY}"] > 0.8 * sum(counts.values())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_cache_in_the_data_set_that_grows_is_named(tmp_path, method):
    told = trained(tmp_path, method, 1200, caches=True)
    assert {event["worker"] for event in told} == {0, 1}
    named = [(event["grown_in"], event["grown_site"]) for event in told if "grown_in" in event]
    assert set(named) == {("cache", f"train.py:{FILLS}")}


def test_a_worker_that_ends_at_once_says_what_it_saw_or_nothing(tmp_path):
    for event in trained(tmp_path, "fork", samples=8):
        assert event["looks"] > 0


def _worker_loop(order):
    return order(), sys._getframe()


def order():
    return worker_looks._below_loop(sys._getframe())


def test_a_function_of_the_same_name_is_not_torchs_loop():
    assert _worker_loop(order)[0] == []
