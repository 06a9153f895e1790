"""Small print of the findings about ranks and communication."""

from gputop_analysis.notes.note import CPU, Note

_STRAGGLER = Note(
    "wait of each rank for the others (by DDP itself, else what is exposed of a phase), phases of the same steps",
    "fewer than two ranks; fewer than ten common steps; waits not known; drift that explains as much",
    "compiling or evaluating on one rank, and the warm-up: such steps are left out",
    CPU,
)

NOTES = {
    "CR01": _STRAGGLER,
    "CR02": _STRAGGLER,
    "CR03": _STRAGGLER,
    "CR04": _STRAGGLER,
    "CR05": Note(
        "compute of each rank per step, tokens per rank",
        "a persistent straggler (CR01 to CR04); fewer than 20 common steps; cores that are scarce",
        "few steps, in which chance looks like a pattern",
        CPU,
    ),
    "CR06": Note(
        "the smallest communication wait over the ranks, less what overlaps",
        "one rank; a straggler, whose cost is counted there; a pipeline, where waiting is the bubble (CR13)",
        "waiting for a slow rank: the minimum over ranks leaves that out",
        CPU,
    ),
    "CR07": Note(
        "all-reduces per optimizer step against micro-batches",
        "no gradient accumulation; counts not known",
        "FSDP that reshards on purpose",
        CPU,
    ),
    "CR08": Note(
        "ddp event: find_unused_parameters and the unused bytes over many steps",
        "unused parameters were seen",
        "branches of the model that are rarely taken",
        CPU,
    ),
    "CR09": Note(
        "gpu.pcie_gen and pcie_width of busy GPUs",
        "no GPU; no peers to compare with",
        "a link's generation drops while it idles",
    ),
    "CR10": Note(
        "hello.parallel.backend and the model's class", "CPU tensors", "a process group for CPU tensors only", CPU
    ),
    "CR11": Note(
        "gpu.util_pct of GPUs visible to the job", "fewer than 5 minutes; no GPU", "a GPU kept for evaluation"
    ),
    "CR12": Note(
        "flight recorder: operation and size of the same sequence number on each rank",
        "no flight recorder entries of two ranks",
        "pipeline stages, which run different collectives",
        CPU,
    ),
    "CR13": Note(
        "torch's pipeline schedule, else the mesh's axis; time in its waits against (p - 1) / (m + p - 1)",
        "no pipeline seen; micro-batches not known; waits that the host does not see (on a GPU)",
        "interleaved schedules, whose bubble is smaller",
        CPU,
    ),
    "CR14": Note(
        "tokens per expert as logged with gputop.log",
        "nothing logged",
        "the first steps, before routing settles",
        CPU,
    ),
    "CR15": Note(
        "tokens and samples of each rank's batches, or the shapes it saw, beside the waits that name the slow rank",
        "one rank; no rank that is surely slow; batches that nothing counts",
        "one step in which a rank has more; a stage of a pipeline that has another batch",
        CPU,
    ),
}
