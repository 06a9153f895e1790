"""What a launcher of ranks sets for each of them, for a script that cannot do without."""

from __future__ import annotations

from typing import Any, Dict, Optional


def variables(world: int) -> Dict[str, str]:
    """What torchrun would set for the first rank of so many."""
    settings = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": min(world, 8)}
    settings.update({"GROUP_RANK": 0, "MASTER_PORT": 29500})
    named = {name: str(value) for name, value in settings.items()}
    return {**named, "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "none"}


def demanded(problem: Optional[BaseException]) -> str:
    """The launcher's variable for lack of which a script failed; empty: another reason."""
    while problem is not None:
        if isinstance(problem, KeyError) and problem.args and problem.args[0] in variables(1):
            return str(problem.args[0])
        problem = problem.__cause__ or problem.__context__
    return ""


def say(name: str, note: Any) -> None:
    """Say that the variables were set, since the script failed without ``name``."""
    sentence = (
        "The script fails without %s, which a launcher sets: it ran as rank 0 of 1; "
        "--dp N says how many." % name
    )
    note(sentence, guess="one rank, as it needs %s of a launcher" % name)
