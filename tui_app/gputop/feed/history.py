"""The last samples of every device and host, for the small charts in the meters."""

from __future__ import annotations

import numpy as np

from gputop.feed.snapshot import History
from gputop_probes.record.reader import RunRecord

SAMPLES = 60


def history(record: RunRecord) -> History:
    """Utilisation per GPU and CPU per host, in percent."""
    series: dict[str, tuple[float, ...]] = {}
    for name, host in record.hosts.items():
        rows = host.host.rows
        if len(rows):
            series[f"cpu {name}"] = tuple(rows["cpu_pct"][-SAMPLES:].tolist())
        gpu = host.gpu.rows[-SAMPLES * 16 :]
        for index in np.unique(gpu["index"]).tolist() if len(gpu) else []:
            series[f"gpu {name} {index}"] = tuple(
                gpu["util_pct"][gpu["index"] == index][-SAMPLES:].tolist()
            )
    return History(series)
