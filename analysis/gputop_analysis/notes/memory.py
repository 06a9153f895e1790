"""Small print of the memory findings."""

from gputop_analysis.notes.note import CPU, Note

NOTES = {
    "ME01": Note(
        "steps.peak_allocated_bytes, gpu.memory_total_bytes",
        "no GPU (when the host's or the container's memory is full, ME05 says); for the forecast fewer than five "
        "windows",
        "growth by sequence length, which stops at the longest",
    ),
    "ME02": Note(
        "per-window minima of steps.allocated_bytes, on a CPU rss_bytes and the number of tensors alive",
        "fewer than five windows; growth below the noise, or for less than 2 s (20 s where create_graph=True was seen: "
        "parameters and gradients then refer to each other and wait for the garbage collector)",
        "optimizer state made in the first steps; caches that fill",
        CPU,
    ),
    "ME03": Note(
        "steps.reserved_bytes less allocated_bytes, inactive split blocks",
        "no CUDA allocator figures",
        "what is left over after a larger evaluation",
    ),
    "ME04": Note(
        "device allocations per step, calls of empty_cache",
        "neither counter is there",
        "the first epoch, in which the pool still grows",
    ),
    "ME05": Note(
        "host.tree_pss_bytes, process.rss_bytes, host memory and its limit",
        "fewer than five windows; growth for less than 2 s (20 s where create_graph=True was seen); a file that is "
        "mapped",
        "page cache, which the kernel gives back",
        CPU,
    ),
    "ME06": Note(
        "peak_allocated_bytes of each rank",
        "fewer than two ranks; less than half of the memory in use",
        "the embedding's pipeline stage",
    ),
    "ME07": Note(
        "gpu.memory_foreign_bytes and the processes on the GPU",
        "the driver does not tell processes",
        "MPS, ranks of the same job",
    ),
    "ME08": Note("peak memory after 500 steps", "fewer than 500 steps; no GPU", "room that is kept on purpose"),
    "ME09": Note(
        "whether gradients are still there at forward, their size",
        "gradient accumulation",
        "accumulation over micro-batches",
        CPU,
    ),
    "ME10": Note(
        "forward calls in eval mode with gradients enabled and no backward after them",
        "no evaluation seen",
        "meta-learning and adversarial training, which differentiate through it",
        CPU,
    ),
}
