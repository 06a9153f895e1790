"""A trial of a training: ends it after a few steps, with the model cut to a few layers where that
is asked for.

Asked for by ``gputop dryrun`` through the environment; without that, nothing here runs.
"""

import os
from typing import Any

from gputop_agent import wire
from gputop_agent.runtime import finder, guard
from gputop_agent.runtime.session import session

_COUNTS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_decoder_layers")
_PER_LAYER = ("layer_types", "mlp_layer_types", "block_types")  # a word for each layer


class LayerCut:
    """What was asked for, and the deepest model that it was done to."""

    layers = 0
    whole = 0


def steps_wanted():
    """After how many steps the training is to end; 0: this is no trial."""
    return _number(wire.ENV_DRYRUN_STEPS)


def wants(error):
    """Whether an exception is told before training: in a trial the first step may not come."""
    return (
        bool(steps_wanted())
        and type(error).__name__ not in wire.LAUNCHERS_ERRORS
        and isinstance(error, Exception)
    )


def install(_torch):
    """Wait for transformers if models are to be cut."""
    LayerCut.layers = _number(wire.ENV_DRYRUN_LAYERS)
    if LayerCut.layers:
        finder.after_import("transformers.modeling_utils", _cut_models)


def request_if_wanted():
    """Listen for steps. Called once, with the hello."""
    if steps_wanted() and _end_when_done not in session.step_listeners:
        session.step_listeners.append(_end_when_done)


def describe():
    """The ``dryrun`` entry of the hello."""
    if not steps_wanted():
        return {}
    return {
        "dryrun": {
            "steps": steps_wanted(),
            "layers": LayerCut.layers or None,
            "of": LayerCut.whole or None,
        }
    }


def _end_when_done(step, *_):
    """The training thread leaves at the boundary of a step: every rank at the same one, with
    nothing under way.

    SystemExit passes `except Exception`, runs the script's `finally` and its exit handlers, and
    saves nothing.
    """
    if step + 1 >= steps_wanted():
        session.step = step + 1
        raise SystemExit(0)


def _cut_models(module):
    """Every model of transformers is made from a configuration that its base class gets first."""
    model_class: Any = module.PreTrainedModel
    original = model_class.__init__

    def __init__(self, config, *args, **kwargs):
        guard.safely(_cut, config)
        original(self, config, *args, **kwargs)

    guard.patch(model_class, "__init__", guard.dress(__init__, original))


def _cut(config):
    for name in _COUNTS:
        count = getattr(config, name, None)
        if isinstance(count, int) and count > LayerCut.layers:
            setattr(config, name, LayerCut.layers)
            LayerCut.whole = max(LayerCut.whole, count)
    for name in _PER_LAYER:
        kinds = getattr(config, name, None)
        if isinstance(kinds, (list, tuple)) and len(kinds) > LayerCut.layers:
            setattr(config, name, kinds[: LayerCut.layers])


def _number(name):
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else 0
