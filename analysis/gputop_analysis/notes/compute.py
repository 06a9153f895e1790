"""Small print of the compute findings."""

from gputop_analysis.notes.note import CPU, Note

_GPM = "gpu.{} (GPM counters, Hopper and later)"

NOTES = {
    "CE01": Note(_GPM.format("sm_active_pct, tensor_active_pct"), "no GPM counters", "work that needs fp32 or fp64"),
    "CE02": Note(
        "hello.flags of matmul precision, hello.device_capability, dtypes of the parameters",
        "older than Ampere; no fp32 matrix products",
        "results that need the last bits",
    ),
    "CE03": Note(
        "hello.amp.grad_scaler and dtype, hello.device_capability",
        "hardware without bfloat16",
        "kernels that exist in float16 only",
        CPU,
    ),
    "CE04": Note(
        _GPM.format("sm_occupancy_pct") + ", memory_used_bytes",
        "no GPM counters",
        "a batch that convergence keeps small",
    ),
    "CE05": Note(
        _GPM.format("dram_active_pct, tensor_active_pct"), "no GPM counters", "the optimizer's part of a step"
    ),
    "CE06": Note(
        "kernel names of a profiler burst or trace", "no trace", "short sequences, where it makes no difference"
    ),
    "CE07": Note(
        "steps.backward_ns less the wait for other ranks, against forward_ns",
        "fewer than 20 steady steps; activation checkpointing; a wait that is not known",
        "communication inside backward, which is taken off first",
        CPU,
    ),
    "CE08": Note(
        "backward against forward, hello.checkpointing, free device memory",
        "no GPU; no checkpointing seen",
        "a peak that only evaluation reaches",
    ),
    "CE09": Note(
        "hello.model, hello.batch, hello.flags (cudnn.benchmark), memory format",
        "no GPU; shapes that change",
        "inputs of varying shape, for which the search costs more than it wins",
    ),
    "CE10": Note(
        "hello.shapes: the first tensor of a hundred batches in each thousand",
        "fewer than 100 batches; only an info on a CPU without torch.compile",
        "lengths that are grouped on purpose",
        CPU,
    ),
    "CE11": Note(
        "steps.wall_ns over the run, per token where tokens are counted",
        "sides shorter than five autocorrelation times; more tokens or samples a step, which are divided out; growth "
        "that "
        "waiting for a core explains; computing on a CPU that slows by less than half",
        "a batch or sequence schedule",
        CPU,
    ),
    "CE12": Note(
        "floating-point operations per step, the GPU's dense peak, step time",
        "operations or peak not known; no GPU",
        "mixture of experts and sparse models",
    ),
    "CE13": Note(
        "gpu.energy_mj_total, samples",
        "no energy counter; no trial with a lower power cap",
        "power caps shared by several",
    ),
}
