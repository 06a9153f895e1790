"""Small print of the host findings."""

from gputop_analysis.notes.note import CPU, Note

_SHARE = "fewer than 20 steady steps"

NOTES = {
    "HO01": Note(
        "gpu.sm_active_pct or util_pct, steps.cpu_ns against wall time without data and comm",
        "no GPU samples; a synchronising line seen (HO02); half of the idle time is data wait or collectives",
        "a GPU that idles for lack of data (IN01)",
    ),
    "HO02": Note(
        "stack samples at lines whose text has .item(), .cpu(), print(loss) and their like; gpu.sm_active_pct or "
        "util_pct",
        "no GPU samples; fewer than five stack samples at such a line; a GPU that is busy for over 97 % of the time",
        "a wait that the GPU's own work fills: only idle time after it is charged",
    ),
    "HO03": Note(
        "steps.gc_ns, gc events",
        _SHARE,
        "gc.collect() called by the script: then the fix is to call it less",
        CPU,
    ),
    "HO04": Note(
        "steps.wall_ns with and without the busy thread (threads events), else steps.compute_cpu_ns against wall time; "
        "voluntary switches",
        f"{_SHARE}; no samples of the training thread; too few cores for its threads",
        "a hook that really waits for a file or a socket",
        CPU,
    ),
    "HO05": Note(
        "host.cgroup_throttled_us_total, cgroup_cpu_limit",
        "no CPU quota; less than 2 s of samples",
        "the burst at start, which is left out",
        CPU,
    ),
    "HO06": Note(
        "steps.other_ns, stack samples of the other phase, process.run_wait_ns_total",
        f"{_SHARE}; most samples inside torch, which is work; a pause that came once or twice; only an "
        "info where no line was seen five times",
        "a loss function outside the model: it is other time, and useful",
        CPU,
    ),
    "HO07": Note(
        "steps.checkpoint_ns, checkpoint events",
        "no checkpoint in the window",
        "the last checkpoint of a run",
        CPU,
    ),
    "HO08": Note("steps.eval_ns", "no evaluation in the window", "an evaluation as long as intended", CPU),
    "HO09": Note(
        "compile events, steps.compile_ns",
        "no torch.compile",
        "a new phase that must compile once, as the first eval",
        CPU,
    ),
    "HO10": Note(
        "hello.compile: graphs and graph breaks, with their reasons",
        "no torch.compile; only an info unless the GPU waits for launches (HO01)",
        "breaks in code that runs rarely",
        CPU,
    ),
    "HO11": Note(
        "steps.optimizer_ns, hello.optimizer.fused and foreach",
        f"{_SHARE}; an optimizer that is not torch's own; only an info where foreach was not switched off",
        "a model so small that the optimizer is its largest part",
        CPU,
    ),
    "HO12": Note(
        "process.minor_faults_total per step",
        "fewer than 20 steps of samples",
        "the first steps, in which memory is touched for the first time",
        CPU,
    ),
    "HO13": Note(
        "the core last run on against the cores near the GPU",
        "no GPU; a single socket; affinity not told",
        "a single socket",
    ),
    "HO14": Note(
        "hello.threads times ranks against host.cpu_count, run_wait_ns_total",
        "cores not known; less than 1 s of samples",
        "torchrun, which sets OMP_NUM_THREADS=1 itself",
        CPU,
    ),
    "HO15": Note(
        "steps.wall_ns of slow steps by their index",
        "fewer than 5 periods; steps that hold an eval, a checkpoint or a compile, and those after them; waits for "
        "data or in collectives; only an info where no line was seen",
        "work whose rhythm is intended: the finding says where it is, not that it is wrong",
        CPU,
    ),
    "HO16": Note(
        "hello.debug (looked at while the run goes on) and hello.env",
        "an aid that was not read",
        "a debugging session: then it is as it should be",
        CPU,
    ),
}
