"""Workers that hand out the same samples."""

from __future__ import annotations

from gputop_analysis.findings.advice import ITERABLE, Option
from gputop_analysis.findings.dialect import loader_place, loader_site
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import percent
from gputop_analysis.view import RunView

SAME, ENOUGH_SAME, ENOUGH_CHANGES = 0.4, 4, 3
"""Of the batches compared with the one before them; of two workers' it is each second one."""


@finding(
    id="IN16",
    name="workers repeat each other",
    family="input",
    cause="input",
    trigger=f"an IterableDataset with two workers or more; over {percent(SAME)} of the batches "
    f"that are compared, and {ENOUGH_SAME} or more, are the same as the one right before them, "
    "while data change otherwise",
    fix="split the samples by torch.utils.data.get_worker_info()",
    no_use="where each sample is meant to be trained on as often as there are workers",
    reads="a checksum of the first tensor of the first 8 batches, of each 50th and the one after "
    "it",
    silent="a map-style dataset; fewer than two workers; workers that shuffle each on their own",
    traps="overfitting one batch on purpose",
    seen_on=CPU,
)
def repeating_workers(view: RunView, spec: Spec) -> Finding | None:
    """Each worker goes through all of the data: an epoch is that many times too long."""
    for rank in view.ranks:
        run = Facts(view, rank)
        workers = int(run.loader.get("num_workers") or 0)
        if workers < 2 or not run.loader.get("iterable"):
            continue
        compared, same, changed = _compared(view, rank)
        if same < max(ENOUGH_SAME, SAME * compared) or changed < ENOUGH_CHANGES:
            continue
        dataset = run.loader.get("dataset") or "the dataset"
        return spec.make(
            severity="high",
            title=f"{workers} workers hand out the same batches, each of them all of the data",
            evidence=f"{same} of {compared} batches were the same as the one right before them, "
            f"which came from another worker; {dataset} is an IterableDataset, of which each "
            f"worker has a copy; the loader{loader_place(run)} has num_workers={workers}",
            fix=(
                Option(
                    f"in {dataset}.__iter__ take every num_workers-th sample, beginning with the "
                    "worker's id: info = torch.utils.data.get_worker_info(); "
                    "islice(samples, info.id, None, info.num_workers)",
                    needs=(ITERABLE,),
                ),
                "or give each worker files of its own in a worker_init_fn",
            ),
            rank=everybody(view),
            site=run.loader.get("looped_at") or loader_site(run),
            confidence=0.95,
            proof=Proof(
                statistic="batches that are the same as the one right before them / batches "
                "compared with it",
                value=100 * same / compared,
                threshold=100 * SAME,
                unit="%",
                formula="the time of a step stays the same: each sample is learnt from as often "
                "as there are workers before another one comes",
                inputs=(
                    Input("same", same, "batches", f"repeats events, rank {rank}"),
                    Input("compared", compared, "batches", f"repeats events, rank {rank}"),
                    Input("changes", changed, "looks", f"repeats events, rank {rank}"),
                ),
            ),
        )
    return None


def _compared(view: RunView, rank: int) -> tuple[int, int, int]:
    """Batches that were compared with the one before, those that were the same, and changes."""
    compared = same = changed = 0
    for event in view.events("repeats", rank=rank):
        compared += int(event.get("batches") or 0)
        same += int(event.get("same") or 0)
        changed += int(event.get("changed") or 0)
    return compared, same, changed
