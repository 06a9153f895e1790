"""Small print of the findings about hangs and crashes."""

from gputop_analysis.notes.note import CPU, Note

NOTES = {
    "HC01": Note(
        "hang_suspected and stack_dump events, flight recorder, the rank that is behind",
        "ranks in eval, checkpoint or compile",
        "a long evaluation on one rank",
        CPU,
    ),
    "HC02": Note(
        "hang_suspected in the data phase, state of the workers, stacks",
        "storage that is slow (HC03)",
        "a first batch that takes long",
        CPU,
    ),
    "HC03": Note(
        "hang_suspected in a checkpoint or data phase, a thread in state D",
        "no thread waits for a disk",
        "a large first checkpoint",
        CPU,
    ),
    "HC04": Note(
        "exception event of class OutOfMemoryError, memory at that time",
        "an error that the script caught and went on from",
        "a search for the largest batch, which runs out on purpose",
    ),
    "HC05": Note(
        "exit by SIGKILL together with growth of host.cgroup_oom_kill_total",
        "the counter did not grow",
        "a kill by the user or the scheduler",
        CPU,
    ),
    "HC06": Note(
        "exception events of all ranks by time", "no exception seen", "NCCL timeouts, which logs show first", CPU
    ),
    "HC07": Note(
        "exit by SIGBUS, errors about /dev/shm, host.shm_total_bytes",
        "neither was seen",
        "another disk that is full",
        CPU,
    ),
    "HC08": Note(
        "gpu.util_pct or process CPU against the time since the last step", "a step was seen", "one very long step", CPU
    ),
    "HC09": Note(
        "exit code or signal, the first error, the last step", "exit code 0", "launchers that replace the code", CPU
    ),
    "HC10": Note(
        "exceptions that reach threading.excepthook",
        "no thread died so; one that catches its exceptions is not seen",
        "threads that may die, such as a logger's when its server is away",
        CPU,
    ),
}
