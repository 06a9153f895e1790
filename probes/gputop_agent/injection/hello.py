"""Says what the run is: once after the first step, and what becomes known later as updates."""

import os
import sys
from typing import Any

from gputop_agent.description import (
    describe_model,
    describe_optimizer,
    describe_parallel,
    describe_process,
    dice,
    horizon,
    rank_names,
)
from gputop_agent.runtime import guard, shapes, source, transport
from gputop_agent.runtime.living import alive
from gputop_agent.runtime.session import session
from gputop_agent.timing import batch, device, flop_count
from gputop_agent.timing.step_state import open_step
from gputop_agent.watchers import dryrun, tracers
from gputop_agent.watchers.layers import layers
from gputop_agent.watchers.loaders import batch_origin
from gputop_agent.watchers.looks import built_places
from gputop_agent.watchers.nan import numerics

on_said: Any = []  # called once the hello is out
_EARLY_S = 60.0  # for the first minute look for news every second, then every ten
LEAST_FORWARDS = 30
_SEEN = {
    "create_graph_by_backward": "graph_by_backward_seen",
    "meta_gradients": "meta_gradients_seen",
    "inner_gradients": "inner_gradients_seen",
    "derivatives": "derivatives_seen",
    "acts": "trains_on_drawn",
}
"""Fields that are true from when something was seen, and the attribute of the session for it."""

_sent: "dict[str, Any]" = {}  # the fields that the recorder knows


class _Updates:
    """When the run was looked at for news, and how many roots it had."""

    def __init__(self):
        self.first_s = None
        self.next_s = 0.0
        self.n_roots = 0


_updates = _Updates()


def on_first_step():
    """Describe the run, say hello, start the agent's thread. On the training thread."""
    guard.safely(tracers.look_again)
    fields = describe()
    _sent.clear()
    _sent.update(fields)
    send_again()
    flop_count.request_if_wanted()
    dryrun.request_if_wanted()
    layers.request_if_wanted()
    numerics.request_if_wanted()
    for listener in on_said:
        listener()


def send_again():
    """Send the hello with all that is known, as after a reconnect; needs no training thread."""
    if not session.connected or not _sent:
        return
    transport.send_event("hello", **_sent)
    session.hello_sent = session.connected


def describe():
    """Every field of the hello. What cannot be described is left out, the rest told."""
    torch = session.torch or sys.modules["torch"]
    session.cuda = session.cuda or torch.cuda.is_initialized()
    roots = alive(session.roots)
    parameter = describe_model.first_parameter(roots)
    if parameter is None:
        parameter = _first_optimizer_parameter()
    fields: "dict[str, Any]" = {"tid": session.native_tid}
    for part in (
        lambda: describe_process.describe_interpreter(torch),
        lambda: describe_process.describe_device(torch, parameter, session.cuda),
        lambda: {"launcher": describe_process.describe_launcher(os.environ)},
        lambda: {"env": describe_process.describe_environment(os.environ)},
        lambda: {"flags": describe_process.describe_flags(torch)},
        _ranks,
        lambda: {"model": _model(roots)},
        lambda: {"parallel": describe_parallel.describe_parallel(roots, alive(session.ddp))},
        _total_steps,
        dryrun.describe,
        _late_fields,
    ):
        fields.update(guard.attempt(part) or {})
    if session.cuda and fields.get("device") == "cuda":
        guard.attempt(lambda: device.activate(torch, fields["device_index"]))
    return fields


def send_updates(now_s):
    """Send what has changed since the hello; called by the agent's thread once a second."""
    if _updates.first_s is None:
        _updates.first_s = now_s
    if now_s < _updates.next_s or not session.hello_sent:
        return
    if now_s - _updates.first_s < _EARLY_S:
        _updates.next_s = now_s
    else:
        _updates.next_s = now_s + 10.0
    fields = guard.attempt(_late_fields) or {}
    if len(session.roots) != _updates.n_roots or (_sent.get("model") or {}).get("truncated"):
        model = guard.attempt(lambda: _model(alive(session.roots), describe_model.PATIENT_NS))
        if model is not None:
            fields["model"] = model
    _send_news(fields)


def _send_news(fields):
    news = {
        name: value for name, value in fields.items() if value is not None and _is_news(name, value)
    }
    if news:
        _sent.update(news)
        transport.send_event("hello_update", **news)


def send_last():
    """At the end: what was counted since the last look, and what a short run did not tell."""
    if session.hello_sent:
        _send_news(guard.attempt(_late_fields) or {})


def _graph_eval():
    """Evaluation forwards that built a graph which no backward used."""
    fields: "dict[str, Any]" = {
        "forwards": open_step.graph_evals,
        "ms": round(open_step.graph_eval_ns / 1e6, 1),
    }
    if open_step.graph_eval_site:
        fields["site"] = open_step.graph_eval_site
    return fields


def _is_news(name, value):
    """Whether it says anything new; a learning rate moves, and each step record has it."""
    if name == "optimizer":
        return _without_lr(_sent.get(name)) != _without_lr(value)
    return _sent.get(name) != value


def _without_lr(optimizer):
    return {**(optimizer or {}), "lr": None}


@session.after_fork
def reset():
    """Forget what the parent said (called in a fork's child)."""
    _sent.clear()
    _updates.__init__()


def _optimizer(optimizers):
    """Its description, and the lines where it and its scheduler were made."""
    description = describe_optimizer.describe_optimizer(optimizers)
    if description:
        main = describe_optimizer.unwrap(optimizers[0])
        sites = {
            "site": built_places.of_optimizer(main),
            "scheduler": built_places.of_scheduler(main),
            "scheduler_returns": built_places.returns_of_schedule(main),
        }
        description.update({name: site for name, site in sites.items() if site})
    return description


def _late_fields():
    """What often becomes known only after the first step; cheap, and free of CUDA calls."""
    loader = _loader()
    optimizers = alive(session.optimizers.values())
    fields = {
        "optimizer": _optimizer(optimizers),
        "amp": describe_optimizer.describe_amp(session.autocast_seen, session.scaler_seen),
        "compile": guard.attempt(_compile) or {"used": bool(session.compile_seen)},
        "limits": describe_process.describe_limits(),
        "checkpointing": bool(session.checkpointing_seen)
        or bool((_sent.get("model") or {}).get("gradient_checkpointing")),
    }
    if shapes.description():
        fields["shapes"] = shapes.description()
    if session.debug:
        fields["debug"] = dict(session.debug)
    if 2 * session.soft_forwards > session.forwards_for_gradients > LEAST_FORWARDS:
        fields["network_beside"] = True
    if session.create_graph_seen:
        fields["create_graph"] = True
        fields["create_graph_at"] = source.place_matching(r"create_graph *= *True")
    fields.update({name: True for name, seen in _SEEN.items() if getattr(session, seen)})
    if session.clip_max_norm is not None:
        fields["clip"] = {"max_norm": describe_optimizer.number(session.clip_max_norm)}
        if session.clip_site:
            fields["clip"]["site"] = session.clip_site
    if open_step.graph_evals:
        fields["graph_eval"] = _graph_eval()
    if loader is not None:
        fields["dataloader"] = _in_use(loader)
    if batch.facts.description is not None:
        fields["batch"] = batch.facts.description
    if session.total_steps is not None:
        fields["total_steps"] = session.total_steps
    return fields


def _compile():
    from gputop_agent.hooks import dynamo

    return dynamo.describe()


def _in_use(loader):
    """A loader's description, and what is known of it since it feeds the training."""
    fields = dict(loader, loop=batch.facts.site, inside=list(batch.facts.inside))
    if session.world_size > 1:
        fields["dice_at"] = guard.attempt(_dice)
        fields["rank_asked_at"] = guard.attempt(rank_names.asked_in_vain_at)
    return fields


def _dice():
    iterator, _, _ = batch_origin.current()
    return dice.rolled_at(vars(iterator).get("_dataset")) if iterator is not None else None


def _loader():
    """The DataLoader that feeds training: that of the first fetch not for evaluation."""
    if "dataloader" not in _sent and not open_step.evaluated:
        return open_step.loader
    return None


def _model(roots, budget_ns=describe_model.BUDGET_NS):
    _updates.n_roots = len(session.roots)
    return describe_model.describe_model(roots, budget_ns)


def _ranks():
    rank_and_world = describe_parallel.rank_and_world()
    if rank_and_world is not None:
        session.rank, session.world_size = rank_and_world
    local = os.environ.get("LOCAL_RANK", "")
    return {
        "rank": session.rank,
        "world_size": session.world_size,
        "local_rank": int(local) if local.isdigit() else 0,
    }


def _total_steps():
    if session.total_steps is None:
        session.total_steps = horizon.total_steps()
    return {"total_steps": session.total_steps}


def _first_optimizer_parameter():
    for optimizer in alive(session.optimizers.values()):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                return parameter
    return None
