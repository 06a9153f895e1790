"""Commands: what the recorder tells a guest."""

from typing import Any, Literal, TypedDict, Union


class DumpCommand(TypedDict):
    """Send the stacks of all threads."""

    cmd: Literal["dump"]
    reason: str


class FlightRecorderCommand(TypedDict):
    """Send what torch's flight recorder holds."""

    cmd: Literal["flight_recorder"]
    reason: str


class ProfileCommand(TypedDict):
    """Profile the next steps."""

    cmd: Literal["profile"]
    steps: int
    trace_dir: str


class LayersCommand(TypedDict):
    """Watch so many of the next steps layer by layer."""

    cmd: Literal["layers"]
    steps: int


class MemorySnapshotCommand(TypedDict):
    """Write a snapshot of CUDA's allocator at the end of this step."""

    cmd: Literal["memory_snapshot"]
    folder: str


class DetachCommand(TypedDict):
    """Take the hooks out."""

    cmd: Literal["detach"]


Command = Union[
    DumpCommand,
    FlightRecorderCommand,
    ProfileCommand,
    LayersCommand,
    MemorySnapshotCommand,
    DetachCommand,
]


COMMANDS: dict[str, Any] = {
    "dump": DumpCommand,
    "flight_recorder": FlightRecorderCommand,
    "profile": ProfileCommand,
    "layers": LayersCommand,
    "memory_snapshot": MemorySnapshotCommand,
    "detach": DetachCommand,
}
"""What the recorder tells a guest, by ``cmd``."""
