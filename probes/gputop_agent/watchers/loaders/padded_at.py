"""Where the batches of the training's loader are filled up to one length."""

import inspect
import re

from gputop_agent.runtime import source
from gputop_agent.watchers.loaders import batch_origin
from gputop_agent.watchers.looks import used_at

_FILLS = re.compile(r"^(?!\s*(?:async )?def\b).*(?:pad|fill|full|zeros|max_length)", re.IGNORECASE)
_FILLS_FOR_TRANSFORMERS = r"pad_to_multiple_of *=|padding *= *[\"']max_length"
_LEAVES_OUT = r"pack_padded_sequence|nested_tensor|cu_seqlens|varlen|flex_attention"


def fields():
    """``{"padded_at": "data.py:31"}``: the first line of the user's ``collate_fn`` that fills rows
    up, else of a setting of transformers' that does; and ``{"left_out": True}`` where the script
    has calls that leave filling out of their work.
    """
    line = _of_collator() or source.place_matching(_FILLS_FOR_TRANSFORMERS)
    padding = {"padded_at": line, "left_out": source.has(_LEAVES_OUT)}
    return {name: value for name, value in padding.items() if value}


def _of_collator():
    iterator, _, _ = batch_origin.current()
    collate = vars(iterator).get("_collate_fn") if iterator is not None else None
    if collate is None:
        return None
    function = inspect.unwrap(collate)
    if not inspect.isroutine(function):
        function = getattr(type(collate), "__call__", None)
    return used_at.line_in_function(function, _FILLS)
