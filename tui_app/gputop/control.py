"""What the app may do to a run, own or attached: stop, profile, ask for stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gputop_probes.launch import RunHandle


class RunControl:
    """Control over a run through its handle."""

    def __init__(self, handle: RunHandle):
        self._handle = handle

    def interrupt(self) -> None:
        """As Ctrl-C: SIGINT, then within 3 s SIGTERM, then SIGKILL to every process of the run."""
        self._handle.interrupt()

    def kill(self) -> None:
        """SIGKILL to every process of the run."""
        self._handle.kill()

    def alive(self) -> bool:
        """Whether the command still runs."""
        return self._handle.wait(0) is None

    def exit_code(self) -> int | None:
        """The command's exit code, None while it runs."""
        return self._handle.wait(0)

    def waits_for_input(self) -> bool:
        """Whether a process of the command waits for what only we can type."""
        self._handle.tend_output()
        console = self._handle.console
        if console is None:
            return False
        from gputop_probes.keyboard import waits_for_input

        return waits_for_input(console) is not None

    def hand_over(self) -> None:
        """Give this terminal to the command until Ctrl-] is typed, or it has ended. Says why it
        cannot.

        Raises:
            ValueError: the command has no terminal that we could type into.
        """
        from gputop.hand_over import hand_over

        hand_over(self._handle)

    def stopping(self) -> bool:
        """Whether the command was asked to end, here or by a signal to this process."""
        return self._handle.stopped_by_us

    def suspend(self) -> None:
        """Stop the run's processes for a while; who only looks on does not."""
        if self._handle.ours:
            self._handle.suspend()

    def resume(self) -> None:
        """Let them go on."""
        self._handle.resume()

    def profile(self, steps: int) -> None:
        """Ask every rank for a torch.profiler table of the next ``steps`` steps."""
        self._send({"cmd": "profile", "steps": steps})

    def layers(self) -> None:
        """Ask every rank to watch three steps layer by layer."""
        self._send({"cmd": "layers", "steps": 3})

    def dump(self) -> None:
        """Ask every rank for the stacks of its threads."""
        self._send({"cmd": "dump", "reason": "asked"})

    def memory_snapshot(self) -> None:
        """Ask every rank for a snapshot of its GPU's allocator."""
        self._send({"cmd": "memory_snapshot"})

    def _send(self, command: dict[str, Any]) -> None:
        from gputop_probes.client import send_command

        send_command(self._handle.run_dir, command)
