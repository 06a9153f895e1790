"""How to mend what one rank did while the others waited for it."""

from __future__ import annotations

from typing import Any

from gputop_analysis.hangs.standing import Cause

_ADVICE = {
    "skipped": "call the collective on every rank: take it out of the condition, or make the "
    "condition the same everywhere",
    "swallowed an exception": "do not go on after an exception of one rank: raise it again, or let "
    "all ranks agree first (all_reduce of a flag)",
    "other operation": "call the same operation on every rank: a condition on the rank or on the "
    "data picks another there",
    "other size": "make the sizes equal: pad to the longest, or drop the uneven last batch "
    "(drop_last=True)",
    "other order": "call the groups in the same order on every rank: each waits for the other's "
    "second call",
    "other source": "pass the same rank as src or dst on every rank of the group: it is a rank of "
    "all, not one within the group",
    "store": "set the key on another rank, or wait with a timeout: what waits at the store is no "
    "collective, and others do not see it",
    "new group": "call new_group on every rank of the job, in "
    "the same order, also on ranks that are not in the group",
    "message missing": "give every send its recv: count the micro-batches of both stages, and "
    "where both send first use batch_isend_irecv",
    "different collectives": "TORCH_DISTRIBUTED_DEBUG=DETAIL raises at the call that differs",
    "handles an exception": "let the handler give up: raise the exception again after a few tries, "
    "and the run ends with it instead of hanging",
    "ended early": "give every rank the same number of batches (DistributedSampler, "
    "drop_last=True), or wrap the loop in torch.distributed.algorithms.join.Join: a rank that "
    "ends early leaves the others in their collective",
    "no answer": "look at the rank's native stack (`py-spy "
    "dump --native`, gdb): an extension holds the interpreter",
}


def advice_on(cause: Cause, thread: dict[str, Any]) -> str:
    """How to mend a cause.

    Args:
        cause: of the hang.
        thread: of the rank, as ``hang_suspected.threads`` has it; {} where it is not known.
    """
    if cause.kind == "stopped":
        return f"let it go on: `kill -CONT {thread.get('pid', 'PID')}`; find out who stopped it"
    if cause.kind in ("died", "raised"):
        return (
            f"look at why rank {cause.rank} ended: its last output and the kernel's log (`dmesg "
            "-T`) say more; torchrun ends the other ranks where one is gone"
        )
    if cause.is_at_the_end:
        return (
            f"look at {cause.site or 'the stack'}: what runs after the last step has to end on "
            "each rank; torch.distributed.destroy_process_group() before models and groups go"
        )
    place_text = f" ({cause.site})" if cause.site else ""
    return _ADVICE.get(
        cause.kind,
        f"look at {cause.site or 'the stacks of all ranks'}: what it waits for does not come, and "
        "every rank must reach the same collective",
    ) + (place_text if cause.kind in _ADVICE else "")
