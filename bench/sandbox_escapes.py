"""Counts the ways out of the sandbox of ``gputop estimate train.py`` that do harm, by user and by
layer of the kernel.

``python bench/sandbox_escapes.py``; as root it tries them as nobody too. Exit code 1 where any did
harm.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOBODY = 65534
LAYERS = {
    "all layers": ("namespaces", "landlock"),
    "without namespaces": ("landlock",),
    "without Landlock": ("namespaces",),
    "filter alone": (),
}


def tried(user: int, layers: tuple[str, ...]) -> dict[str, dict[str, object]]:
    """What came of each way that the layers are to hold."""
    script = ROOT / "tests" / "tracer" / "sandbox_escape_run.py"
    paths = os.pathsep.join(str(ROOT / one) for one in ("probes", "tests"))
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, str(script), str(user), *layers]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True, timeout=300)
    return dict(json.loads(done.stdout)["ways"])


def main() -> int:
    """Print the table."""
    harm = 0
    print(f"{'user':<8}{'layers':<22}{'tried':>6}{'harm':>6}")
    for user in (os.getuid(), *((NOBODY,) if os.getuid() == 0 else ())):
        for name, layers in LAYERS.items():
            ways = tried(user, layers)
            harmful = [way for way, found in ways.items() if found["harmed"]]
            count = sum(found["harmed"] is not None for found in ways.values())
            print(f"{user:<8}{name:<22}{count:>6}{len(harmful):>6}  {', '.join(harmful)}".rstrip())
            harm += len(harmful)
    return 1 if harm else 0


if __name__ == "__main__":
    sys.exit(main())
