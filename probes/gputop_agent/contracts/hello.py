"""What hello says: the settings of a run, of its model, optimizer, loader and ranks."""

from typing import Annotated, TypedDict, Union

from gputop_agent.contracts.kinds import (
    NEEDED,
    Amount,
    Count,
    Line,
    Number,
    OfClass,
    Pid,
    Range,
    Rank,
    Real,
    Scalar,
    Signed,
    Text,
    Whole,
)


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


class Model(OfClass, total=False):
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


class Optimizer(OfClass, total=False):
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
    scheduler_returns: list[Line]
    """Where a function of the user's returns the scheduler's factor."""


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
    reduce_bucket_size: Whole
    """Values."""
    overlap_comm: bool


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


class LoaderFacts(OfClass, total=False):
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
    sampler_at: Line
    """The only line of the user's that makes one which shares the data out."""
    own_sampler_at: Line
    """The only line that makes the sampler, where that is of the user's own class."""
    sampler_rank: Whole
    """The rank to which it shares the data out."""
    dice_at: Line
    """Of several ranks: the first line of the dataset's class that makes or seeds a generator of
    random numbers.
    """
    looped_at: Line
    """The first loop in the ``__iter__`` of an IterableDataset of the user's."""
    rank_asked_at: Line
    """Of several ranks: where the script asks the environment for a rank that is not set, and takes
    another number.
    """
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
    acts: bool
    """gymnasium is loaded, a line steps a world (``seen, reward, over = world.step(action)``), or a
    network is trained on texts that it draws.
    """
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
    create_graph_by_backward: bool
    """By ``backward()``, and not ``autograd.grad()`` alone."""
    create_graph_at: Line
    """The only line that asks for it."""
    meta_gradients: bool
    """``create_graph`` with respect to weights: what an update would have changed is learnt."""
    inner_gradients: bool
    """Gradients of weights without ``create_graph`` that use their graph up, as the inner update of
    first-order MAML.
    """
    derivatives: bool
    """Several gradients with ``create_graph`` before one backward: the loss is made of them, as
    that of a differential equation.
    """
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
