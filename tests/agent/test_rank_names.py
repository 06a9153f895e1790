"""Where a script asks the environment for a rank that is not there."""

import pytest

from gputop_agent.description import rank_names
from gputop_agent.runtime import source


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """The place of a line of the script in an environment that has RANK and no other rank."""
    monkeypatch.setenv("RANK", "1")
    for name in ("SLURM_PROCID", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)

    def place(line):
        script = tmp_path / "train.py"
        script.write_text(f"import os\n\n{line}\n")
        monkeypatch.setattr(source, "users_files", lambda: [str(script)])
        rank_names.asked_in_vain_at.cache_clear()
        return rank_names.asked_in_vain_at()

    yield place
    rank_names.asked_in_vain_at.cache_clear()


@pytest.mark.parametrize(
    "line",
    [
        'shard = int(os.environ.get("SLURM_PROCID", 0))',
        "rank = int(os.getenv('OMPI_COMM_WORLD_RANK', '0'))",
        'where = os.environ.get("LOCAL_RANK", 0) if several else 0',
    ],
)
def test_a_name_that_is_not_set(asked, line):
    assert asked(line).endswith("train.py:3")


@pytest.mark.parametrize(
    "line",
    [
        'rank = int(os.environ.get("RANK", 0))',
        'rank = int(os.environ["SLURM_PROCID"])',
        'rank = os.environ.get("SLURM_PROCID")',
        'node = int(os.environ.get("NODE_RANK", 0))',
        '# rank = os.environ.get("SLURM_PROCID", 0)',
    ],
)
def test_others(asked, line):
    assert asked(line) is None
