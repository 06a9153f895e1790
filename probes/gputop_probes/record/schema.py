"""What the JSON of a record holds: types of every field of an event, of ``run.json`` and of ``host.json``.

Analysis reads nothing that has not passed through here, so it never meets a wrong type. Standard library only.
"""

from __future__ import annotations

from typing import Any

from gputop_probes.record import layout
from gputop_probes.record.fields import (
    DROP,
    KINDS,
    Check,
    Tally,
    amount,
    anything,
    between,
    count,
    exactly,
    flag,
    line,
    many,
    mapping,
    named,
    one_of,
    record,
    scalar,
)
from gputop_probes.record.files import MAX_RANK

EARLIEST_NS, LATEST_NS = 946_684_800 * 10**9, 4_102_444_800 * 10**9
"""Years 2000 to 2100: what lies outside is no time of a run."""
_TIME = between(EARLIEST_NS, LATEST_NS)
_RANK = between(0, MAX_RANK)
_PID = between(-1, 2**31)
_COUNTED = between(0, 2**40)
_SIGNED = between(-(2**40), 2**40)
_STEP = between(-1, 2**32)


def _rows(words: str, needs: tuple[str, ...] = ()) -> Check:
    return many(record(named(words), needs))


_SITE = "site:line function:line caller:line"
_COLLECTIVE = record({**named("op:line bytes:amount state:line"), "seq": _SIGNED})
_THREADS_SEEN = _rows(f"name:line cpu_share:amount {_SITE} age_s:amount")
_FROZEN = many(record({**named("name:line training:flag frames:texts"), "rank": _RANK}))
_STANDING = many(record({**named("state:line wchan:line path:line mount:line"), "rank": _RANK, "pid": _PID}, ("rank",)))
_ENTRY = record({**named("group:scalar op:line bytes:amount state:line p2p:flag created_ns:count"), "seq": _SIGNED})
_PROFILE_ROW = record(named("op:line calls:count cpu_ms:amount device_ms:amount"))
_MEMORY = mapping(amount)

_SIZES = "hidden_size layers heads kv_heads head_dim vocab_size ffn_size max_sequence experts experts_per_token"
_CONFIG = {
    **dict.fromkeys(_SIZES.split(), _COUNTED),
    **named("tied_embeddings:flag attention:line model_type:line name:line"),
}
_LORA = record({**named("targets:lines dtype:line dropout:amount"), "rank": _COUNTED}, ("rank",))
_MODEL = record(
    {
        **named("class:line parameters:count trainable:count by_dtype:counts trainable_by_dtype:counts"),
        **named("buffer_bytes:count modules:counts roots:lines sharded:flag gradient_checkpointing:flag"),
        **named("truncated:flag"),
        "config": record(_CONFIG),
        "lora": _LORA,
    }
)
_OPTIMIZER = record(
    {
        **named("class:line module:line groups:count parameters:count tensors:count lr:real betas:numbers"),
        **named("others:lines fused:scalar foreach:scalar"),
        "state": mapping(scalar),
    }
)
_LOADER = {
    "batch_size": _COUNTED,
    "num_workers": _COUNTED,
    "prefetch_factor": _COUNTED,
    "dataset_length": _COUNTED,
    "length": _COUNTED,
    **named("class:line pin_memory:flag persistent_workers:flag drop_last:flag timeout_s:num start_method:line"),
    **named("dataset:line iterable:flag sampler:line collate_fn:line site:line"),
}
_FSDP = record(
    {
        **named("version:count units:count sharding:line backward_prefetch:line cpu_offload:flag"),
        **named("reshard_after_forward:flag mixed_precision:scalars"),
    }
)
_DEEPSPEED = record(
    {
        **named("offload_optimizer:flag offload_param:flag accumulation:scalar micro_batch:scalar"),
        "zero_stage": between(0, 3),
    }
)
_PIPELINE = record(
    {
        **named("schedule:line here:ints"),
        "ranks": _COUNTED,
        "stages": _COUNTED,
        "micro_batches": _COUNTED,
    }
)
_DDP = {
    **named("backend:line find_unused_parameters:flag static_graph:flag gradient_as_bucket_view:flag"),
    **named("broadcast_buffers:flag sync_batch_norm:flag"),
    "bucket_bytes": many(_COUNTED),
    "bucket_cap_bytes": _SIGNED,
    "unused_parameter_bytes": _COUNTED,
    "parameter_bytes": _COUNTED,
    "parameter_tensors": _COUNTED,
    "comm_hook": scalar,
}
_PARALLEL = record(
    {
        "backend": line,
        "ddp": one_of(flag, record(_DDP)),
        "fsdp": one_of(flag, _FSDP),
        "deepspeed": one_of(flag, _DEEPSPEED),
        "pipeline": one_of(flag, _PIPELINE),
        "mesh": record({"names": KINDS["lines"], "shape": many(_COUNTED)}),
        "data_parallel": one_of(flag, count),
    }
)
_HELLO = {
    **named("executable:line python:line torch:line cuda_version:line hip_version:line launcher:line argv:lines"),
    **named("libraries:scalars env:scalars device:line device_name:line device_uuid:line device_capability:line"),
    **named("allocator:line flags:scalars debug:scalars create_graph:flag checkpointing:flag"),
    "tid": _PID,
    "ppid": _PID,
    "local_rank": _RANK,
    "world_size": between(0, 2**24),
    "device_index": between(-1, 4096),
    "device_memory_bytes": between(0, 2**50),
    "model": _MODEL,
    "optimizer": _OPTIMIZER,
    "amp": record(named("autocast:flag dtype:line grad_scaler:flag")),
    "compile": record(
        {
            "used": flag,
            "graphs": _COUNTED,
            "graph_breaks": _COUNTED,
            "recompiles": _COUNTED,
            "breaks": _rows("site:line function:line reason:text"),
        }
    ),
    "shapes": record({"batches": _COUNTED, "distinct": _COUNTED, "examples": many(many(_COUNTED))}),
    "parallel": _PARALLEL,
    "dataloader": record(_LOADER),
    "batch": record({"shapes": mapping(many(_COUNTED)), "dtypes": mapping(line), "pinned": flag}),
    "threads": record({"torch": _COUNTED, "interop": _COUNTED}),
    "limits": record({"open_files": _COUNTED}),
    "affinity": record({"allowed_cpus": scalar, "device_cpus": scalar}),
    "clip": record(named("max_norm:real")),
    "graph_eval": record({"forwards": _COUNTED, "ms": amount}),
    "dryrun": record({"steps": _COUNTED, "layers": _COUNTED, "of": _COUNTED}),
    "total_steps": _COUNTED,
}
_EPOCH_START = record({"step": _STEP, "end_ms": amount, "start_ms": amount, "first_ms": amount})

_EVENTS: dict[str, tuple[dict[str, Check], tuple[str, ...]]] = {
    "hello": (_HELLO, ("rank",)),
    "hello_update": (_HELLO, ("rank",)),
    "stacks": (
        {
            **named("phase:line period_ms:amount"),
            "total": _COUNTED,
            "samples": many(record({**named(f"{_SITE} inside:text code:text"), "count": _COUNTED})),
        },
        (),
    ),
    "loader": (
        {
            **_LOADER,
            **dict.fromkeys(("looks", "empty", "fetching", "behind", "unpacking", "epochs"), _COUNTED),
            **named("starts_ms:amount firsts_ms:amount"),
            "states": mapping(_COUNTED),
            "waited_for": many(record({"worker": _COUNTED, "looks": _COUNTED}, ("worker", "looks"))),
            "epoch_starts": many(_EPOCH_START),
        },
        (),
    ),
    "padding": (dict.fromkeys(("batches", "places", "tokens"), _COUNTED), ()),
    "paging": ({"period_ms": amount, "faults": _COUNTED, "system_ms": amount}, ()),
    "placement": ({"looks": _COUNTED, "near": _COUNTED}, ()),
    "compile": (
        {
            **named("duration_ms:amount function:line site:line reason:text"),
            **dict.fromkeys(("graphs", "graph_breaks", "recompiles"), _COUNTED),
        },
        (),
    ),
    "threads": ({"period_ms": amount, "threads": _THREADS_SEEN}, ()),
    "checkup": (
        {
            **named("stale:scalar without_gradient_names:lines lr_max:real scheduler_first:scalar"),
            **dict.fromkeys(("alike", "parameter_bytes", "held_bytes", "trainable", "without_gradient"), _COUNTED),
            **dict.fromkeys(("gradients_looked_at", "gradients_not_zero"), _COUNTED),
            "bf16_pushed": _COUNTED,
            "bf16_stuck": _COUNTED,
        },
        ("step", "alike"),
    ),
    "replica": (
        {
            "update": _COUNTED,
            "group": scalar,
            "parameters": scalar,
            "random": record({"seed": scalar, "state": scalar}),
        },
        ("update", "parameters"),
    ),
    "tensors": (
        dict.fromkeys(("memory_bytes", "anonymous_bytes", "tensors", "with_graph"), _COUNTED),
        ("step", "memory_bytes", "anonymous_bytes", "tensors", "with_graph"),
    ),
    "allocator": (
        {
            **dict.fromkeys(("device_allocs", "device_frees", "retries", "ooms", "empty_cache_calls"), _COUNTED),
            **named("inactive_split_bytes:count empty_cache_ms:amount empty_cache_site:line"),
        },
        ("step",),
    ),
    "checkpoint": (named("duration_ms:amount path:line bytes:count via:line"), ()),
    "gc": ({"duration_ms": amount, "generation": _COUNTED}, ()),
    "exception": (
        {
            **named("class:line message:text traceback:texts site:line phase:line module:line module_class:line"),
            "memory": _MEMORY,
            "thread": line,
        },
        (),
    ),
    "moving": ({"phase": line}, ()),
    "neighbours": ({"processes": many(record({**named("name:line cores:amount"), "pid": _PID}))}, ()),
    "nonfinite": ({"value": scalar, "unread": _COUNTED}, ("step",)),
    "stack_dump": ({**named("reason:text phase:line"), "threads": _FROZEN, "collective": _COLLECTIVE}, ()),
    "flight_recorder": ({"part": _COUNTED, "parts": _COUNTED, "reason": line, "entries": many(_ENTRY)}, ()),
    "ddp": (_DDP, ()),
    "ddp_progress": ({"iterations": _COUNTED, "unused_parameter_bytes": _COUNTED}, ("step", "iterations")),
    "log": ({"values": mapping(one_of(KINDS["real"], scalar))}, ()),
    "named_phase": ({**named("name:line phase:line"), "total_ns": count, "count": _COUNTED}, ("name",)),
    "flops": (
        {**named("flops:amount error:text"), "samples": _COUNTED, "tokens": _COUNTED, "operators": anything},
        (),
    ),
    "profile": (
        {"steps": _COUNTED, "first_step": _STEP, "table": many(_PROFILE_ROW), "trace_path": line, "error": line},
        (),
    ),
    "agent_error": (named("where:line message:text disabled:flag"), ()),
    "goodbye": ({"steps": _STEP, "dropped": _COUNTED, "errors": scalar, "reason": line}, ()),
    "run_start": ({"command": KINDS["lines"]}, ()),
    "run_end": ({"exit_code": _SIGNED, "signal": _SIGNED, "duration_s": amount, "oom_kills": _COUNTED}, ()),
    "rank_start": ({"record_index": _COUNTED, "attempt": _COUNTED}, ("rank",)),
    "rank_lost": ({"reason": line}, ("rank",)),
    "no_agent": ({"reason": line}, ()),
    "hang_suspected": (
        {"ranks": many(_RANK), "silent_s": amount, "limit_s": amount, "threads": _STANDING},
        (),
    ),
    "hang_over": ({"ranks": many(_RANK), "reason": line}, ()),
    "interrupt": ({"signal": scalar, "by": line, "pids": many(_PID)}, ()),
    "orphans": ({"pids": many(_PID)}, ()),
    "recorder_start": ({"adopted": flag}, ()),
    "xid": ({"gpu": between(-1, 4096), "code": between(0, 10_000)}, ("gpu", "code")),
}
_SHARED: dict[str, Check] = {"t_ns": _TIME, "type": line, "rank": _RANK, "pid": _PID, "host": line, "step": _STEP}
_CHECKS = {kind: record({**_SHARED, **fields}, ("t_ns", "type", *needs)) for kind, (fields, needs) in _EVENTS.items()}
KNOWN = frozenset(_EVENTS)
"""Types of events that this version knows."""
_UNKNOWN = record(_SHARED, ("t_ns", "type"))


def event(value: dict[str, Any], tally: Tally) -> dict[str, Any] | None:
    """An event with known fields of the right types; None for one that may not stay."""
    kind = value.get("type")
    check = _CHECKS.get(kind, _UNKNOWN) if isinstance(kind, str) else _UNKNOWN
    found = check(value, tally)
    return None if found is DROP else found


_COLUMNS = many(many(line, 2), 1_000)
_MANIFEST = record(
    {
        **named("gputop_version:line run_id:line name:line cwd:line recording:line"),
        "format": exactly(layout.FORMAT),
        "version": between(0, 10**6),
        "command": KINDS["lines"],
        "created_ns": _TIME,
        "tables": mapping(_COLUMNS),
    }
)
_GPU = record(
    {
        **named("name:line uuid:line ours:flag"),
        "index": between(0, 4096),
        "memory_total_bytes": between(-1, 2**50),
    },
    ("index",),
)
_CONTEXT = record(
    {
        **named("command:lines cwd:line container:line"),
        **{name: mapping(scalar) for name in ("git", "slurm", "kubernetes", "ray", "environment")},
        "host": record({**named("kernel:line machine:line cpu_model:line"), "cpu_count_machine": between(0, 2**20)}),
    }
)
_STATE = record(
    {
        **named(
            "host:line socket:line boot_id:line gpu_note:text output_note:text run_id:line transport:line pty:flag"
        ),
        "state": exactly("starting", "running", "ended", "lost"),
        **dict.fromkeys(("recorder_pid", "command_pid", "command_pgid"), _PID),
        "started_ns": one_of(_TIME, between(0, 0)),
        "ended_ns": _TIME,
        "exit_code": between(-256, 256),
        "signal": between(0, 128),
        "clock_offset_ns": between(-LATEST_NS, LATEST_NS),
        "command_start_ticks": count,
        "cpu_count": between(0, 2**20),
        "memory_total_bytes": between(-1, 2**50),
        "gpus": many(_GPU),
        "context": _CONTEXT,
        "dropped_records": _COUNTED,
        "write_errors": _COUNTED,
        "hang_s": amount,
        "output_losses": record(dict.fromkeys(("missing", "given_up", "not_passed_on"), count)),
    }
)


def manifest(value: dict[str, Any], tally: Tally) -> dict[str, Any]:
    """``run.json`` with known fields of the right types."""
    found = _MANIFEST(value, tally)
    return {} if found is DROP else found


def host_state(value: dict[str, Any], tally: Tally) -> dict[str, Any]:
    """``host.json`` with known fields of the right types."""
    found = _STATE(value, tally)
    return {} if found is DROP else found
