"""What a process of a run says, and what it can be told: the fields of hello, of its events and of
commands.

The definition for both ends. The guest follows these types and never imports them; readers derive
their checks from them (``gputop_probes/record/schema.py``), and ``docs/events.md`` is made from
them. A field that was not learnt is null or missing. Units stand in the names.
"""

from typing import Any

from gputop_agent.contracts.commands import COMMANDS as COMMANDS
from gputop_agent.contracts.course import (
    AgentError,
    Checkpoint,
    DdpProgress,
    Goodbye,
    LogEvent,
    MovingEvent,
    NamedPhase,
    OptimizerBegins,
    OwnCostEvent,
    PlateauEvent,
    Startup,
    WeightsLoaded,
)
from gputop_agent.contracts.hello import Ddp, Hello, HelloUpdate
from gputop_agent.contracts.hello import LoaderInUse as LoaderInUse
from gputop_agent.contracts.hello import Mesh as Mesh
from gputop_agent.contracts.hello import Model as Model
from gputop_agent.contracts.hello import Optimizer as Optimizer
from gputop_agent.contracts.hello import ParallelFacts as ParallelFacts
from gputop_agent.contracts.hello import Pipeline as Pipeline
from gputop_agent.contracts.hello import Shapes as Shapes
from gputop_agent.contracts.host import (
    BusyThreads,
    Compilation,
    GarbagePause,
    LoaderLooks,
    LoaderWorker,
    PaddingEvent,
    Paging,
    Placement,
    RepeatsEvent,
    Stacks,
)
from gputop_agent.contracts.measured import Flops, LayersEvent, LayerTable, ProfileEvent
from gputop_agent.contracts.memory import AllocatorEvent, MemorySnapshotEvent, Tensors
from gputop_agent.contracts.numerics import (
    CheckupEvent,
    NanOrigin,
    NanPlace,
    NoGradientEvent,
    NonFinite,
    Replica,
    SpikeOrigin,
    UnclearedEvent,
    UndetachedEvent,
)
from gputop_agent.contracts.stops import FlightRecorder, Raised, StackDump

EVENTS: dict[str, Any] = {
    "startup": Startup,
    "hello": Hello,
    "hello_update": HelloUpdate,
    "stacks": Stacks,
    "loader_worker": LoaderWorker,
    "loader": LoaderLooks,
    "padding": PaddingEvent,
    "repeats": RepeatsEvent,
    "paging": Paging,
    "placement": Placement,
    "compile": Compilation,
    "threads": BusyThreads,
    "checkup": CheckupEvent,
    "uncleared": UnclearedEvent,
    "undetached": UndetachedEvent,
    "replica": Replica,
    "tensors": Tensors,
    "allocator": AllocatorEvent,
    "checkpoint": Checkpoint,
    "weights_loaded": WeightsLoaded,
    "optimizer_begins": OptimizerBegins,
    "plateau": PlateauEvent,
    "gc": GarbagePause,
    "exception": Raised,
    "nonfinite": NonFinite,
    "nan_origin": NanOrigin,
    "nan_place": NanPlace,
    "no_gradient": NoGradientEvent,
    "spike_origin": SpikeOrigin,
    "stack_dump": StackDump,
    "flight_recorder": FlightRecorder,
    "ddp": Ddp,
    "ddp_progress": DdpProgress,
    "log": LogEvent,
    "named_phase": NamedPhase,
    "flops": Flops,
    "layer_table": LayerTable,
    "layers": LayersEvent,
    "memory_snapshot": MemorySnapshotEvent,
    "profile": ProfileEvent,
    "own_cost": OwnCostEvent,
    "agent_error": AgentError,
    "goodbye": Goodbye,
    "moving": MovingEvent,
}
"""What a guest sends, by the event's type."""
