"""Small print of the input findings."""

from gputop_analysis.notes.note import CPU, Note

_SHARE = "fewer than 20 steady steps"

NOTES = {
    "IN01": Note(
        "steps.data_ns, on a GPU device.data_ms; hello.dataloader",
        f"{_SHARE}; less than 1 ms a batch; workers that starve for cores (IN04 speaks then)",
        "a wait that overlaps the GPU's work: judged on the device's clock where there is one",
        CPU,
    ),
    "IN02": Note(
        "steps.data_ns, hello.dataloader.num_workers and its site",
        f"{_SHARE}; the loader is not torch's; less than 1 ms a batch, waiting for a core not counted",
        "data already in memory: below 3 ms a batch a worker wins nothing, and it is an info",
        CPU,
    ),
    "IN03": Note(
        "steps.data_ns, process.cpu_ns_total of the workers, looks at the batches that lie ready",
        f"{_SHARE}; workers not seen; too few looks",
        "one slow worker (IN06), slow storage (IN07)",
        CPU,
    ),
    "IN04": Note(
        "process.run_wait_ns_total of the training thread (schedstat), hello.threads, hello.dataloader",
        "less than 1 s or 3 samples; a kernel without schedstat; cores that are mostly free",
        "short bursts of other programs",
        CPU,
    ),
    "IN05": Note(
        "steps.data_ns of each epoch's first fetch, the workers' process ids",
        "fewer than two epochs inside the window",
        "work that an epoch really needs, such as shuffling a huge index",
        CPU,
    ),
    "IN06": Note(
        "looks at the loader while the training waits: whether later batches are there already",
        f"{_SHARE}; fewer than two workers; too few looks",
        "a checkpoint or an evaluation every few steps",
        CPU,
    ),
    "IN07": Note(
        "process.state of the workers (D: waiting for a disk), host.psi_io_some_pct, disk_read_bytes_total",
        f"{_SHARE}; no pressure figures and no workers sampled",
        "the first epoch, which fills the page cache",
        CPU,
    ),
    "IN08": Note(
        "device.h2d_ms, hello.dataloader.pin_memory, whether a batch is pinned",
        "no GPU; pinning not seen",
        "unified memory, where no copy takes place",
    ),
    "IN09": Note(
        "device.h2d_ms, gpu.pcie_rx_mb_s against the link's generation and width",
        "no GPU; no PCIe counters",
        "the link's generation drops while it idles",
    ),
    "IN10": Note(
        "steps.data_cpu_ns, stack samples of the data phase, process.cpu_ns_total of the workers",
        f"{_SHARE}; no workers; no stack samples; fewer than 8 tensors a batch while the training waits for cores",
        "num_workers=0, which is IN02",
        CPU,
    ),
    "IN11": Note(
        "data wait and communication wait of each rank at the same steps",
        "fewer than two ranks; waits not known",
        "a file cache that warms up; a slow shard that moves from rank to rank",
        CPU,
    ),
    "IN12": Note(
        "a checksum of the first tensor of a few batches on each rank",
        "fewer than two ranks; tensor or pipeline parallelism; too few batches compared",
        "overfitting one batch on purpose",
        CPU,
    ),
    "IN13": Note(
        "host.shm_used_bytes and shm_total_bytes, process.open_files against the limit",
        "neither is sampled",
        "other programs that use the same /dev/shm",
        CPU,
    ),
    "IN14": Note(
        "the mean of attention_mask, every 50 steps",
        "no attention mask in the batch; fewer than 8 batches looked at",
        "packed sequences and prefix masks",
        CPU,
    ),
    "IN15": Note(
        "how many iterators of the loader were made, what making them and their first fetches took; where a loader "
        "without workers begins, stack samples in torch's sampler",
        "fewer than five iterators; too few stack samples in the data phase",
        "a batch that is all of the data, which makes each step an epoch",
        CPU,
    ),
}
