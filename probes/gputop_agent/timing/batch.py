"""Size of a batch: samples, tokens, shapes, fingerprint. Runs no user code, copies nothing."""

import sys
import zlib
from collections import UserDict
from typing import Any

from gputop_agent.runtime import frames, interrupts, modes, shapes
from gputop_agent.runtime.session import session
from gputop_agent.timing import padding

_MAX_DEPTH = 4
_MAX_ITEMS = 64
_TOKEN_NAMES = ("input_ids", "tokens", "token_ids", "decoder_input_ids")
_TEXTS_NAMES = "_input_ids"  # end of them: sentences of a pair, a chosen and a rejected answer
_LEAST_LENGTH = 8  # of a row without such a name
_PICTURES = 4  # dimensions: sample, channel, height, width
_TOKEN_DTYPES = ("torch.int64", "torch.int32")
_CRC_BYTES = 4096
_CRC_PERIOD = 50
# the first batches are all fingerprinted, so that equal data on two ranks shows early
_CRC_FIRST = 8
# so many batches are looked at for padding more often, as a phase of a short run may be
_PADDING_PERIOD, _PADDING_MANY = 16, 800
_SUMMED = ("places", "tokens", "kept")

# type of a batch -> (path to what counts samples, paths to the tensors that count tokens, dimension
# of the samples; None: that is a list with an entry for each)
_plans = {}


class BatchFacts:
    """What was noticed of the batches so far."""

    def __init__(self):
        self.count = 0
        self.crc = 0
        # {"shapes", "dtypes"} of the first batch seen, for the hello
        self.description: "dict[str, Any] | None" = None
        self.site: "str | None" = None  # the line of user code that fetched it
        self.inside: Any = ()  # packages between that line and the fetch
        self.padding: "list[padding.Counted]" = []  # of batches that have any
        self.last: Any = (-1, 0)  # index and fingerprint of the batch that was looked at last
        self.repeats = [0, 0, 0]  # batches right after one looked at, as it, and others than it


facts = BatchFacts()


@modes.unseen
def count(batch):
    """Size of one micro-batch.

    Called at every training fetch or, without a DataLoader, with the first argument of the forward:
    the paths to what counts are found once per batch type and only walked afterwards.

    Returns:
        ``(samples, tokens)``: see ``_sample_path``, and the number of elements of the token ids (0
        if the batch has none); ``(0, 0)`` for a batch without tensors.
    """
    index = facts.count
    facts.count = index + 1
    if index % _CRC_PERIOD == 0 or index < _CRC_FIRST:
        _look_closely(batch)
        _compare(index, facts.crc)
    elif index % _CRC_PERIOD == 1:
        _compare(index, _fingerprint_of(batch))
    elif index % _PADDING_PERIOD == 0 and index < _PADDING_MANY:
        _look_at_padding(batch)
    plan = _plans.get(type(batch))
    if plan is not None:
        try:
            sample_path, token_paths, axis = plan
            if sample_path is None:
                return 0, 0
            value = batch
            for get, key in sample_path:
                value = get(value, key)
            if axis is None:
                return _entries(value), 0
            shape = value.shape
            if index % shapes.PERIOD < shapes.WINDOW:
                shapes.note(index, shape)
            if shape != shapes.window.last:
                shapes.changed(index, shape, axis)
            return shape[axis], _tokens(batch, token_paths) if token_paths else 0
        except Exception:  # another structure under the same type
            interrupts.pass_on()
    try:
        sample_path, token_paths, axis = _make_plan(batch)
        samples = 0
        if sample_path is not None:
            value = _walk(batch, sample_path)
            samples = _entries(value) if axis is None else value.shape[axis]
        return samples, _tokens(batch, token_paths)
    except Exception:  # a tensor subclass without a plain shape
        interrupts.pass_on()
        _plans[type(batch)] = (None, (), 0)
        return 0, 0


def take_crc():
    """Fingerprint of the last batch that was sampled since the previous call; 0 if none was."""
    value, facts.crc = facts.crc, 0
    return value


def take_padding():
    """``{"batches", "places", "tokens", "kept"}`` of the batches looked at since the previous call,
    ``"filling"`` where no mask told, and ``"beside"``, values of other inputs, where there are any;
    None if none told anything.
    """
    batches, facts.padding = facts.padding, []
    if not batches:
        return None
    sums = {name: sum(getattr(batch, name) for batch in batches) for name in _SUMMED}
    padding: Any = dict(sums, batches=len(batches))
    fillings = [batch.filling for batch in batches if batch.filling is not None]
    if fillings:
        padding["filling"] = str(fillings[-1])
    beside = sum(batch.beside for batch in batches)
    if beside:
        padding["beside"] = beside
    return padding


def take_repeats():
    """``{"batches", "same", "changed"}``: batches that were compared with the one right before
    them, those that were the same, and looks that saw another batch than the look before; None
    where there were none.
    """
    repeats, facts.repeats = facts.repeats, [0, 0, 0]
    if repeats[0]:
        return dict(zip(("batches", "same", "changed"), repeats))
    return None


@session.after_fork
def reset():
    """Forget the counting of the parent process (called in a fork's child)."""
    facts.__init__()
    shapes.reset()


def describe(batch):
    """``{"shapes": {name: [sizes]}, "dtypes": {name: "int64"}}`` of a batch's first 16 tensors."""
    shapes, dtypes = {}, {}
    for path, tensor in list(_tensors(batch, (), 0))[:16]:
        name = ".".join(str(key) for _, key in path) or "0"
        shapes[name] = [int(size) for size in tensor.shape]
        dtypes[name] = str(tensor.dtype).replace("torch.", "")
    return {"shapes": shapes, "dtypes": dtypes}


def _walk(value, path):
    for get, key in path:
        value = get(value, key)
    return value


def _make_plan(batch):
    tensors = list(_tensors(batch, (), 0))
    sample_path, axis = _sample_path(batch, tensors)
    token_paths = () if axis is None else _token_paths(tensors, axis)
    plan = (sample_path, token_paths, axis)
    _plans[type(batch)] = plan
    return plan


def _sample_path(batch, tensors):
    """The path to what has the samples, and their dimension; None: it is a list of them.

    The first tensor, but for what detectors are trained on: a list of pictures beside one of their
    boxes, and pictures beside the boxes of all of them in a row.
    """
    if not tensors:
        return None, 0
    targets = _targets(batch)
    if targets is not None:
        return targets, None
    first_path, first = tensors[0]
    if len(first.shape) < _PICTURES and not any(map(_is_tokens, tensors)):
        for path, tensor in tensors:
            if len(tensor.shape) >= _PICTURES and tensor.shape[0] not in (1, first.shape[0]):
                return path, 0
    return first_path, batch_axis([tuple(tensor.shape) for _, tensor in tensors]) or 0


def _targets(batch):
    """The path to a list of dicts, one for each tensor in the list before it; None: there is none,
    as nearly everywhere.
    """
    parts = [part for part in _children(batch) if type(part[2]) in (list, tuple)]
    if len(parts) != 2:  # pictures and targets
        return None
    (_, _, pictures), (get, key, targets) = parts
    if not pictures or len(pictures) != len(targets):
        return None
    if all(map(_is_tensor, pictures)) and all(type(target) is dict for target in targets):
        return ((get, key),)
    return None


def _entries(samples):
    """How many a list has.

    Raises:
        TypeError: it is another structure than the plan was made for.
    """
    if type(samples) not in (list, tuple) or type(samples[0]) is not dict:
        raise TypeError("not a list of samples")
    return len(samples)


def _tokens(batch, paths):
    return sum(_walk(batch, path).numel() for path in paths)


def _token_paths(tensors, axis):
    """The path to the token ids: of that name, or of all texts of a sample whose names end so, else
    the first whole numbers in rows as many as there are samples, which indexes of several tables
    are not; nor are a few drawn for each sample, as word2vec's negatives, nor the places of
    vectors, as the times of states and actions.
    """
    ids = [
        (path, tensor)
        for path, tensor in tensors
        if len(tensor.shape) == 2 and str(tensor.dtype) in _TOKEN_DTYPES
    ]
    for path, tensor in ids:
        if _is_tokens((path, tensor)):
            return (path,)
    of_texts = [path for path, _ in ids if path and _is_of_text(path[-1][1])]
    if of_texts:
        return tuple(of_texts)
    samples = tensors[0][1].shape[axis] if tensors else 0
    shapes_of_rows = [tuple(tensor.shape) for _, tensor in tensors if len(tensor.shape) == 3]
    of_vectors = {shape[:2] for shape in shapes_of_rows if shape[1] != shape[2]}  # but masks
    for path, tensor in ids:
        is_long = tensor.shape[1 - axis] >= _LEAST_LENGTH
        if tensor.shape[axis] == samples and is_long and tuple(tensor.shape) not in of_vectors:
            return (path,)
    return ()


def _is_tokens(named):
    """Whether a tensor has a name of token ids; of several pictures a text, the texts count."""
    path, _ = named
    return bool(path) and path[-1][1] in _TOKEN_NAMES


def _is_of_text(name):
    return type(name) is str and name.endswith(_TEXTS_NAMES)


def batch_axis(shapes):
    """The first tensor's dimension of samples, by the others; None: they do not tell."""
    if not shapes:
        return 0
    first, other_shapes = shapes[0], shapes[1:]
    if all(shape[0] == first[0] for shape in other_shapes):
        return 0
    if len(first) > 1 and all(first[1] in (shape[0], *shape[1:2]) for shape in other_shapes):
        return 1  # time comes first: labels or a hidden state have the batch's size elsewhere
    if any(shape[0] == first[0] for shape in other_shapes):
        return 0
    return None


@modes.unseen
def count_inputs(args, kwargs):
    """``(samples, tokens)`` of a forward's inputs; no samples where its tensors disagree."""
    if len(args) > 1:
        shapes = _shapes(list(args))
        axis = batch_axis(shapes)
        if axis != 0:
            return (0 if axis is None else shapes[0][axis]), 0
    return count(args[0] if args else kwargs)


def _shapes(value):
    return [tuple(tensor.shape) for _, tensor in _tensors(value, (), 0)]


def _tensors(value, path, depth):
    """Yield ``(path, tensor)`` for tensors of one dimension or more, in the batch's own order."""
    if _is_tensor(value):
        if len(value.shape):
            yield path, value
        return
    if depth == _MAX_DEPTH:
        return
    for get, key, item in _children(value):
        for tensor in _tensors(item, path + ((get, key),), depth + 1):
            yield tensor


def _children(value):
    """The parts of a container as ``(getter, key, part)``; only built-in accessors, so no user code
    runs.
    """
    if isinstance(value, dict):
        return [(dict.__getitem__, key, item) for key, item in dict.items(value)]
    if isinstance(value, list):
        return [
            (list.__getitem__, i, list.__getitem__(value, i))
            for i in range(min(list.__len__(value), _MAX_ITEMS))
        ]
    if isinstance(value, tuple):
        return [
            (tuple.__getitem__, i, item)
            for i, item in enumerate(tuple.__iter__(value))
            if i < _MAX_ITEMS
        ]
    if isinstance(value, UserDict):
        return [(_user_item, key, item) for key, item in value.__dict__.get("data", {}).items()]
    fields = getattr(value, "__dict__", None)
    if isinstance(fields, dict) and not isinstance(value, type) and not callable(value):
        return [(_field, key, item) for key, item in fields.items()]
    return []


def _user_item(value, key):
    return value.__dict__["data"][key]


def _field(value, key):
    return value.__dict__[key]


def _is_tensor(value):
    value_type = type(value)
    return hasattr(value_type, "data_ptr") and hasattr(value_type, "numel")


def _look_closely(batch):
    try:
        if facts.description is None:
            description = describe(batch)
            if description["shapes"]:
                facts.description = description
            else:
                facts.description = None
            facts.site = frames.caller_site()
            facts.inside = frames.packages(sys._getframe(1))
        _look_at_padding(batch)
        for _, tensor in _tensors(batch, (), 0):
            if str(tensor.device) == "cpu":
                facts.crc = fingerprint(tensor)
                if (
                    session.cuda
                    and facts.description is not None
                    and "pinned" not in facts.description
                ):
                    facts.description = dict(facts.description, pinned=bool(tensor.is_pinned()))
                return
    except Exception:  # what cannot be read is not described; the training goes on
        interrupts.pass_on()


def _look_at_padding(batch):
    try:
        outermost = [(key, value) for _, key, value in _children(batch) if _is_tensor(value)]
        filled = padding.counted(outermost or [(0, batch)] * _is_tensor(batch))
        if filled is not None:
            facts.padding.append(filled)
    except Exception:  # what cannot be read is not counted; the training goes on
        interrupts.pass_on()


def _fingerprint_of(batch):
    """That of the batch's first tensor on the CPU; 0 without one."""
    try:
        tensors = (tensor for _, tensor in _tensors(batch, (), 0))
        return next((fingerprint(tensor) for tensor in tensors if str(tensor.device) == "cpu"), 0)
    except Exception:  # what cannot be read is not compared; the training goes on
        interrupts.pass_on()
        return 0


def _compare(index, crc):
    """Count whether a batch is the same as the one before, and whether data change at all."""
    last_index, last_crc = facts.last
    facts.last = index, crc
    if not crc or not last_crc:
        return
    facts.repeats[2] += crc != last_crc
    if index == last_index + 1:
        facts.repeats[0] += 1
        facts.repeats[1] += crc == last_crc


def fingerprint(tensor):
    """CRC-32 of the first 4 KiB of a plain CPU tensor; 0 for any other."""
    rows = _first_rows(tensor)  # a copy must live until it is read
    content = padding.content(rows, _CRC_BYTES)
    return zlib.crc32(content) & 0xFFFFFFFF if content is not None else 0


def _first_rows(tensor):
    """The tensor, or a copy of so many of its first rows where it is a view with gaps."""
    is_view = padding.is_plain(tensor) and len(tensor.shape) and not tensor.is_contiguous()
    if not is_view or str(tensor.device) != "cpu":
        return tensor
    row_bytes = max(1, tensor[0].numel() * tensor.element_size())
    return tensor.detach()[: -(-_CRC_BYTES // row_bytes)].contiguous()
