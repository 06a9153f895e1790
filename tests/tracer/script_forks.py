"""Traces scripts, each in a fork of one process that has imported torch: ``script_forks.py
FOLDER``, jobs on stdin.
"""

import argparse
import gc
import json
import os
import sys
import tempfile

# Imported once, for all forks. Libraries over torch are not: a script imports them when torch is
# patched already.
import torch._dynamo  # noqa: F401
import torch.distributed.fsdp  # noqa: F401
import torch.testing._internal.distributed.fake_pg  # noqa: F401

from gputop_tracer import model_trace  # noqa: F401
from gputop_tracer.script import run


def trace(name: str, job: dict, folder: str) -> None:
    """Trace one script in a fork, and wait for it."""
    options = argparse.Namespace(
        out=os.path.join(folder, name + ".json.gz"),
        outcome=os.path.join(folder, name + ".outcome.json"),
        world=job.get("world", 0),
        configs=job.get("configs", ""),
    )
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.chdir(job.get("home", "."))
    scratch = tempfile.mkdtemp(dir=folder)
    run.Run(job["script"], job.get("arguments", []), options, scratch).way(job.get("way", "ran"))


if __name__ == "__main__":
    gc.freeze()
    for name, job in json.load(sys.stdin).items():
        trace(name, job, sys.argv[1])
