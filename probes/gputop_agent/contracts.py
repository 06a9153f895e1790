"""What a process of a run says, and what it can be told: the fields of hello, of its events and of
commands.

The definition for both ends. The guest follows these types and never imports them; readers derive
their checks from them (``gputop_probes/record/schema.py``), and ``docs/events.md`` is made from
them. A field that was not learnt is null or missing. Units stand in the names.
"""

from typing import Annotated, Any, Literal, NamedTuple, TypedDict, Union


class Range(NamedTuple):
    """Whole numbers that can be true."""

    low: int
    high: int


NEEDED = "needed"
"""Marks a field without which the object says nothing."""

Line = Annotated[str, "line"]
Text = Annotated[str, "text"]
Scalar = Annotated[Union[bool, float, str], "scalar"]
Count = Annotated[int, "count"]
Amount = Annotated[float, "amount"]
Number = Annotated[float, "num"]
Real = Annotated[float, "real"]
"""Also NaN and infinite."""
Whole = Annotated[int, Range(0, 2**40)]
Signed = Annotated[int, Range(-(2**40), 2**40)]
Step = Annotated[int, Range(-1, 2**32)]
Pid = Annotated[int, Range(-1, 2**31)]
Rank = Annotated[int, Range(0, 1_000_000)]
Time = Annotated[int, Range(946_684_800 * 10**9, 4_102_444_800 * 10**9)]
"""Nanoseconds since the epoch, between the years 2000 and 2100."""


class Shape(TypedDict, total=False):
    """The architecture of a language model, as its configuration has it."""

    hidden_size: Whole
    layers: Whole
    heads: Whole
    kv_heads: Whole
    head_dim: Whole
    vocab_size: Whole
    ffn_size: Whole
    max_sequence: Whole
    experts: Whole
    experts_per_token: Whole
    tied_embeddings: bool
    attention: Line
    model_type: Line
    name: Line


class LoraFacts(TypedDict, total=False):
    """Low-rank adapters."""

    rank: Annotated[Whole, NEEDED]
    targets: list[Line]
    dtype: Line
    dropout: Amount


_Class = TypedDict("_Class", {"class": Line}, total=False)


class Model(_Class, total=False):
    """The model that is trained; the largest of several."""

    parameters: Count
    trainable: Count
    by_dtype: dict[str, Amount]
    """Parameters by type."""
    trainable_by_dtype: dict[str, Amount]
    buffer_bytes: Count
    modules: dict[str, Amount]
    """How many modules there are of each class."""
    roots: list[Line]
    sharded: bool
    gradient_checkpointing: bool
    truncated: bool
    """Whether not all modules were looked at."""
    config: Shape
    lora: LoraFacts


class Optimizer(_Class, total=False):
    """The optimizer that steps most of the parameters."""

    module: Line
    groups: Count
    parameters: Count
    all_parameters: Count
    """Of all optimizers, each parameter counted once."""
    tensors: Count
    lr: Real
    """Of the first parameter group."""
    betas: list[Number]
    others: list[Line]
    fused: Scalar
    foreach: Scalar
    state: dict[str, Scalar]
    site: Line
    """The line where it was made."""
    scheduler: Line
    """The line where its scheduler was made."""


class Amp(TypedDict, total=False):
    """Mixed precision."""

    autocast: bool
    dtype: Line
    grad_scaler: bool


class GraphBreak(TypedDict, total=False):
    """Where torch.compile broke a graph."""

    site: Line
    function: Line
    reason: Text


class Compile(TypedDict, total=False):
    """torch.compile."""

    used: bool
    graphs: Whole
    graph_breaks: Whole
    recompiles: Whole
    breaks: list[GraphBreak]


class Shapes(TypedDict, total=False):
    """Shapes of batches."""

    batches: Whole
    distinct: Whole
    examples: list[list[Whole]]
    grew_at: Whole
    """The last batch so far whose samples had more values than any before."""
    grown: Real
    """How many times those of the first batch."""


class Ddp(TypedDict, total=False):
    """Settings of DistributedDataParallel."""

    backend: Line
    find_unused_parameters: bool
    static_graph: bool
    gradient_as_bucket_view: bool
    broadcast_buffers: bool
    sync_batch_norm: bool
    bucket_bytes: list[Whole]
    bucket_cap_bytes: Signed
    unused_parameter_bytes: Whole
    parameter_bytes: Whole
    parameter_tensors: Whole
    comm_hook: Scalar


class Fsdp(TypedDict, total=False):
    """Settings of FSDP, the first or the second."""

    version: Count
    units: Count
    sharding: Line
    backward_prefetch: Line
    cpu_offload: bool
    reshard_after_forward: bool
    mixed_precision: dict[str, Scalar]


class DeepSpeed(TypedDict, total=False):
    """Settings of DeepSpeed's engine."""

    offload_optimizer: bool
    offload_param: bool
    accumulation: Scalar
    micro_batch: Scalar
    zero_stage: Annotated[int, Range(0, 3)]


class Pipeline(TypedDict, total=False):
    """A pipeline of torch.distributed.pipelining."""

    schedule: Line
    here: list[int]
    """Stages of this rank."""
    ranks: Whole
    stages: Whole
    micro_batches: Whole


class Mesh(TypedDict, total=False):
    """A device mesh."""

    names: list[Line]
    shape: list[Whole]


class ParallelFacts(TypedDict, total=False):
    """How ranks share the work."""

    backend: Line
    ddp: Union[bool, Ddp]
    fsdp: Union[bool, Fsdp]
    deepspeed: Union[bool, DeepSpeed]
    pipeline: Union[bool, Pipeline]
    mesh: Mesh
    data_parallel: Union[bool, Count]


class LoaderFacts(_Class, total=False):
    """A DataLoader."""

    batch_size: Whole
    num_workers: Whole
    prefetch_factor: Whole
    dataset_length: Whole
    length: Whole
    pin_memory: bool
    persistent_workers: bool
    drop_last: bool
    timeout_s: Number
    start_method: Line
    dataset: Line
    iterable: bool
    sampler: Line
    collate_fn: Line
    site: Line
    """Where it is built."""


class LoaderInUse(LoaderFacts, total=False):
    """The DataLoader that feeds the training."""

    loop: Line
    """Where it is iterated."""
    inside: list[Line]
    """Packages between its loop and the training script."""


class Batch(TypedDict, total=False):
    """The first batches."""

    shapes: dict[str, list[Whole]]
    dtypes: dict[str, Line]
    pinned: bool


class Threads(TypedDict, total=False):
    """Threads of torch."""

    torch: Whole
    interop: Whole


class LimitsFacts(TypedDict, total=False):
    """Limits of the process."""

    open_files: Whole


class Affinity(TypedDict, total=False):
    """Cores of the process, and those next to its GPU."""

    allowed_cpus: Scalar
    device_cpus: Scalar


class Clip(TypedDict, total=False):
    """Gradient clipping."""

    max_norm: Real
    site: Line
    """The line that calls it."""


class GraphEval(TypedDict, total=False):
    """Evaluation forwards whose graph no backward used."""

    forwards: Whole
    ms: Amount
    site: Line
    """Of the first of them."""


class TrialFacts(TypedDict, total=False):
    """What a trial (``gputop dryrun``) was told to do."""

    steps: Whole
    layers: Whole
    of: Whole


class Hello(TypedDict, total=False):
    """What the run is; once, when the first step closes."""

    rank: Annotated[Rank, NEEDED]
    pid: Pid
    tid: Pid
    """Native id of the training thread."""
    ppid: Pid
    local_rank: Rank
    world_size: Annotated[int, Range(0, 2**24)]
    argv: list[Line]
    executable: Line
    python: Line
    torch: Line
    libraries: dict[str, Scalar]
    cuda_version: Line
    hip_version: Line
    launcher: Line
    env: dict[str, Scalar]
    """Of an allow-list of names."""
    device: Line
    device_index: Annotated[int, Range(-1, 4096)]
    device_name: Line
    device_uuid: Line
    device_memory_bytes: Annotated[int, Range(0, 2**50)]
    device_capability: Line
    allocator: Line
    model: Model
    optimizer: Optimizer
    amp: Amp
    compile: Compile
    debug: dict[str, Scalar]
    """Anomaly mode and profiler as shares of the time, and the line that alone switches them on;
    tracers, dev mode.
    """
    create_graph: bool
    meta_gradients: bool
    """``create_graph`` with respect to weights: what an update would have changed is learnt."""
    checkpointing: bool
    network_beside: bool
    """Most steps run a network without gradients too: a policy, a target, a teacher."""
    shapes: Shapes
    parallel: ParallelFacts
    dataloader: LoaderInUse
    batch: Batch
    threads: Threads
    limits: LimitsFacts
    affinity: Affinity
    flags: dict[str, Scalar]
    """Of torch's backends; ``seed`` is null where none was set."""
    clip: Clip
    graph_eval: GraphEval
    dryrun: TrialFacts
    total_steps: Whole


class HelloUpdate(Hello, total=False):
    """Any keys of hello that became known later."""


class SiteFacts(TypedDict, total=False):
    """A place in the user's code."""

    site: Line
    function: Line
    caller: Line


class StackSample(SiteFacts, total=False):
    """A line, and how often the training thread was seen in it."""

    inside: Text
    """What the line waits in: ``torch/_C mean`` is torch's C code, by the text of the
    instruction.
    """
    path: list[Line]
    """Lines of user code, the outermost first; ``loop train.py:40 fit`` is a loop that the next one
    is in, ``(lightning)`` a package between two.
    """
    code: Text
    count: Whole


class Stacks(TypedDict, total=False):
    """Which lines spend data, other, communication and evaluation time; every 2 s, later up to every 30 s."""

    phase: Line
    period_ms: Amount
    """Measured."""
    total: Whole
    samples: list[StackSample]


class WorkerLooks(TypedDict, total=False):
    """How often a fetch was seen to wait for a worker."""

    worker: Annotated[Whole, NEEDED]
    looks: Annotated[Whole, NEEDED]


class EpochStart(TypedDict, total=False):
    """The making of an iterator."""

    step: Step
    end_ms: Amount
    start_ms: Amount
    first_ms: Amount


class LoaderLooks(LoaderFacts, total=False):
    """The loader of worker processes as seen from the agent's thread; every 2 s, later up to every
    30 s.
    """

    looks: Whole
    empty: Whole
    fetching: Whole
    behind: Whole
    unpacking: Whole
    states: dict[str, Whole]
    """R, D, S, ... of the worker that a fetch waits for."""
    waited_for: list[WorkerLooks]
    epochs: Whole
    starts_ms: Amount
    """What it took to end the last iterators and make the next."""
    firsts_ms: Amount
    """Their first fetches."""
    epoch_starts: list[EpochStart]
    """The first of them."""


class PaddingEvent(TypedDict, total=False):
    """Of the attention masks among the batches looked at, the first 8 and then each 50th; with
    ``loader``.
    """

    batches: Whole
    places: Whole
    tokens: Whole


class RepeatsEvent(TypedDict, total=False):
    """Of the first 8 batches and of each 50th and the one after it, by a checksum of their first
    tensor; with ``loader``.
    """

    batches: Whole
    """Compared with the one right before them."""
    same: Whole
    changed: Whole
    """Looks that saw another batch than the look before."""


class Paging(TypedDict, total=False):
    """A period with over 2,000 page faults a second."""

    period_ms: Amount
    faults: Whole
    system_ms: Amount


class Placement(TypedDict, total=False):
    """On which cores the training thread ran, where the GPU's own are known."""

    looks: Whole
    near: Whole


class Compilation(TypedDict, total=False):
    """A compilation by torch.compile; site, function and reason are those of the frame compiled
    again last.
    """

    duration_ms: Amount
    step: Step
    function: Line
    site: Line
    reason: Text
    graphs: Whole
    graph_breaks: Whole
    recompiles: Whole


class BusyThread(SiteFacts, total=False):
    """A Python thread beside the training's."""

    name: Line
    cpu_share: Amount
    age_s: Amount


class BusyThreads(TypedDict, total=False):
    """While another Python thread uses over 20 % of a core."""

    period_ms: Amount
    threads: list[BusyThread]


class CheckupEvent(TypedDict, total=False):
    """A look at gradients and weights; at steps 20, 40, 60 and 100, later where it changed."""

    step: Annotated[Step, NEEDED]
    alike: Annotated[Whole, NEEDED]
    """Looks in a row that found this; sent at the third again."""
    parameter_bytes: Whole
    held_bytes: Whole
    """Gradients held at a forward after an update."""
    stale: Scalar
    """They were not zero at the backward."""
    trainable: Whole
    """Values."""
    without_gradient: Whole
    """Values."""
    without_gradient_names: list[Line]
    lr_max: Real
    """Over the groups."""
    resting: Whole
    """Values with gradients in groups whose learning rate is 0, while others have one."""
    resting_names: list[Line]
    gradients_looked_at: Whole
    gradients_not_zero: Whole
    """Values of up to eight gradients just before an update."""
    zero_gradient: Whole
    zero_gradient_names: list[Line]
    zero_gradient_looks: Whole
    """Values of parameters whose whole gradient was zero at so many looks in a row."""
    stray: Whole
    stray_names: list[Line]
    stray_looks: Whole
    """Values that have gradients, are in no optimizer that has stepped, and did not change for so
    many looks.
    """
    stray_waiting: Whole
    """Those of them that an optimizer has which has not stepped."""
    cleared_backwards: Whole
    step_backwards: Whole
    cleared_looks: Whole
    """Backwards of the step whose gradients were cleared before its update, of so many, and looks in
    a row that found some.
    """
    cleared_at: Line
    """The only ``zero_grad()`` in the loop around the backward."""
    eval_mode: Line
    """Class of a module that is updated in eval mode, and was updated in training mode before."""
    eval_mode_parts: list[Line]
    """Classes in it that do something else in eval mode."""
    eval_mode_after: Step
    """The last look that saw it in training mode."""
    eval_mode_looks: Whole
    """So many looks in a row."""
    backward_at: Line
    update_at: Line
    """Lines of the step's first backward, and of its update."""
    fresh_looks: Whole
    """Looks in a row that met an optimizer with state at its first update."""
    graph_again: list[Real]
    """Of each further backward of the step, the part of its graph that one before went through."""
    normalised_twice: Line
    """``softmax`` or ``sigmoid``: the loss applies it to what it has been applied to."""
    clips_scaled: Whole
    """Calls of ``clip_grad_norm_`` with gradients that a GradScaler had scaled, so far."""
    weights_rms: Real
    """Largest root mean square of some weights of up to eight matrices."""
    table: Line
    """Parameter of an embedding that is much of the model."""
    table_rows: Whole
    table_values: Whole
    table_rows_looked_at: Whole
    table_rows_met: Whole
    """Of those looked at, rows with a gradient."""
    graded: Whole
    """Values of all parameters that have gradients."""
    bf16_pushed: Whole
    bf16_stuck: Whole
    """Of sampled values with a gradient, those that an update did not change."""
    scheduler_first: Scalar


class UnclearedEvent(TypedDict, total=False):
    """Of one of several optimizers: all backwards between two updates began with gradients of
    before; once, at the third look in a row.
    """

    step: Annotated[Step, NEEDED]
    looks: Annotated[Whole, NEEDED]
    optimizer: Annotated[Line, NEEDED]
    """Its class."""
    backwards: Annotated[Whole, NEEDED]
    """Between the two updates."""


class RandomState(TypedDict, total=False):
    """Of torch's generator."""

    seed: Scalar
    state: Scalar


class Replica(TypedDict, total=False):
    """DDP: after updates 10, 11, 50, 51 ..."""

    update: Annotated[Whole, NEEDED]
    group: Scalar
    """Ranks that replicate."""
    parameters: Annotated[Scalar, NEEDED]
    """Checksum."""
    random: RandomState
    outside: Scalar
    """Checksum of what the optimizers update and no DDP module has."""
    outside_values: Whole
    outside_names: list[Line]
    """The first of them."""
    exchange: bool
    """Ranks have given each other tensors, as tensor parallelism does."""
    joins: bool
    """DDP is under ``Join``: ranks need not make equally many updates."""


class Tensors(TypedDict, total=False):
    """Live tensors; each time memory has grown by 48 MB or doubled its growth, at most 6, and up to
    3 times while there is more in Python's memory or on the C heap with each step.
    """

    step: Annotated[Step, NEEDED]
    memory_bytes: Annotated[Whole, NEEDED]
    anonymous_bytes: Annotated[Whole, NEEDED]
    tensors: Annotated[Whole, NEEDED]
    with_graph: Annotated[Whole, NEEDED]
    graph_kind: Line
    """What made most of them, and their shape."""
    chain_nodes: Whole
    """Of one tensor's graph that goes back to before the last count: nodes since then."""
    chain_steps: Whole
    """Steps since then."""
    chain_kept_as: Line
    """Name or key that this tensor is kept by."""
    chain_site: Line
    """The line that makes it from itself."""
    kept_in: Line
    """Name of the container that most of the tensors are in, where they are many."""
    kept_site: Line
    """The line that fills it."""


class AllocatorEvent(TypedDict, total=False):
    """CUDA's caching allocator, cumulative; every 2 s, later every 30 s."""

    step: Annotated[Step, NEEDED]
    device_allocs: Whole
    device_frees: Whole
    retries: Whole
    ooms: Whole
    inactive_split_bytes: Count
    empty_cache_calls: Whole
    empty_cache_ms: Amount
    empty_cache_site: Line


class Checkpoint(TypedDict, total=False):
    """A checkpoint was written."""

    duration_ms: Amount
    step: Step
    path: Line
    bytes: Count
    via: Line
    site: Line


class GarbagePause(TypedDict, total=False):
    """A garbage collection of over 10 ms."""

    duration_ms: Amount
    generation: Whole
    step: Step


class Raised(_Class, total=False):
    """An exception; for lack of device memory also where a process has not trained a step yet."""

    message: Text
    traceback: list[Text]
    site: Line
    phase: Line
    step: Step
    thread: Line
    """Name of the one that it ended; null: it ended the process."""
    module: Line
    """Whose forward was going on; only for lack of device memory."""
    module_class: Line
    memory: dict[str, Amount]
    """weights_bytes, gradients_bytes, optimizer_bytes, buffers_bytes, allocated_bytes,
    reserved_bytes, peak_allocated_bytes.
    """


class NonFinite(TypedDict, total=False):
    """A loss that is NaN or infinite; the first few."""

    step: Annotated[Step, NEEDED]
    value: Scalar
    unread: Whole


class BatchOrigin(TypedDict, total=False):
    """The batch of a step."""

    number: Whole
    """In the epoch, from 1."""
    finite: bool
    """Only where the batch is held: ``run --watch-numerics``."""
    rows: list[Whole]
    """Places in the batch whose values are not finite; the first few."""
    samples: list[Whole]
    """Indexes in the dataset, of these places or of the whole batch; the first few."""
    files: list[Line]


class NanOrigin(_Class, total=False):
    """Where values stopped being finite; the first few times."""

    step: Annotated[Step, NEEDED]
    direction: Annotated[Line, NEEDED]
    """``forward``, ``backward``, ``input``, ``weights`` (not finite before the forward), ``reduced``
    (the rank's own gradients were finite, their sum over the ranks was not) or ``gone`` (no longer
    to be told).
    """
    how: Line
    """``hooks`` in the layers, the ``graph`` of the loss, ``weights`` or ``gradients`` afterwards."""
    watched: bool
    """Whether each step was."""
    layer: Line
    """``loss`` where it lies after the model."""
    between: list[Line]
    """The layers with parameters before and after it, where the layer itself is not sure."""
    operation: Line
    value: Line
    dtype: Line
    limit: Real
    """The largest finite value of that type."""
    largest_input: Real
    """Absolute maximum of what the operation was given."""
    weight: Line
    bad_layers: Whole
    """Layers whose weights, or gradients, are not finite."""
    layers: Whole
    """Of so many."""
    course_steps: list[Step]
    """Sampled steps before."""
    course_largest: list[Real]
    """Absolute maximum of what the layer gave in them."""
    batch: BatchOrigin


class NanPlace(SiteFacts, total=False):
    """The line of the operation at which values stopped being finite, as the step after it showed."""

    step: Annotated[Step, NEEDED]
    """In which they did."""
    operation: Line


class NoGradientEvent(TypedDict, total=False):
    """One of several optimizers updates, and none of its parameters has a gradient; once, at the
    third look in a row.
    """

    step: Annotated[Step, NEEDED]
    looks: Annotated[Whole, NEEDED]
    optimizer: Annotated[Line, NEEDED]
    """Its class."""
    values: Annotated[Whole, NEEDED]
    names: list[Line]
    at: Line
    """The line of the step's first backward."""


class SpikeOrigin(TypedDict, total=False):
    """A loss jumped: the layer whose relative update had grown most; with ``run
    --watch-numerics``.
    """

    step: Annotated[Step, NEEDED]
    loss: Real
    layer: Annotated[Line, NEEDED]
    relative_update: Real
    """Norm of the change of its weights by that of its weights, sampled values."""
    usual_update: Real
    update_step: Step


class FrozenThread(TypedDict, total=False):
    """The stack of a thread."""

    name: Line
    training: bool
    frames: list[Text]
    """Innermost first."""
    rank: Rank


class CollectiveFacts(TypedDict, total=False):
    """A collective operation: the oldest that runs, else the last."""

    group: Scalar
    seq: Signed
    op: Line
    state: Line
    bytes: Amount


class Place(TypedDict, total=False):
    """A line of the user's that the training thread is in."""

    site: Line
    function: Line
    code: Line
    """Text of the line."""
    blocks: list[Line]
    """Branches and loops around it, the innermost last: ``205 for``, ``211 else``."""


_HandledClass = TypedDict("_HandledClass", {"class": Line}, total=False)


class Handled(_HandledClass, total=False):
    """An exception that is being handled."""

    message: Text
    site: Line


class StackDump(TypedDict, total=False):
    """The stacks of all threads, the training's first; on command."""

    reason: Text
    phase: Line
    step: Step
    threads: list[FrozenThread]
    collective: CollectiveFacts
    places: list[Place]
    """Of the training thread, innermost first."""
    handling: Handled
    """The exception whose handler the training thread is in."""
    root: Rank
    """Whom the collective that the training thread stands in takes from or gives to."""


class FlightEntry(TypedDict, total=False):
    """One entry of torch's flight recorder."""

    group: Scalar
    seq: Signed
    op: Line
    bytes: Amount
    shapes: Line
    """Of the first inputs: ``4x3 7``."""
    state: Line
    p2p: bool
    peer: Rank
    """Of a message, whom it is for or from."""
    site: Line
    """Line of the user's that called; in a hang."""
    created_ns: Count


class GroupFacts(TypedDict, total=False):
    """A process group."""

    name: Line
    description: Line
    """As given by the script, or ``mesh_tp`` for a dimension of a device mesh."""
    ranks: list[Rank]


class FlightRecorder(TypedDict, total=False):
    """The newest 200 entries, and messages between two ranks, in parts; on command."""

    part: Whole
    parts: Whole
    reason: Line
    entries: list[FlightEntry]
    groups: list[GroupFacts]
    """Those of this rank; in a hang."""


class DdpProgress(TypedDict, total=False):
    """At steps 16, 32, 64, ..."""

    step: Annotated[Step, NEEDED]
    iterations: Annotated[Whole, NEEDED]
    """Those with an all-reduce."""
    unused_parameter_bytes: Whole
    """Most seen."""


class LogEvent(TypedDict, total=False):
    """Values given to ``gputop.log``; at most 10 events a second."""

    step: Step
    values: dict[str, Union[Real, Scalar]]


class NamedPhase(TypedDict, total=False):
    """Time in ``gputop.phase``; cumulative, the last one counts."""

    name: Annotated[Line, NEEDED]
    phase: Line
    total_ns: Count
    count: Whole


class Flops(TypedDict, total=False):
    """Counted operations of one step of one rank, or why not; once with ``run --count-flops``."""

    step: Step
    flops: Amount
    samples: Whole
    tokens: Whole
    operators: Any
    error: Text


_LayerClass = TypedDict("_LayerClass", {"class": Line}, total=False)


class LayerRow(_LayerClass, total=False):
    """A module of the model, with what is its own."""

    path: Annotated[Line, NEEDED]
    """Names from the model down; wrappers' own names are left out."""
    parameter_bytes: Count
    """On this rank."""
    dtype: Line
    trainable: bool
    compiled: bool


class LayerTable(TypedDict, total=False):
    """The modules of the model, outermost first; before the first ``layers``, and where they
    changed.
    """

    first: Annotated[Count, NEEDED]
    """Index of the first row here: large models come in parts."""
    count: Count
    """Rows of the whole table."""
    rows: list[LayerRow]


class LayersEvent(TypedDict, total=False):
    """One step watched layer by layer. Columns of figures that are a layer's own, in the order of
    the table.
    """

    step: Step
    first: Annotated[Count, NEEDED]
    """Row of the table that the columns begin with."""
    forward_us: list[Amount]
    backward_us: list[Amount]
    calls: list[Count]
    activation_bytes: list[Count]
    """Of the calls' results, each storage once."""
    gradient_bytes: list[Count]
    optimizer_bytes: list[Count]
    dtypes: list[Line]
    """Of the first result."""
    flops: list[Amount]
    """Forward and backward; the last entry lies outside of modules. In an event of its own."""
    recomputed: list[Count]
    """Rows of layers that ran again in the backward."""
    clock: Line
    """``host`` or ``device``."""
    outside_forward_ms: Amount
    outside_backward_ms: Amount
    forward_ms: Amount
    """Of the phase, by the host's clock."""
    backward_ms: Amount
    hook_ms: Amount
    """Time of the hooks in both phases, which is no layer's."""
    graph_nodes: Count


class MemorySnapshotEvent(TypedDict, total=False):
    """A snapshot of CUDA's allocator was written, or why not."""

    step: Step
    reason: Line
    """``out of memory`` or ``asked``."""
    path: Line
    """In ``RUN/memory/``."""
    bytes: Count
    """Of the file."""
    recorded: bool
    """With what the allocator did before: ``run --memory-history``."""
    error: Line


class ProfileRow(TypedDict, total=False):
    """An operator in a profile."""

    op: Line
    calls: Count
    cpu_ms: Amount
    device_ms: Amount


class ProfileEvent(TypedDict, total=False):
    """A profile of a few steps, or why there is none; on command. Its steps carry ``F_AGENT``."""

    steps: Whole
    first_step: Step
    table: list[ProfileRow]
    trace_path: Line
    """In ``RUN/traces/``; steps are marked ``ProfilerStep#N``."""
    error: Line


class OwnCostEvent(TypedDict, total=False):
    """What gputop itself costs a step, every 2 s at first, every 10 s later."""

    rank: Annotated[Rank, NEEDED]
    step: Step
    method: Line
    """``windows``: steps with the hooks in against those without; ``clock``: the hooks'
    own time.
    """
    cost_us: Annotated[Real, NEEDED]
    """Microseconds of a step, in the mean over all steps."""
    low_us: Real
    high_us: Real
    """Ends of its 95 % interval."""
    step_us: Annotated[Amount, NEEDED]
    measured_steps: Whole
    counted_steps: Whole


class AgentError(TypedDict, total=False):
    """Something of the guest failed and was left out from then on."""

    where: Line
    message: Text
    disabled: bool


class Goodbye(TypedDict, total=False):
    """The process ends."""

    steps: Step
    dropped: Whole
    errors: Scalar
    reason: Line


class MovingEvent(TypedDict, total=False):
    """Every 2 s while no step ends but hooks are passed, or an evaluation, a checkpoint or a
    compilation gets on.

    The recorder takes it for progress and does not write it down.
    """

    phase: Line
    step: Step


class Startup(TypedDict, total=False):
    """A milestone before the first step: once where it begins, if that may take long, and once
    where it is reached; the later one of the same name and begin counts.
    """

    name: Annotated[Line, NEEDED]
    """``python``, ``import torch``, ``CUDA``, ``process group``, ``model`` (first parameter to
    last), ``weights``, ``torch.load``, ``first batch``, ``first forward``.
    """
    began_ns: Annotated[Time, NEEDED]
    ended_ns: Time
    """Null while it is under way."""
    site: Line
    """The user's line."""


EVENTS: dict[str, Any] = {
    "startup": Startup,
    "hello": Hello,
    "hello_update": HelloUpdate,
    "stacks": Stacks,
    "loader": LoaderLooks,
    "padding": PaddingEvent,
    "repeats": RepeatsEvent,
    "paging": Paging,
    "placement": Placement,
    "compile": Compilation,
    "threads": BusyThreads,
    "checkup": CheckupEvent,
    "uncleared": UnclearedEvent,
    "replica": Replica,
    "tensors": Tensors,
    "allocator": AllocatorEvent,
    "checkpoint": Checkpoint,
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
