"""What can win back exposed communication: less volume, fewer messages, fewer waiting threads."""

from __future__ import annotations

from gputop_analysis.findings.advice import OWN_LOOP, MovedSetting, Option, at_least
from gputop_analysis.findings.dialect import phrase
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.ranks.called import SMALL_BYTES, Called
from gputop_analysis.findings.site import Site, named
from gputop_analysis.findings.stack_samples import marked, total
from gputop_analysis.text import counted

SLOWEST_BYTES_PER_S = {
    ("gloo", False): 0.2e9,
    ("gloo", True): 0.1e9,
    ("nccl", False): 2e9,
    ("nccl", True): 0.1e9,
}
"""By backend, and whether hosts are between: below it a sum is slow for another reason than its
size. Gloo on one machine sums 0.3 to 1 GB/s on one core; between hosts it is what Ethernet of 1
Gbit/s carries; PCIe carries more.
"""
BY_VOLUME = 0.25
"""Part of the exposed time that the bytes must explain for less of them to be advised."""
ACCUMULATED = 4
"""Micro-batches that are proposed between two sums."""
RARER = 10
"""Steps between two calls of collectives that are proposed for metrics."""
FEW_MESSAGES = 8
"""Collectives of the script's own in a step, from which on they are many."""
SMALL_BUCKETS = 4
"""More of them than this, each below 1 MiB, are many small messages."""


def bytes_a_sum(run: Facts) -> int | None:
    """Bytes of gradients that the ranks sum at a time; None where they are not known."""
    ddp = next(iter(run.view.record.events("ddp")), {})
    if buckets := ddp.get("bucket_bytes"):
        return int(sum(buckets))
    model = run.hello.get("model") or {}
    trained = model.get("trainable") or model.get("parameters")
    return 4 * int(trained) if trained else None


def volume_ms(run: Facts) -> float | None:
    """Longest time that the bytes of a sum explain, on a slow link; None: not known."""
    sent, ranks = bytes_a_sum(run), max(2, run.world)
    if sent is None:
        return None
    passes = 3 if run.parallel.get("fsdp") else 2
    return passes * (ranks - 1) / ranks * _sent_ms(run, sent)


def _sent_ms(run: Facts, sent: float) -> float:
    """Longest time for so many bytes."""
    backend = "gloo" if "gloo" in str(run.parallel.get("backend")) else "nccl"
    hosts = len({run.view.host_of(rank) for rank in run.view.ranks}) > 1
    return 1e3 * sent / SLOWEST_BYTES_PER_S[backend, hosts]


def comm_options(run: Facts, exposed_ms: float) -> list[Option]:
    """Options for exposed communication of so many ms a step, what mends its cause first."""
    options = []
    if run.oversubscribed:
        threads = run.ranks_here * (run.threads or 1)
        options.append(_fewer(run, threads))
    explained = volume_ms(run)
    small = explained is not None and explained < BY_VOLUME * exposed_ms
    if explained is None:
        by_volume = exposed_ms
    else:
        by_volume = min(explained, exposed_ms)
    if not small:
        options += _less_volume(run, by_volume)
    else:
        options += _less_latency(run, exposed_ms)
    rarer = phrase(run, "accumulate", count=ACCUMULATED)
    words = (
        f"sum the gradients once in {ACCUMULATED} micro-batches, which makes the batch so "
        f"much larger: {rarer}"
    )
    seldom = (1 - 1 / ACCUMULATED) * exposed_ms
    return [*options, Option(words, wins_ms=seldom)]


BUFFERS = "_distributed_broadcast_coalesced"
"""Function of DDP that sends them."""


def buffers_explain(run: Facts, site: Site | None, exposed_ms: float) -> bool:
    """Whether the time lies in DDP's sending of buffers, and their bytes explain it."""
    sent = (run.hello.get("model") or {}).get("buffer_bytes") or 0
    in_buffers = site is not None and BUFFERS in site.detail
    return in_buffers and sent >= SMALL_BYTES and _sent_ms(run, sent) >= BY_VOLUME * exposed_ms


def called_options(
    run: Facts, site: Site | None, called: Called | None, exposed_ms: float
) -> list[Option]:
    """Options where the time is in collectives that the script calls itself, beside DDP's."""
    at = named(site, " at {}")
    if site is not None and BUFFERS in site.detail:
        words = (
            "DDP sends the model's buffers to all ranks before each forward: where they are the "
            "same on all, as a table of constants or an average of the weights is, "
            "DistributedDataParallel(..., broadcast_buffers=False)"
        )
        return [Option(words, wins_ms=exposed_ms)]
    if _makes_whole(run):
        words = (
            f"full_tensor(){at} gathers each sharded tensor from all ranks: compute what is asked "
            "of it of to_local(), and sum that over the ranks in one message"
        )
        return [Option(words, wins_ms=exposed_ms)]
    seldom = f"every {RARER} steps, where their results are only shown"
    if called is None:
        return [
            Option(f"stack what is sent{at}: one message a step instead of many", promises=False),
            Option(f"call the collectives{at} {seldom}", wins_ms=(1 - 1 / RARER) * exposed_ms),
        ]
    options = []
    if called.small > FEW_MESSAGES:
        words = f"stack what is sent{at}: {called.small:.0f} small messages a step could be few"
        spared = (1 - FEW_MESSAGES / called.messages) * exposed_ms
        options.append(Option(words, wins_ms=spared))
    if called.tiny > 0.5 and not sums_gradients(run):
        words = f"send what is a number or two{at} {seldom}"
        spared = (1 - 1 / RARER) * called.tiny / called.messages * exposed_ms
        options.append(Option(words, wins_ms=spared))
    explained = _sent_ms(run, called.bytes_sent)
    if explained >= BY_VOLUME * exposed_ms:
        megabytes = f"{called.bytes_sent / 1e6:.3g} MB a step"
        by_volume = min(explained, exposed_ms)
        options += [
            Option(f"send less{at}: in 16 bits half of {megabytes}", wins_ms=0.5 * by_volume),
            Option(
                "begin to send before the result is needed (async_op=True), and wait for it then",
                wins_ms=by_volume,
            ),
        ]
    return options or _less_latency(run, exposed_ms)


def _makes_whole(run: Facts) -> bool:
    """Whether the calls are those that make sharded tensors whole."""
    samples = marked(run.view, "comm", None)
    of_full_tensor = total(sample for sample in samples if "full_tensor(" in sample.code)
    return of_full_tensor > total(samples) / 2


def sums_gradients(run: Facts) -> bool:
    """Whether what the script sends are gradients, small ones as well."""
    return any(event.get("by_hand") for event in run.view.events("replica"))


def explain_the_time(run: Facts, called: Called, exposed_ms: float) -> bool:
    """Whether the script's calls take long by their number or by their bytes, and not only as the
    ranks wait for a core.
    """
    takes_long = _sent_ms(run, called.bytes_sent) >= BY_VOLUME * exposed_ms
    by_bytes = called.bytes_sent >= SMALL_BYTES and takes_long
    return called.small > FEW_MESSAGES or by_bytes


def _fewer(run: Facts, threads: int) -> Option:
    """More is ready to run than there are cores, so sums wait for ranks that wait for a core."""
    cores, ranks = run.cores, run.ranks_here
    busy_threads = counted(run.threads or 1, "busy thread")
    why = (
        f"{ranks} ranks with {busy_threads} each share {cores} cores, and a sum waits for the last"
    )
    if ranks > cores:
        return Option(f"start at most {cores} ranks here: {why}", lever=MovedSetting("ranks", -1))
    words = f"set OMP_NUM_THREADS={max(1, cores // ranks)}: {why} ({threads} threads)"
    return Option(words, lever=MovedSetting("torch threads", -1))


def _less_volume(run: Facts, by_volume_ms: float) -> list[Option]:
    """The bytes take the time: send fewer, or send them while the backward computes."""
    hosts = len({run.view.host_of(rank) for rank in run.view.ranks}) > 1
    if run.parallel.get("fsdp"):
        options = [
            Option("FSDP: bf16 reduce_dtype", wins_ms=0.5 * by_volume_ms),
            Option(
                "FSDP: backward_prefetch=BACKWARD_PRE and forward_prefetch=True",
                wins_ms=by_volume_ms,
            ),
        ]
        inside = Option(
            "FSDP: HYBRID_SHARD keeps the gathering inside a node", wins_ms=by_volume_ms
        )
        return [*options, inside] if hosts else options
    ddp = run.parallel.get("ddp")
    hooked = isinstance(ddp, dict) and bool(ddp.get("comm_hook"))
    words = "send less: model.register_comm_hook(None, bf16_compress_hook)"
    if hooked:
        options = []
    else:
        options = [
            Option(words, needs=(OWN_LOOP, at_least("torch", 1, 10)), wins_ms=0.5 * by_volume_ms)
        ]
    bucket = "start earlier, beside the backward: " + phrase(run, "bucket", size=5)
    return [*options, Option(bucket, wins_ms=by_volume_ms)]


def _less_latency(run: Facts, exposed_ms: float) -> list[Option]:
    """The bytes do not explain the time: each message waits for something else."""
    ddp = next(iter(run.view.record.events("ddp")), {})
    buckets = ddp.get("bucket_bytes") or ()
    options = []
    if len(buckets) > SMALL_BUCKETS and max(buckets) < 1 << 20:
        words = f"fewer, larger messages (now {len(buckets)}): {phrase(run, 'bucket', size=25)}"
        options.append(Option(words, wins_ms=(1 - 1 / len(buckets)) * exposed_ms))
    settings = run.parallel.get("ddp")
    hook = settings.get("comm_hook") if isinstance(settings, dict) else None
    if not run.oversubscribed:
        nccl = "nccl" in str(run.parallel.get("backend"))
        interface = "NCCL_SOCKET_IFNAME" if nccl else "GLOO_SOCKET_IFNAME"
        words = f"look at the way of the messages: the network interface ({interface})"
        options.append(
            Option(words + (f", and the hook {hook}" if hook else ", a slow hook"), promises=True)
        )
    return options
