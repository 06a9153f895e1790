"""Which batch the training is at: its number in the epoch, the samples in it and their files, as
far as loader and dataset tell.

With ``--watch-numerics`` the batch is held until the next one is fetched, and the sampler's indices
are noted. No code of the user's is run: attributes are read from ``__dict__``.
"""

import weakref
from typing import Any

from gputop_agent.runtime import guard, interrupts, living
from gputop_agent.runtime.session import session
from gputop_agent.timing.step_state import open_step
from gputop_agent.watchers.layers import layer_sizes

MAX_INDICES = 256  # fetches ahead whose samples are remembered: workers prefetch
MAX_NAMED = 4  # samples that are named
_FILE_LISTS = (
    "samples",
    "imgs",
    "files",
    "paths",
    "filenames",
    "file_names",
    "image_paths",
    "image_files",
    "audio_files",
    "data_files",
)


class Batches:
    """The iterator that feeds the training, and its last batch."""

    def __init__(self):
        self.is_held = False  # with --watch-numerics
        self.iterator: Any = None  # weak reference
        self.batch: Any = None
        self.indices = living.Living()  # iterator -> {number of the fetch: samples}


batches = Batches()


@session.after_fork
def reset():
    """In a forked child."""
    is_held = batches.is_held
    batches.__init__()
    batches.is_held = is_held


def note_samples(iterator_class):
    """Remember which samples the sampler gave, from the start on."""
    batches.is_held = True
    original = iterator_class._next_index

    def noted(token, args, result):
        iterator = args[0]
        batch = batches.indices.get(iterator)
        if batch is None:
            batch = {}
            batches.indices.put(iterator, batch)
        parts = vars(iterator)
        number = parts.get("_send_idx", parts.get("_num_yielded"))
        batch[number] = result
        batch.pop(number - MAX_INDICES, None)

    def begin(args, kwargs):
        return True

    adopt = _anybody
    guard.patch(iterator_class, "_next_index", guard.around(original, begin, noted, adopt, True))


def _anybody():
    """Samples are drawn before training begins, too."""
    return session.thread_ident == 0


def fetched(iterator, batch):
    """The training has fetched a batch from another iterator, or one that is to be held."""
    if batches.iterator is None or batches.iterator() is not iterator:
        batches.iterator = weakref.ref(iterator)
    if batches.is_held:
        batches.batch = batch


def current():
    """The iterator, the number of its last batch, and that batch where it is held."""
    iterator = batches.iterator() if batches.iterator is not None else None
    if iterator is not None:
        number = vars(iterator).get("_num_yielded")
    else:
        number = None
    return iterator, number, batches.batch


def describe(found_at):
    """``{"number", "samples", "rows", "files", "finite"}`` of what was ``current``, as known."""
    batch_: "dict[str, Any]" = {}
    iterator, number, batch = found_at
    rows = None
    if batch is not None:
        rows = bad_rows(batch)
        batch_["finite"] = not rows
        if rows:
            batch_["rows"] = rows[:MAX_NAMED]
    if not number:
        return batch_
    batch_["number"] = number
    samples = _samples(iterator, number - 1)
    if samples and rows:
        samples = [samples[row] for row in rows if row < len(samples)]
    if samples:
        batch_["samples"] = [sample for sample in samples if type(sample) is int][:MAX_NAMED]
        batch_["files"] = _files(vars(iterator).get("_dataset"), batch_["samples"])
    return batch_


def bad_rows(batch):
    """Positions in the batch whose values are not all finite, of tensors in the CPU's memory."""
    torch, rows = session.torch, set()
    for tensor in layer_sizes.tensors_in(batch):
        if not (tensor.is_cpu and tensor.is_floating_point() and tensor.dim()):
            continue
        values = tensor.detach().reshape(tensor.shape[0], -1)
        rows.update(torch.nonzero(~torch.isfinite(values).all(1)).reshape(-1).tolist())
    return sorted(rows)


def _samples(iterator, fetch):
    noted = (batches.indices.get(iterator) or {}).get(fetch)
    if isinstance(noted, (list, tuple)):
        return list(noted)
    if isinstance(noted, int):
        return [noted]
    loader = open_step.loader or {}
    size = loader.get("batch_size")
    if loader.get("sampler") == "SequentialSampler" and size:
        return list(range(fetch * size, (fetch + 1) * size))
    return []


def _files(dataset, samples):
    """Files of samples, where the dataset has a list of them."""
    try:
        parts = vars(dataset)
        if "indices" in parts and "dataset" in parts:  # torch's Subset
            picked = parts["indices"]
            return _files(parts["dataset"], [int(picked[sample]) for sample in samples])
        for name in _FILE_LISTS:
            listed = parts.get(name)
            if isinstance(listed, (list, tuple)) and listed:
                return [_file(listed[sample]) for sample in samples if sample < len(listed)]
    except (TypeError, IndexError, ValueError):
        interrupts.pass_on()
    return []


def _file(entry):
    if isinstance(entry, (list, tuple)) and entry:
        entry = entry[0]
    return str(entry)[:300]
