"""Where the script asks the environment for a rank that is not there, and takes another number."""

import os
import re
from functools import lru_cache

from gputop_agent.runtime import source

_ASKED = re.compile(r"""(?:environ\.get|getenv)\(\s*["'](\w*(?:RANK|PROCID))["']\s*,""")
_OF_NODES = ("NODE_RANK", "GROUP_RANK", "MACHINE_RANK")


@lru_cache(maxsize=1)
def asked_in_vain_at():
    """``"train.py:9"``; None where each such name is set, or where nobody asks."""
    return source.place_where(_is_in_vain)


def _is_in_vain(line):
    names = _ASKED.findall(line)
    return any(name not in os.environ for name in names if not name.endswith(_OF_NODES))
