"""The DataLoader that feeds the training, as the hello tells it."""

import multiprocessing
import re
import sys

from gputop_agent.description import sample_loop
from gputop_agent.runtime import frames, guard, interrupts, modes, source, wrapped

_OF_RANKS = ("DistributedSampler", "StatefulDistributedSampler")


@modes.unseen
def describe_loader(loader, site=None):
    """The ``dataloader`` entry; ``site``: the user's line that builds it. None without a loader."""
    if loader is None:
        return None
    batch_sampler = getattr(loader, "batch_sampler", None)
    dataset = getattr(loader, "dataset", None)
    collate = getattr(loader, "collate_fn", None)
    sampler = type(getattr(loader, "sampler", None)).__name__
    own_sampler = _users_sampler(loader, batch_sampler)
    iterable = any(base.__name__ == "IterableDataset" for base in type(dataset).__mro__)
    return {
        "class": type(loader).__name__,
        "batch_size": _batch_size(loader, batch_sampler),
        "num_workers": getattr(loader, "num_workers", None),
        "pin_memory": bool(getattr(loader, "pin_memory", False)),
        "persistent_workers": bool(getattr(loader, "persistent_workers", False)),
        "prefetch_factor": getattr(loader, "prefetch_factor", None),
        "drop_last": bool(getattr(loader, "drop_last", False)),
        "timeout_s": getattr(loader, "timeout", None),
        "start_method": _start_method(loader),
        "dataset": _dataset_name(dataset),
        "dataset_length": None if iterable else _length(dataset),
        "iterable": iterable,
        "sampler": sampler,
        "sampler_at": source.place_with(sampler + "(") if sampler in _OF_RANKS else None,
        "own_sampler_at": _made_at(own_sampler) if own_sampler else None,
        "sampler_rank": _rank_of(getattr(loader, "sampler", None), batch_sampler),
        "looped_at": guard.attempt(lambda: sample_loop.looped_at(dataset)) if iterable else None,
        "collate_fn": getattr(collate, "__name__", type(collate).__name__),
        "length": None if iterable else _length(batch_sampler),
        "site": site,
    }


def _users_sampler(loader, batch_sampler):
    """Name of the class of the user's that deals the samples; empty without one."""
    for dealer in (batch_sampler, getattr(loader, "sampler", None)):
        file = getattr(sys.modules.get(type(dealer).__module__), "__file__", None)
        if file is not None and frames.origin(file) == frames.USER:
            return type(dealer).__name__
    return ""


def _rank_of(sampler, batch_sampler):
    """The rank that the data is shared out to; None where it is not."""
    rank = getattr(sampler, "rank", getattr(batch_sampler, "process_index", None))
    return rank if isinstance(rank, int) else None


def _made_at(kind):
    return source.place_matching(r"(?<!class )\b%s\(" % re.escape(kind))


def _batch_size(loader, batch_sampler):
    size = getattr(loader, "batch_size", None)
    if size is None:
        size = getattr(batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else None


def _start_method(loader):
    """The loader's own, or the process's where that is not fork, as where ``mp.spawn`` began it."""
    context = getattr(loader, "multiprocessing_context", None)
    if not getattr(loader, "num_workers", 0):
        return None
    if context is None:
        of_process = multiprocessing.get_start_method(allow_none=True)  # else that would set it
        of_process = of_process or multiprocessing.get_all_start_methods()[0]
        return of_process if of_process != "fork" else None
    if isinstance(context, str):
        return context
    return getattr(context, "_name", None)


def _dataset_name(dataset):
    return " of ".join(type(part).__name__ for part in wrapped.datasets(dataset))


def _length(sized):
    """``len`` of a map-style dataset or of its batch sampler, None if it has none.

    The loader itself is never asked: with an IterableDataset torch would then compare that length
    with what is fetched, and warn.
    """
    try:
        return len(sized)
    except Exception:
        interrupts.pass_on()
        return None
