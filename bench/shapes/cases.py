"""What is injected into which script, and what a right answer is: data for
``bench/shapes/run.py``.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
HOST = ("HO06",)


@dataclass(frozen=True)
class Shape:
    """A fault of one script. Its clean twin has FAULT=clean_NAME: a near miss, or the script as it
    is.
    """

    name: str
    script: str
    ids: tuple[str, ...]
    """Findings above info of which one at least must come."""
    rank: int | None = 0
    also: tuple[str, ...] = ()
    """Findings that are as true of it."""
    timed: bool = False
    """Whether the right fix saves all that the script's own clock counts."""
    exit_code: int | tuple[int, ...] = 0
    hangs: bool = False
    """Stopped from outside once every rank has told its stack."""
    info: bool = False
    """Whether the finding may be an info."""
    twin: bool = True
    """Whether the twin is run: not where it would be the same run as another's."""

    @property
    def places(self) -> set[int]:
        """Lines of the scripts that carry the fault's mark; empty where no line is
        right or wrong.
        """
        return {line for _, line in self.marked}

    @property
    def marked(self) -> set[tuple[str, int]]:
        """File names and lines that carry the fault's mark: all of a simple statement that has it,
        as a formatter moves a mark to its last line.
        """
        found = set()
        for path in SCRIPTS.glob("*.py"):
            source = path.read_text()
            for number, text in enumerate(source.splitlines(), 1):
                mark = re.search(r"# at: (.*)$", text)
                if mark and self.name in mark.group(1).split():
                    found |= {(path.name, line) for line in _statement(source, number)}
        return found


def _statement(source: str, line: int) -> range:
    """Lines of the simple statement that has a line; else that line."""
    for node in ast.walk(_tree(source)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            last = node.end_lineno or node.lineno
            if node.lineno <= line <= last:
                return range(node.lineno, last + 1)
    return range(line, line + 1)


@lru_cache(maxsize=200)
def _tree(source: str) -> ast.Module:
    return ast.parse(source)


LOADER = ("IN01", "IN02", "IN03")
SHAPES = (
    Shape("decode", "cnn.py", LOADER, also=LOADER, timed=True),
    Shape("slow_disk", "cnn.py", (*LOADER, "IN07"), also=LOADER),
    Shape(
        "loader_rebuilt",
        "cnn.py",
        ("IN15", "IN02", "IN01", "HO06"),
        also=("IN15", *LOADER),
        timed=True,
        twin=False,
    ),
    Shape("item_scatter", "cnn.py", HOST, timed=True),
    Shape("log_fsync", "cnn.py", HOST, timed=True),
    Shape("checkpoint_often", "cnn.py", ("HO07",), also=("HO15",)),
    Shape("disk_full", "cnn.py", ("HC06", "HC09"), also=("HC06", "HC09"), exit_code=1),
    Shape(
        "lr_nan", "lstm.py", ("NU01", "NU02", "NU03", "NU07"), also=("NU01", "NU02", "NU03", "NU07")
    ),
    Shape("dead_relu", "lstm.py", ("NU13", "NU08"), also=("NU13", "NU08")),
    Shape("lr_gone", "lstm.py", ("NU06",)),
    Shape("losses_keep_graph", "lstm.py", ("ME02", "ME05"), also=("ME02", "ME05", "HO12")),
    Shape("outputs_kept", "lstm.py", ("ME02", "ME05"), also=("ME02", "ME05", "HO12")),
    Shape("history_mean", "lstm.py", ("CE11", "HO06"), also=("CE11", "HO06")),
    Shape("always_clipped", "lstm.py", ("NU05",), info=False),
    Shape("killed", "lstm.py", ("HC09", "HC05"), exit_code=137, twin=False, also=("HC09", "HC05")),
    Shape("numpy_cache", "lstm.py", ("ME05", "ME02"), also=("ME02", "ME05", "HO12", "HO06")),
    Shape("tokenize", "gpt.py", HOST, timed=True),
    Shape("eval_often", "gpt.py", ("HO08",), also=("HO15",)),
    Shape("deepcopy", "gpt.py", HOST, timed=True),
    Shape("anomaly", "gpt.py", ("HO16",)),
    Shape("profiler", "gpt.py", ("HO16",), also=("ME05", "ME02")),
    Shape("skipped", "gpt.py", ("NU04", "NU01"), also=("NU04", "NU01", "CE03")),
    Shape("log_zero", "gpt.py", ("NU01",), also=("NU02",)),
    Shape("bad_data", "gpt.py", ("NU01",), twin=False),
    Shape("no_zero", "gpt.py", ("NU11",), also=("NU07", "NU02")),
    Shape("hooks", "gpt.py", ("CE11",)),
    Shape("gc_each", "gpt.py", ("HO03", "HO06"), also=("HO03", "HO06"), timed=True),
    Shape("print_slow", "gpt.py", HOST, timed=True),
    Shape("no_grad_body", "gpt.py", ("NU08",)),
    Shape("half_optimizer", "gpt.py", ("NU08", "NU11"), also=("NU08", "NU11")),
    Shape("float64", "gpt.py", ("CE14", "CE01", "CE02"), info=True),
    Shape("recompile", "gpt.py", ("HO09",), also=("CE10",)),
    Shape("slow_collate", "gan.py", LOADER, also=LOADER, timed=True),
    Shape("tracker", "gan.py", HOST, timed=True),
    Shape("gc_graph", "gan.py", ("HO03", "HO06"), also=("HO03", "HO06"), timed=True),
    Shape("gan_nan", "gan.py", ("NU01", "NU02"), also=("NU01", "NU02", "NU03", "NU07")),
    Shape("slow_env", "dqn.py", HOST, timed=True),
    Shape("python_replay", "dqn.py", HOST, also=("HO03",), timed=True, twin=False),
    Shape(
        "slow_rollout",
        "dqn.py",
        ("HO06", "HO08", "HO15"),
        also=("HO06", "HO08", "HO15"),
        timed=True,
    ),
    Shape("auc", "diffusion.py", HOST, timed=True),
    Shape("dump", "diffusion.py", ("HO06", "HO07"), timed=True),
    Shape("sample_each", "diffusion.py", ("HO08", "HO06"), timed=True),
    Shape("nan_batch", "diffusion.py", ("NU01",)),
    Shape("threads", "diffusion.py", ("HO14", "IN04"), also=("HO14", "IN04")),
    Shape("adjacency", "gnn.py", HOST, timed=True),
    Shape("closure_python", "gnn.py", HOST, timed=True),
    Shape("dict_rows", "contrastive.py", LOADER, also=LOADER, timed=True, twin=False),
    Shape("epoch_starts", "contrastive.py", ("IN05", "IN15"), also=("IN05", "IN15", *LOADER)),
    Shape("augment", "contrastive.py", HOST, timed=True),
    Shape("detached", "contrastive.py", ("NU08", "NU13"), also=("NU08", "NU13")),
    Shape("func_sleep", "contrastive.py", HOST, timed=True),
    Shape("padding", "seq2seq.py", ("IN14",)),
    Shape("generate", "seq2seq.py", ("HO08", "HO06"), timed=True),
    Shape("eval_graph", "seq2seq.py", ("ME10", "HO08"), also=("ME10", "HO08"), twin=False),
    Shape("lightning_data", "fit.py", LOADER, also=LOADER, timed=True),
    Shape("lightning_callback", "fit.py", HOST, timed=True),
    Shape("lightning_ckpt", "fit.py", ("HO07",), also=("HO15",), twin=False),
    Shape("hf_collator", "hf.py", LOADER, also=LOADER, timed=True),
    Shape("hf_callback", "hf.py", HOST, timed=True, twin=False),
    Shape("hf_eval", "hf.py", ("HO08",), also=("HO15",), twin=False),
    Shape("accelerate_metric", "hf.py", HOST, timed=True),
    Shape("accelerate_save", "hf.py", ("HO07",), also=("HO15",)),
    Shape("slow_rank", "ddp.py", ("CR01",), rank=1),
    Shape("longer_texts", "ddp.py", ("CR15",), rank=1),
    Shape("slow_shard", "ddp.py", ("IN11", "CR03"), rank=1, also=("IN02", "IN01")),
    Shape("no_sync", "ddp.py", ("CR07",), rank=None, also=("CR06",)),
    Shape("unused_flag", "ddp.py", ("CR08",), rank=None),
    Shape("same_data", "ddp.py", ("IN12",), rank=None),
    Shape("rank0_log", "ddp.py", ("CR04", "HO06"), rank=0, also=("CR04", "HO06")),
    Shape("replicas", "ddp.py", ("NU09",), rank=None),
    Shape("rank_dies", "ddp.py", ("HC06",), rank=1, exit_code=(1,), also=("HC09",)),
    Shape(
        "rank_killed",
        "ddp.py",
        ("HC09", "HC06"),
        rank=1,
        exit_code=(1, 9, 137),
        also=("HC09", "HC06"),
    ),
    Shape("rank_hangs", "ddp.py", ("HC01",), rank=1, exit_code=130, hangs=True),
)
SECOND = (
    Shape("viterbi", "tagger.py", HOST, timed=True),
    Shape("monitor", "tagger.py", ("HO04",)),
    Shape("step_lr", "tagger.py", ("NU06",)),
    Shape("grad_items", "tagger.py", HOST, timed=True),
    Shape("json_history", "tagger.py", ("HO06", "CE11"), also=("HO06", "CE11")),
    Shape("pil_turn", "vae.py", HOST, timed=True),
    Shape("worker_raises", "vae.py", ("HC06", "HC09"), exit_code=1, also=("HC09", "HC06")),
    Shape(
        "vae_overflow", "vae.py", ("NU01", "NU02", "NU07"), also=("NU01", "NU02", "NU03", "NU07")
    ),
    Shape("exit_message", "vae.py", ("HC09", "HC06"), exit_code=1, also=("HC09", "HC06")),
    Shape("negatives", "vae.py", HOST, timed=True),
    Shape("reload", "vae.py", HOST, timed=True),
    Shape("lightning_valid", "framed.py", ("HO08",), also=("HO15",)),
    Shape("hf_save", "framed.py", ("HO07",), also=("HO15",)),
    Shape("slow_augment", "framed.py", ("CR04", "HO06"), rank=1, also=("CR04", "HO06")),
    Shape("rank0_metrics", "framed.py", ("CR04", "HO06"), rank=0, also=("CR04", "HO06")),
    Shape("larger_share", "framed.py", ("CR15",), rank=1),
)
"""Written after the first ones had been mended, to see whether that holds for others."""
THIRD = (
    Shape("regex_clean", "chars.py", HOST, timed=True),
    Shape("json_lines", "chars.py", HOST, timed=True, twin=False),
    Shape("vocabulary_anew", "chars.py", HOST, timed=True),
    Shape("python_mask", "chars.py", HOST, timed=True),
    Shape("spare_head", "chars.py", ("NU08",)),
    Shape("lr_blows", "chars.py", ("NU01", "NU02", "NU07"), also=("NU03", "NU13")),
    Shape("warmup_never_ends", "chars.py", ("NU06",)),
    Shape("nan_guarded", "chars.py", ("NU01",), also=("NU03",)),
    Shape("states_kept", "chars.py", ("ME02", "ME05"), also=("HO12",)),
    Shape("metrics_by_item", "chars.py", HOST, timed=True),
    Shape("log_rewritten", "chars.py", HOST, also=("CE11",), timed=True),
    Shape("jpeg_large", "pictures.py", LOADER, also=LOADER, timed=True, twin=False),
    Shape("one_worker", "pictures.py", LOADER, also=LOADER),
    Shape("numpy_loop", "pictures.py", LOADER, also=LOADER, timed=True),
    Shape("callback_waits", "pictures.py", HOST, timed=True, twin=False),
    Shape("callback_saves", "pictures.py", ("HO07",), also=("HO15",)),
    Shape("callback_compares", "pictures.py", HOST, timed=True, twin=False),
    Shape("callback_evaluates", "pictures.py", ("HO08",), also=("HO15",)),
    Shape("noise_on_host", "pictures.py", HOST, timed=True),
    Shape("sqrt_of_zero", "pictures.py", ("NU01",), also=("NU02",)),
    Shape("never_zeroed", "pictures.py", ("NU11",), also=("NU07", "NU02", "NU01")),
    Shape("head_left_out", "pictures.py", ("NU08", "NU11"), twin=False, also=("NU08", "NU11")),
    Shape("world_copied", "actors.py", HOST, timed=True),
    Shape("returns_by_hand", "actors.py", HOST, timed=True, twin=False),
    Shape("collect_garbage", "actors.py", ("HO03", "HO06"), also=("HO03", "HO06")),
    Shape("log_of_zero", "actors.py", ("NU01",), also=("NU02",)),
    Shape("maker_detached", "actors.py", ("NU08", "NU13"), also=("NU08", "NU13")),
    Shape("fakes_kept", "actors.py", ("ME02", "ME05"), also=("ME02", "ME05", "HO12")),
    Shape("penalty_by_rows", "actors.py", HOST, timed=True),
    Shape("closure_checks", "actors.py", HOST, timed=True),
    Shape("slow_reader", "ranks.py", ("IN11", "CR03"), rank=1, also=("IN02", "IN01")),
    Shape("long_texts", "ranks.py", ("CR15",), rank=1, also=("IN14",), twin=False),
    Shape("late_forward", "ranks.py", ("CR02", "CR01"), rank=1),
    Shape("larger_batch", "ranks.py", ("CR15",), rank=1, twin=False),
    Shape("rank0_copies", "ranks.py", ("CR04", "HO06"), rank=0, also=("CR04", "HO06")),
    Shape("rank2_logs", "ranks.py", ("CR04", "HO06"), rank=2, twin=False, also=("CR04", "HO06")),
)
"""Written when the first two had been mended, and measured before anything was mended for them."""
FOURTH = (
    Shape("usage_table", "experts.py", HOST, timed=True),
    Shape("aux_kept", "experts.py", ("ME02", "ME05"), also=("ME02", "ME05", "HO12")),
    Shape("latents_kept", "experts.py", ("ME02", "ME05"), also=("ME02", "ME05", "HO12")),
    Shape("gc_every", "experts.py", ("HO03", "HO06"), also=("HO03", "HO06"), timed=True),
    Shape("relu_dead", "experts.py", ("NU13", "NU08", "NU07"), also=("NU13", "NU08"), twin=False),
    Shape("corpus_reread", "nano.py", HOST, timed=True),
    Shape("finite_each", "nano.py", HOST, timed=True),
    Shape("estimates_long", "nano.py", ("HO08",), also=("HO15",)),
    Shape("cosine_short", "nano.py", ("NU06",), twin=False),
    Shape("best_saved", "nano.py", ("HO07",), also=("HO15",)),
    Shape("archives", "folders.py", LOADER, also=LOADER, timed=True),
    Shape("lone_worker", "folders.py", LOADER, also=LOADER),
    Shape(
        "workers_eight",
        "folders.py",
        ("IN05", "IN15", "IN04", "HO14", *LOADER),
        also=("IN05", "IN15", "HO14", *LOADER),
    ),
    Shape("locked_collate", "folders.py", LOADER, also=LOADER),
    Shape("stream_reopened", "speech.py", LOADER, also=LOADER, timed=True, twin=False),
    Shape("tokens_in_loop", "speech.py", HOST, timed=True),
    Shape("statistics_grow", "speech.py", ("CE11", "HO06"), also=("CE11", "HO06", "ME05")),
    Shape("hooks_pile_up", "distil.py", ("CE11",)),
    Shape("logits_cached", "distil.py", ("ME02", "ME05"), also=("ME02", "ME05", "HO12")),
    Shape("student_detached", "distil.py", ("NU08",), also=("NU13",), twin=False),
    Shape(
        "teacher_trains_along",
        "distil.py",
        ("NU11", "NU08", "CE07", "ME09"),
        also=("NU11", "NU08", "CE07", "ME09"),
        twin=False,
    ),
    Shape("ema_rebuilt", "score.py", HOST, timed=True),
    Shape(
        "half_overflows",
        "score.py",
        ("NU01", "NU02", "NU03", "NU07"),
        also=("NU01", "NU02", "NU03", "NU07"),
        twin=False,
    ),
    Shape(
        "samples_each",
        "score.py",
        ("HO08", "HO06", "HO15"),
        also=("HO08", "HO06", "HO15"),
        timed=True,
    ),
    Shape("warmup_integer", "score.py", ("NU06",), twin=False),
    Shape("env_substeps", "reinforce.py", HOST, timed=True),
    Shape("gae_by_element", "reinforce.py", HOST, timed=True, twin=False),
    Shape("critic_not_zeroed", "reinforce.py", ("NU11",), also=("NU07",), twin=False),
    Shape("tensors_printed", "reinforce.py", HOST, timed=True),
    Shape("texts_longer", "pairs.py", ("CR15",), rank=1, also=("IN14",)),
    Shape("rank_digest", "pairs.py", ("CR04", "HO06"), rank=1, also=("CR04", "HO06")),
    Shape("metrics_one_by_one", "pairs.py", ("CR06", "HO06"), rank=None, also=("CR06", "HO06")),
    Shape("buckets_tiny", "pairs.py", ("CR06", "CR16"), rank=None, twin=False),
    Shape("rank0_saves", "pairs.py", ("HO07", "CR04", "HO15"), also=("HO07", "CR04", "HO15")),
    Shape("lengths_compiled", "tuned.py", ("HO09",), also=("CE10", "HO10")),
    Shape("item_inside", "tuned.py", ("HO10",), info=True),
    Shape("lightning_histograms", "tuned.py", HOST, timed=True),
    Shape("hf_tokens", "tuned.py", LOADER, also=LOADER, timed=True, twin=False),
)
"""Written as strangers write, marks and all before the first of them was run."""
GROWS = ("ME02", "ME05")
NUMBERS = ("NU01", "NU02", "NU03", "NU07", "NU13")
FIFTH = (
    Shape("mask_by_pixel", "segments.py", LOADER, also=LOADER, timed=True),
    Shape("json_shards", "segments.py", LOADER, also=LOADER),
    Shape("padded_by_hand", "segments.py", LOADER, also=LOADER, timed=True, twin=False),
    Shape("confusion_by_pixel", "segments.py", HOST, timed=True),
    Shape("previews_packed", "segments.py", HOST, timed=True),
    Shape("meter_of_tensors", "segments.py", GROWS, also=(*GROWS, "HO12"), twin=False),
    Shape("validated_with_graph", "segments.py", ("ME10",), also=("HO08", "HO15")),
    Shape("running_sum", "bptt.py", GROWS, also=(*GROWS, "HO12")),
    Shape("rate_of_forty", "bptt.py", NUMBERS, also=NUMBERS, twin=False),
    Shape("cleared_too_late", "bptt.py", ("NU08", "NU13"), also=("NU07",), twin=False),
    Shape("decay_by_batch", "bptt.py", ("NU06",)),
    Shape("clipped_by_nothing", "bptt.py", ("NU05",)),
    Shape("perplexities_sorted", "bptt.py", ("HO06", "CE11"), also=("HO06", "CE11")),
    Shape("features_not_frozen", "transfer.py", ("NU08",)),
    Shape("bottom_is_dead", "transfer.py", ("NU13", "NU08"), also=("NU08", "NU13"), twin=False),
    Shape("dataset_remembers", "transfer.py", GROWS, also=(*GROWS, "HO12", *LOADER)),
    Shape(
        "iterator_each_step",
        "transfer.py",
        ("IN05", "IN15", *LOADER, "HO06"),
        also=("IN05", "IN15", *LOADER, "HO06"),
    ),
    Shape("pixels_compared", "transfer.py", HOST, timed=True),
    Shape("journal_rewritten", "tuner.py", HOST, timed=True),
    Shape("odds_logged", "tuner.py", ("NU01",), also=("NU02",)),
    Shape("evaluated_each", "tuner.py", ("HO08",), also=("HO15",)),
    Shape("kept_each", "tuner.py", ("HO07",), also=("HO15",)),
    Shape("accumulated_for_ever", "tuner.py", ("NU11",), also=("NU02", "NU07"), twin=False),
    Shape("hits_one_by_one", "tuner.py", HOST, timed=True),
    Shape("polled", "tuner.py", HOST, timed=True),
    Shape("critic_adds_up", "manual.py", ("NU11",), also=("NU02", "NU07")),
    Shape("outputs_for_the_end", "manual.py", GROWS, also=(*GROWS, "HO12")),
    Shape("weights_dumped", "manual.py", HOST, timed=True),
    Shape("validates_each_ten", "manual.py", ("HO08",), also=("HO15",)),
    Shape("paths_searched", "policies.py", HOST, timed=True),
    Shape(
        "spread_of_one",
        "policies.py",
        ("NU01",),
        also=("NU02", "HC06"),
        exit_code=1,
        twin=False,
    ),
    Shape("replay_without_end", "policies.py", GROWS, also=(*GROWS, "HO12", "HO06", "HO03")),
    Shape("target_not_frozen", "policies.py", ("NU08", "NU11"), also=("NU08", "NU11"), twin=False),
    Shape("actor_adds_up", "policies.py", ("NU11",), also=("NU02", "NU07"), twin=False),
    Shape("one_slow_shard", "fleet.py", ("IN11", "CR03"), rank=1, also=("IN02", "IN01")),
    Shape(
        "evaluates_alone",
        "fleet.py",
        ("HO08", "CR04", "HO06", "HO15"),
        rank=0,
        also=("HO08", "CR04", "HO06", "HO15"),
    ),
    Shape("metrics_as_objects", "fleet.py", ("CR06", "HO06"), rank=None, also=("CR06", "HO06")),
    Shape(
        "buckets_of_a_layer", "fleet.py", ("CR16", "CR06"), rank=None, also=("CR06",), twin=False
    ),
    Shape("more_rows", "fleet.py", ("CR15",), rank=1, twin=False),
)
"""Of the kinds that users ask for help with, marks and all before the first of them was run."""
SEVENTH = (
    Shape("warmup_by_integers", "trainerless.py", ("NU06",)),
    Shape("root_of_nothing", "trainerless.py", ("NU01", "NU03"), also=("NU01", "NU03", "NU02")),
    Shape("average_with_graph", "trainerless.py", GROWS, also=(*GROWS, "HO12", "CE11")),
    Shape("stays_in_eval", "trainerless.py", ("NU14",)),
    Shape("weights_printed", "trainerless.py", HOST, timed=True),
    Shape("zeros_everywhere", "trainerless.py", ("NU13",), also=("NU08",)),
    Shape("memory_of_lists", "actor_critic.py", HOST, timed=True),
    Shape("critic_never_steps", "actor_critic.py", ("NU08", "NU11"), also=("NU08", "NU11")),
    Shape("temperature_detached", "actor_critic.py", ("NU08",), twin=False),
    Shape("target_copied", "actor_critic.py", HOST, timed=True),
    Shape("returns_grow", "actor_critic.py", GROWS, also=(*GROWS, "HO12", "CE11")),
    Shape("archive_opened", "archive.py", LOADER, also=LOADER),
    Shape("network_disk", "archive.py", (*LOADER, "IN07"), also=(*LOADER, "IN07")),
    Shape("workers_each_epoch", "archive.py", ("IN05", "IN15"), also=("IN05", "IN15", *LOADER)),
    Shape("state_saved", "archive.py", ("HO07",), also=("HO15",)),
    Shape("figures_summed", "replicas.py", ("CR06", "HO06"), rank=None, also=("CR06", "HO06")),
    Shape("head_alone", "replicas.py", ("NU09",), rank=None),
    Shape("same_seed_data", "replicas.py", ("IN12",), rank=None),
    Shape("journal_of_one", "replicas.py", ("CR04", "HO06"), rank=1, also=("CR04", "HO06")),
)
"""Of a trainer of callbacks, actor and critic, an archive, and ranks with a head of their own;
marks and all before the first of them was run.
"""
EIGHTH = (
    Shape("lru_of_features", "functional.py", GROWS, also=(*GROWS, "HO12")),
    Shape("state_hashed", "functional.py", HOST, timed=True),
    Shape("estimator_cuts", "quantised.py", ("NU13", "NU08"), also=("NU13", "NU08")),
    Shape("backward_by_rows", "quantised.py", ("CE07", "HO06", "HO17"), timed=True, twin=False),
    Shape("cosine_swings", "quantised.py", ("NU06", "NU15")),
    Shape("workers_repeat", "stream.py", ("IN12", "IN16")),
    Shape("sampler_draws", "stream.py", (*LOADER, "HO06"), also=LOADER, timed=True),
    Shape("mmap_copied", "stream.py", LOADER, also=LOADER, timed=True, twin=False),
    Shape("smooth_keeps_graph", "wasserstein.py", GROWS, also=(*GROWS, "HO12", "CE11")),
    Shape("forcing_by_item", "forced.py", ("HO06", "CE07", "HO17"), timed=True),
    Shape("state_never_cut", "forced.py", ("CE11", *GROWS), also=("CE11", *GROWS, "CE07")),
    Shape("all_ignored", "ignored.py", ("NU01",), also=("NU03",)),
    Shape("manual_never_zeroed", "ignored.py", ("NU11",), also=("NU02", "NU07"), twin=False),
    Shape("one_writes", "crew.py", ("CR04", "HO06"), rank=1, also=("CR04", "HO06"), timed=True),
    Shape("module_called", "crew.py", ("NU09",), rank=None, twin=False),
    Shape("hook_on_one", "crew.py", ("CR01",), rank=1, twin=False, timed=True),
)
"""Functions of one's own, streams, penalties, recurrence, manual frameworks and ranks; marks and
all before the first of them was run.
"""
STANDS = ("NU07",)
NINTH = (
    Shape("dense_rows", "recommender.py", ("HO11",), also=("HO11", "HO12")),
    Shape("queue_behind", "recommender.py", GROWS, also=(*GROWS, "HO12", "HO04")),
    Shape("asks_subprocess", "recommender.py", HOST, timed=True),
    Shape("labels_apart", "spirals.py", STANDS, twin=False),
    Shape("softmax_twice", "spirals.py", ("NU17", *STANDS, "NU13")),
    Shape("weights_decay_away", "spirals.py", ("NU18", *STANDS, "NU13"), also=(*STANDS, "NU13")),
    Shape("optimizer_anew", "spirals.py", ("NU16", *STANDS, "HO06"), also=STANDS),
    Shape("one_batch", "spirals.py", ("IN12", "IN16"), twin=False),
    Shape("backward_per_head", "heads.py", ("CE07",), twin=False),
    Shape("clipped_scaled", "heads.py", ("NU04", "NU05"), also=("NU05", *STANDS)),
    Shape("raw_timestamp", "heads.py", (*STANDS, "NU13"), also=(*STANDS, "NU13", "NU08")),
    Shape(
        "threads_pile_up", "listings.py", (*GROWS, "HO04", "CE11", "HO06"), also=("HO04", "HO06")
    ),
    Shape("sqlite_commits", "listings.py", HOST, timed=True),
    Shape("list_of_objects", "listings.py", GROWS, also=(*GROWS, *LOADER, "HO12")),
    Shape(
        "uneven_end",
        "shards.py",
        ("HC01", "CR12"),
        rank=None,
        also=("HC01", "CR12"),
        exit_code=130,
        hangs=True,
        twin=False,
    ),
    Shape("buffers_sent", "shards.py", ("CR06",), rank=None, also=("CR06",)),
)
"""Of kinds that no batch before had; marks and all before the first of them was run."""
TENTH = (
    Shape("jitter_by_pixel", "masks.py", LOADER, also=LOADER),
    Shape("counted_by_pixel", "masks.py", HOST, timed=True),
    Shape("copied_each_step", "masks.py", HOST, timed=True),
    Shape("sigmoid_twice", "masks.py", ("NU17", *STANDS, "NU13"), twin=False),
    Shape("empty_mask", "masks.py", ("NU01",), also=("NU03", "NU02")),
    Shape("windows_by_hand", "forecast.py", (*LOADER, "HO06"), also=LOADER, timed=True, twin=False),
    Shape("step_each_batch", "forecast.py", ("NU06",)),
    Shape("cleared_each_epoch", "forecast.py", ("NU11",), also=("NU02", "NU07", "NU03")),
    Shape("outputs_kept_too", "forecast.py", GROWS, also=(*GROWS, "HO12", "CE11")),
    Shape("collected_each_step", "forecast.py", ("HO03", "HO06"), also=("HO03", "HO06")),
    Shape("drawn_each_step", "forecast.py", HOST, timed=True),
    Shape("one_reports", "duo.py", ("CR04", "HO06"), rank=1, also=("CR04", "HO06"), timed=True),
    Shape("larger_on_one", "duo.py", ("CR15", "CR01", "CR02"), rank=1),
    Shape("objects_gathered", "duo.py", ("CR06", "HO06"), rank=None, also=("CR06", "HO06")),
    Shape("searched_in_vain", "duo.py", ("CR08",), rank=None, info=True, twin=False),
    Shape("one_reads_slowly", "duo.py", ("CR03", "CR04", "IN11"), rank=1, twin=False),
)
"""Masks, series and two ranks; marks and all before the first of them was run."""
ENDS = ("HC06", "HC09")
STOPS = ("HC01", "HC08")
TWELFTH = (
    Shape("scan_unpacked", "scans.py", LOADER, also=LOADER, timed=True, twin=False),
    Shape("patch_rejected", "scans.py", LOADER, also=LOADER, timed=True),
    Shape("no_lesion", "scans.py", ("NU01",), also=("NU02", "NU03")),
    Shape("windows", "scans.py", ("HO08", "HO06", "HO15"), also=("HO08", "HO06", "HO15")),
    Shape("spectra_by_frame", "voice.py", HOST, timed=True, twin=False),
    Shape("targets_longer", "voice.py", ("NU01",), also=("NU02", "NU03")),
    Shape("errors_by_hand", "voice.py", HOST, timed=True),
    Shape("device_polled", "voice.py", HOST, timed=True, twin=False),
    Shape("sampled_by_hand", "sage.py", HOST, timed=True, twin=False),
    Shape("subgraphs_kept", "sage.py", GROWS, also=(*GROWS, "HO12", "HO06"), twin=False),
    Shape("none_chosen", "sage.py", ("NU01",), also=("NU02", "NU03"), twin=False),
    Shape("rate_grows", "sage.py", NUMBERS, also=NUMBERS, twin=False),
    Shape("chat_laid_out", "instruct.py", HOST, timed=True),
    Shape("adapters_zero", "instruct.py", ("NU13", "NU08"), also=("NU13", "NU08"), twin=False),
    Shape("answers_cut", "instruct.py", ("NU01",), also=("NU02", "NU03"), twin=False),
    Shape("cleared_inside", "instruct.py", ("NU19",), twin=False),
    Shape("steps_skipped_by_norm", "instruct.py", ("NU05",), twin=False),
    Shape("optimizer_kept", "instruct.py", ("HO07",), also=("HO15", "HO06")),
    Shape("rays_cast", "arena.py", ("HO06", "HO15"), also=("HO15", "HO06"), timed=True),
    Shape("rollout_with_graph", "arena.py", GROWS, also=(*GROWS, "HO12", "HO03"), twin=False),
    Shape("advantage_flat", "arena.py", ("NU01",), also=("NU02", "NU03", "HC06"), exit_code=1),
    Shape("value_cut", "arena.py", ("NU08",), info=True, twin=False),
    Shape(
        "match_played",
        "arena.py",
        ("HO08", "HO06", "HO15"),
        also=("HO08", "HO06", "HO15"),
    ),
    Shape("elastic", "images_fit.py", LOADER, also=LOADER, timed=True, twin=False),
    Shape("metric_over_all", "images_fit.py", ("CE11", "HO06"), also=("CE11", "HO06", *GROWS)),
    Shape("grid_logged", "images_fit.py", HOST, also=("HO03",), timed=True),
    Shape("validated_often", "images_fit.py", ("HO08",), also=("HO15",), twin=False),
    Shape("worker_sleeps", "ends.py", ("HC02", "HC01"), also=STOPS, exit_code=130, hangs=True),
    Shape("worker_key", "ends.py", ENDS, also=ENDS, exit_code=1, twin=False),
    Shape("sizes_differ", "ends.py", ENDS, also=ENDS, exit_code=1, twin=False),
    Shape("label_range", "ends.py", ENDS, also=ENDS, exit_code=1, twin=False),
    Shape("lock_held", "ends.py", STOPS, also=STOPS, exit_code=130, hangs=True, twin=False),
    Shape("no_reply", "ends.py", STOPS, also=STOPS, exit_code=130, hangs=True, twin=False),
    Shape("nothing_queued", "ends.py", STOPS, also=STOPS, exit_code=130, hangs=True, twin=False),
    Shape("loops_for_ever", "ends.py", STOPS, also=STOPS, exit_code=130, hangs=True, twin=False),
    Shape("native_fault", "ends.py", ENDS, also=ENDS, exit_code=(139, -11), twin=False),
    Shape("exit_seven", "ends.py", ENDS, also=ENDS, exit_code=7, twin=False),
    Shape("key_missing", "ends.py", ENDS, also=ENDS, exit_code=1, twin=False),
    Shape("aborted", "ends.py", ENDS, also=ENDS, exit_code=(134, -6), twin=False),
    Shape("file_missing", "ends.py", ENDS, also=ENDS, exit_code=1, twin=False),
    Shape("backward_twice", "ends.py", ENDS, also=ENDS, exit_code=1, twin=False),
    Shape("rank2_reads", "quartet.py", ("IN11", "CR03", "CR04"), rank=2, also=LOADER, timed=True),
    Shape("rank1_longer", "quartet.py", ("CR15",), rank=1, twin=False),
    Shape(
        "rank2_stands",
        "quartet.py",
        STOPS,
        rank=2,
        also=STOPS,
        exit_code=130,
        hangs=True,
        twin=False,
    ),
    Shape("rank1_raises", "quartet.py", ENDS, rank=1, also=ENDS, exit_code=1, twin=False),
    Shape(
        "rank1_collects",
        "quartet.py",
        ("HO03", "CR04", "HO06"),
        rank=1,
        also=("HO03", "CR04", "HO06"),
        timed=True,
        twin=False,
    ),
    Shape("losses_summed", "quartet.py", ("CR06", "HO06"), rank=None, also=("CR06", "HO06")),
    Shape(
        "rank0_tests",
        "quartet.py",
        ("HO08", "CR04", "HO06", "HO15"),
        rank=0,
        also=("HO08", "CR04", "HO06", "HO15"),
    ),
    Shape(
        "sizes_part",
        "quartet.py",
        ("CR12", "HC06", "HC01", "HC11"),
        rank=None,
        also=("CR12", *ENDS, "HC01", "HC11"),
        exit_code=(1, 130),
        twin=False,
    ),
)
"""Scans, speech, graphs, chats, an arena, frameworks, ends and three ranks; marks and all before
the first of them was run.
"""
THIRTEENTH = (
    Shape("opened_anew", "corpus.py", LOADER, also=LOADER, timed=True, twin=False),
    Shape(
        "buffer_sorted",
        "corpus.py",
        (*LOADER, "CE11"),
        also=(*LOADER, "CE11"),
        timed=True,
        twin=False,
    ),
    Shape("looked_up_in_list", "corpus.py", LOADER, also=LOADER, timed=True),
    Shape("filled_up", "corpus.py", ("IN14",), twin=False),
    Shape("everything_masked", "corpus.py", ("NU01",), also=("NU02", "NU03"), twin=False),
    Shape("flushed", "loops.py", HOST, timed=True),
    Shape("histograms", "loops.py", HOST, timed=True, twin=False),
    Shape("profiled", "loops.py", ("HO16",), twin=False),
    Shape("best_each", "loops.py", HOST, timed=True, twin=False),
    Shape("norms_by_value", "loops.py", HOST, also=("HO03",), timed=True, twin=False),
    Shape(
        "penalty_kept", "loops.py", (*GROWS, "CE11", "CE07"), also=(*GROWS, "CE11", "CE07", "HO12")
    ),
    Shape("rate_zeroed", "loops.py", ("NU06",), twin=False),
    Shape("collator_checks", "bert.py", LOADER, also=LOADER, timed=True),
    Shape("callback_sends", "bert.py", HOST, timed=True, twin=False),
    Shape("evaluated_often", "bert.py", ("HO08",), also=("HO15",)),
    Shape("saved_often", "bert.py", ("HO07",), also=("HO15",), twin=False),
    Shape("rate_of_five", "bert.py", NUMBERS, also=NUMBERS, twin=False),
    Shape("one_layer_forgotten", "byhand.py", ("NU09",), rank=None),
    Shape(
        "pairs_on_one",
        "byhand.py",
        ("CR04", "HO06"),
        rank=1,
        also=("CR04", "HO06"),
        timed=True,
        twin=False,
    ),
    Shape("nan_on_one", "byhand.py", ("NU01",), rank=1, also=("NU02", "NU03", "NU10"), twin=False),
    Shape("weights_sent", "byhand.py", ("CR06", "HO06"), rank=None, also=("CR06", "HO06")),
    Shape(
        "one_dumps",
        "byhand.py",
        ("CR04", "HO06"),
        rank=0,
        also=("CR04", "HO06"),
        timed=True,
        twin=False,
    ),
    Shape(
        "one_is_killed", "byhand.py", ENDS, rank=1, also=ENDS, exit_code=(1, 137, 9, -9), twin=False
    ),
    Shape(
        "leaves_early",
        "byhand.py",
        ("HC01", "HC06", "HC11"),
        rank=1,
        also=("HC01", "HC11", *ENDS, "CR12"),
        exit_code=(1, 130),
        twin=False,
    ),
    Shape(
        "other_operation",
        "byhand.py",
        ("CR12", "HC01", "HC06", "HC11"),
        rank=0,
        also=("CR12", "HC01", "HC11", *ENDS),
        exit_code=130,
        hangs=True,
        twin=False,
    ),
)
"""A stream, callbacks of one's own, the Trainer of transformers, ranks averaged by hand; marks and
all before the first of them was run.
"""
FOURTEENTH = (
    Shape("digests", "hybrid.py", HOST, timed=True, twin=False),
    Shape("patterns_anew", "hybrid.py", HOST, timed=True, twin=False),
    Shape("pairs_ranked", "hybrid.py", HOST, timed=True),
    Shape("log_sent", "hybrid.py", HOST, timed=True),
    Shape(
        "embeddings_cached", "hybrid.py", GROWS, also=(*GROWS, "HO12", "HO06", "HO03"), twin=False
    ),
    Shape("linear_ends", "hybrid.py", ("NU06",), twin=False),
    Shape("exploded", "hybrid.py", ("NU02", "NU03"), also=NUMBERS, twin=False),
    Shape("one_augments", "shards2.py", ("IN11", "CR03"), rank=1, also=LOADER, timed=True),
    Shape("loader_of_one_fails", "shards2.py", ENDS, rank=1, also=ENDS, exit_code=1, twin=False),
    Shape("norms_by_hand", "shards2.py", ("CR06", "HO06"), rank=None, also=("CR06", "HO06")),
    Shape("nan_of_one", "shards2.py", ("NU01",), rank=1, also=("NU02", "NU03", "NU10"), twin=False),
    Shape(
        "locked",
        "shards2.py",
        ("CR04", "HO06"),
        rank=0,
        also=("CR04", "HO06"),
        timed=True,
        twin=False,
    ),
    Shape(
        "stuck_reading",
        "shards2.py",
        STOPS,
        rank=0,
        also=STOPS,
        exit_code=130,
        hangs=True,
        twin=False,
    ),
)
"""Texts and two ranks; marks and all before the first of them was run."""
FIFTEENTH = (
    Shape("rows_parsed", "ledger.py", LOADER, also=LOADER),
    Shape("history_sent", "ledger.py", ("IN10", *LOADER), also=("IN10", *LOADER), twin=False),
    Shape("table_grows", "ledger.py", ("CE11", "HO06"), also=("CE11", "HO06"), twin=False),
    Shape("debug_formatted", "ledger.py", HOST, timed=True, twin=False),
    Shape("amount_logged", "ledger.py", ("NU01",), also=("NU02", "NU03")),
    Shape("stopped_early", "ledger.py", ENDS, also=ENDS, exit_code=3),
    Shape(
        "points_marched",
        "surface.py",
        ("HO06", *LOADER),
        also=("HO06", *LOADER),
        timed=True,
        twin=False,
    ),
    Shape(
        "octree_rebuilt",
        "surface.py",
        ("HO03", "HO06"),
        also=("HO03", "HO06"),
        timed=True,
        twin=False,
    ),
    Shape("mesh_written", "surface.py", HOST, timed=True, twin=False),
    Shape(
        "average_roundtrip",
        "surface.py",
        ("HO06", "HO07"),
        also=("HO06", "HO07", "HO15"),
        twin=False,
    ),
    Shape("reports_kept", "surface.py", GROWS, also=(*GROWS, "HO12", "CE11")),
    Shape("plateau_each_step", "surface.py", ("NU06",)),
    Shape(
        "pool_waits",
        "surface.py",
        STOPS,
        also=STOPS,
        exit_code=130,
        hangs=True,
        twin=False,
    ),
    Shape("two_opt", "routes.py", HOST, timed=True),
    Shape("masked_entropy", "routes.py", ("NU01",), also=("NU02", "NU03", *ENDS), exit_code=1),
    Shape(
        "maker_dies",
        "routes.py",
        (*STOPS, "HC10"),
        also=(*STOPS, "HC10"),
        exit_code=130,
        hangs=True,
    ),
    Shape("watcher_spins", "routes.py", ("HO04",), also=("HO04", "HO06")),
    Shape("traced_memory", "recipes.py", ("HO16",)),
    Shape("weights_bf16", "recipes.py", ("NU12",), also=("NU12", "NU07"), twin=False),
    Shape("body_rate_zero", "recipes.py", ("NU06",), twin=False),
    Shape("other_cleared", "recipes.py", ("NU11",), also=("NU02", "NU03", "NU07"), twin=False),
    Shape("written_by_hand", "recipes.py", ("HO06", "HO07"), also=("HO06", "HO07"), timed=True),
    Shape("schedule_read", "recipes.py", HOST, timed=True),
    Shape(
        "rank0_draws",
        "tiles.py",
        ("CR04", "HO06"),
        rank=0,
        also=("CR04", "HO06"),
        timed=True,
        twin=False,
    ),
    Shape("probe_on_one", "tiles.py", ("CR02", "HO17"), rank=1, also=("CR02", "HO17"), timed=True),
    Shape(
        "averages_agreed",
        "tiles.py",
        ("CR06", "HO06"),
        rank=None,
        also=("CR06", "HO06"),
        twin=False,
    ),
    Shape("empty_tile", "tiles.py", ("NU01",), rank=2, also=("NU02", "NU03", "NU10")),
    Shape(
        "rank1_sent_away",
        "tiles.py",
        ENDS,
        rank=1,
        also=ENDS,
        exit_code=(1, 143, 15, -15),
        twin=False,
    ),
    Shape("sampler_forgotten", "tiles.py", ("IN12",), rank=None, twin=False),
    Shape(
        "lock_across",
        "tiles.py",
        (*STOPS, "HC11"),
        rank=1,
        also=(*STOPS, "HC11"),
        exit_code=130,
        hangs=True,
        twin=False,
    ),
    Shape(
        "gathered_by_rows",
        "siamese.py",
        ("CR06", "HO06"),
        rank=None,
        also=("CR06", "HO06"),
        twin=False,
    ),
    Shape("network_of_one", "siamese.py", ("IN11", "CR03"), rank=1, also=("IN11", "CR03", *LOADER)),
    Shape(
        "row_of_zeros",
        "siamese.py",
        ("NU01",),
        rank=0,
        also=("NU02", "NU03", "NU10"),
    ),
    Shape("bounds_of_one", "siamese.py", ("NU09",), rank=None, also=("NU09", "NU10")),
    Shape(
        "leaves_with_three",
        "siamese.py",
        (*ENDS, "HC11"),
        rank=1,
        also=(*ENDS, "HC01", "HC11"),
        exit_code=(1, 3),
        twin=False,
    ),
    Shape(
        "threads_of_eight",
        "siamese.py",
        ("HO14", "IN04"),
        rank=None,
        also=("HO14", "IN04"),
        twin=False,
    ),
    Shape("teacher_reread", "keywords.py", HOST, also=("HO06", "HO07"), timed=True, twin=False),
    Shape(
        "wrapped_again",
        "keywords.py",
        ("CE11", "HO06", "HO17"),
        also=("CE11", "HO06", "HO17"),
    ),
    Shape("outputs_shown", "keywords.py", GROWS, also=(*GROWS, "HO12")),
    Shape("features_cut", "keywords.py", ("NU08",), also=("NU08", "NU13"), twin=False),
    Shape("left_in_eval", "keywords.py", ("NU14",)),
)
"""A ledger, a surface, tours, recipes, tiles, two views and keywords, each in another hand; marks
and all before the first of them was run under gputop.
"""
SIXTEENTH = (
    Shape(
        "middle_counts",
        "relays.py",
        ("CR04", "HO06"),
        rank=1,
        also=("CR04", "HO06"),
        timed=True,
    ),
    Shape("rows_sent", "relays.py", ("CR06", "HO06"), rank=None, also=("CR06", "HO06"), twin=False),
    Shape("masked_whole", "relays.py", ("NU01",), rank=2, also=("NU02", "NU03", "NU10")),
    Shape("activations_kept", "relays.py", GROWS, also=(*GROWS, "HO12", "HO03"), twin=False),
    Shape(
        "stage_killed", "relays.py", ENDS, rank=1, also=ENDS, exit_code=(1, 137, 9, -9), twin=False
    ),
    Shape(
        "last_waits",
        "relays.py",
        STOPS,
        rank=2,
        also=STOPS,
        exit_code=130,
        hangs=True,
        twin=False,
    ),
    Shape("sync_kept", "essays.py", ("CR07",), rank=None, also=("CR06",)),
    Shape(
        "rank1_tokenises",
        "essays.py",
        ("IN11", "CR03"),
        rank=1,
        also=("IN11", "CR03", *LOADER),
        timed=True,
    ),
    Shape(
        "average_on_one",
        "essays.py",
        ("CR04", "HO06"),
        rank=0,
        also=("CR04", "HO06", "HO12"),
        timed=True,
        twin=False,
    ),
    Shape("late_layer", "essays.py", ("NU09",), rank=None, also=("NU09", "NU10")),
    Shape("rank1_disk", "essays.py", ENDS, rank=1, also=ENDS, exit_code=1, twin=False),
    Shape(
        "site_unpacks",
        "clinics.py",
        ("IN11", "CR03"),
        rank=2,
        also=("IN11", "CR03", *LOADER),
        timed=True,
    ),
    Shape("longer_histories", "clinics.py", ("CR15", "CR01", "CR02"), rank=1),
    Shape(
        "server_masks",
        "clinics.py",
        ("CR04", "HO06"),
        rank=0,
        also=("CR04", "HO06"),
        timed=True,
        twin=False,
    ),
    Shape("constant_column", "clinics.py", ("NU01",), rank=2, also=("NU02", "NU03", "NU10")),
    Shape(
        "barrier_of_one",
        "clinics.py",
        ("CR12", "HC01", "HC11"),
        rank=2,
        also=("CR12", "HC01", "HC11", *ENDS),
        exit_code=130,
        hangs=True,
        twin=False,
    ),
    Shape(
        "site_stops",
        "clinics.py",
        ("HC01", "HC06", "HC11"),
        rank=1,
        also=("HC01", "HC11", *ENDS, "CR12"),
        exit_code=(1, 130),
        twin=False,
    ),
    Shape("priorities_summed", "offline.py", HOST, also=("HO06", "HO03"), timed=True, twin=False),
    Shape("exp_by_hand", "offline.py", ("NU01",), also=("NU02", "NU03")),
    Shape("alpha_loaded", "offline.py", ("NU08", "NU11"), also=("NU08", "NU11")),
    Shape("policy_cut", "offline.py", ("NU08", "NU13"), also=("NU08", "NU13"), twin=False),
    Shape("quantiles_of_all", "offline.py", ("CE11", "HO06"), also=("CE11", "HO06"), twin=False),
    Shape("budget_spent", "offline.py", ENDS, also=ENDS, exit_code=4),
    Shape("errors_by_row", "orbits.py", ("HO17", "HO06"), also=("HO17", "HO06"), timed=True),
    Shape("tolerance_tightens", "orbits.py", ("CE11",)),
    Shape("paths_kept", "orbits.py", GROWS, also=(*GROWS, "HO12", "HO03", "CE11"), twin=False),
    Shape(
        "never_accepted",
        "orbits.py",
        STOPS,
        also=STOPS,
        exit_code=130,
        hangs=True,
    ),
    Shape("energy_in_half", "orbits.py", ("NU01",), also=("NU02", "NU03")),
    Shape("cycle_over", "orbits.py", ENDS, also=ENDS, exit_code=1, twin=False),
    Shape("labels_fetched", "labels.py", LOADER, also=LOADER, timed=True),
    Shape(
        "scored_often",
        "labels.py",
        ("HO08", "HO06", "HO15"),
        also=("HO08", "HO06", "HO15"),
        twin=False,
    ),
    Shape(
        "centres_by_hand",
        "labels.py",
        ("HO06", "HO15"),
        also=("HO06", "HO15"),
        timed=True,
        twin=False,
    ),
    Shape("scored_in_eval", "labels.py", ("NU14",), twin=False),
    Shape("head_widened", "labels.py", ("NU08", "NU11"), also=("NU08", "NU11", "NU02", "NU03")),
    Shape(
        "annotator_joined",
        "labels.py",
        STOPS,
        also=STOPS,
        exit_code=130,
        hangs=True,
    ),
    Shape("acceptance_counted", "drafts.py", HOST, timed=True, twin=False),
    Shape("prefixes_kept", "drafts.py", GROWS, also=(*GROWS, "HO12", "HO03")),
    Shape("temperature_changes", "drafts.py", ("HO09",), also=("CE10", "HO10", "HO15")),
    Shape("empty_text", "drafts.py", ("NU01",), also=("NU02", "NU03")),
    Shape("watchdog_fires", "drafts.py", ENDS, also=ENDS, exit_code=(142, -14, 14)),
    Shape("seed_each_step", "drafts.py", ("IN16", "IN12"), also=("IN16", "IN12"), twin=False),
    Shape(
        "sampler_weighs",
        "towers.py",
        ("IN05", "IN15", *LOADER),
        also=("IN05", "IN15", *LOADER, "HO15"),
        twin=False,
    ),
    Shape(
        "centres_anew",
        "towers.py",
        ("HO06", "HO15"),
        also=("HO06", "HO15"),
        timed=True,
        twin=False,
    ),
    Shape("counter_locked", "towers.py", ("HO04", "HO06"), also=("HO04", "HO06")),
    Shape(
        "vectors_written",
        "towers.py",
        ("HO06", "HO07"),
        also=("HO06", "HO07", "HO12"),
        timed=True,
    ),
)
"""Stages by hand, essays, clinics, recorded transitions, orbits, rounds of labelling, drafts and
two towers, each in another hand; marks and all before the first of them was run under gputop.
"""
SEVENTEENTH_B = (
    Shape("caller_looked_up", "rovers.py", HOST, timed=True, twin=False),
    Shape(
        "generators_made",
        "rovers.py",
        ("HO06", "HO15"),
        also=("HO06", "HO15"),
        timed=True,
        twin=False,
    ),
    Shape("rows_from_rollout", "rovers.py", LOADER, also=LOADER),
    Shape("clip_bounds_swapped", "rovers.py", ("NU13",), also=("NU13", "NU08")),
    Shape("atanh_of_one", "rovers.py", ("NU01",), also=("NU02", "NU03", *ENDS), exit_code=1),
    Shape("frames_kept", "rovers.py", GROWS, also=(*GROWS, "HO12"), twin=False),
    Shape("remote_gone", "rovers.py", STOPS, also=STOPS, exit_code=130, hangs=True),
    Shape("anchors_each_access", "parcels.py", HOST, timed=True, twin=False),
    Shape("suppressed_by_pairs", "parcels.py", ("HO17", "HO06"), also=("HO17", "HO06"), timed=True),
    Shape("tensor_of_arrays", "parcels.py", LOADER, also=LOADER, timed=True),
    Shape("objects_as_dicts", "parcels.py", ("IN10", *LOADER), also=("IN10", *LOADER)),
    Shape("overlap_rewrapped", "parcels.py", ("NU08",), also=("NU08", "NU13")),
    Shape("boxes_in_pixels", "parcels.py", ("NU02", "NU03"), also=("NU02", "NU03", "NU07")),
    Shape("crops_are_views", "parcels.py", GROWS, also=(*GROWS, "HO12")),
    Shape("sorted_chunks", "counsel.py", ("CR15",), rank=3),
    Shape("long_in_turn", "counsel.py", ("CR05",), rank=None, also=("CR05", "CR15")),
    Shape("norms_summed_singly", "counsel.py", ("CR06", "HO06"), rank=None, also=("CR06", "HO06")),
    Shape("clipped_on_one", "counsel.py", ("NU09",), rank=None, also=("NU09", "NU10")),
    Shape(
        "skips_alone",
        "counsel.py",
        ("CR12", "HC01", "HC11", *ENDS),
        rank=1,
        also=("CR12", "HC01", "HC11", *ENDS),
        exit_code=(1, 250),
    ),
    Shape("past_positions", "counsel.py", ENDS, rank=2, also=ENDS, exit_code=1),
)
"""Rovers, parcels and letters, each in another hand; marks and all before the first of them was run
under gputop.
"""
SEVENTEENTH_A = (
    Shape("caller_named", "novels.py", HOST, timed=True, twin=False),
    Shape("best_fit_scan", "novels.py", LOADER, also=LOADER, timed=True, twin=False),
    Shape("errors_kept", "novels.py", GROWS, also=(*GROWS, "HO12", "HO03")),
    Shape(
        "restored_by_name",
        "novels.py",
        ("NU02", "NU03", "NU07", "NU01"),
        also=("NU02", "NU03", "NU07", "NU01"),
    ),
    Shape("blocks_listed", "novels.py", ("NU08",), also=("NU08", "NU11"), twin=False),
    Shape(
        "packer_unread",
        "novels.py",
        STOPS,
        also=STOPS,
        exit_code=130,
        hangs=True,
    ),
    Shape("grad_left_off", "novels.py", ENDS, also=ENDS, exit_code=1),
    Shape("summed_in_pieces", "herbarium.py", ("CR06",), rank=None, also=("CR06", "CE07")),
    Shape(
        "sizes_drawn_apart",
        "herbarium.py",
        ("CR05",),
        rank=None,
        also=("CR05", "CR06", "CR15"),
    ),
    Shape("one_recomputes", "herbarium.py", ("CR01",), rank=1, also=("CR01", "CE07")),
    Shape(
        "bound_together",
        "herbarium.py",
        ("IN04", "HO14"),
        rank=None,
        also=("IN04", "HO14", "CR05", "CR06"),
    ),
    Shape("average_left_in", "herbarium.py", ("NU09",), rank=None, also=("NU09", "NU10")),
    Shape(
        "unequal_validation",
        "herbarium.py",
        ("CR12", "HC01", "HC11"),
        rank=None,
        also=("CR12", "HC01", "HC11", *ENDS),
        exit_code=130,
        hangs=True,
    ),
    Shape("mixup_in_half", "herbarium.py", ("NU01",), rank=1, also=("NU02", "NU03")),
    Shape("scaled_by_past", "pumps.py", LOADER, also=(*LOADER, "IN04")),
    Shape("archive_unpacked", "pumps.py", ("IN06", *LOADER), also=("IN06", *LOADER)),
    Shape("settings_reread", "pumps.py", HOST, timed=True, twin=False),
    Shape("pages_written", "pumps.py", ("ME05",), also=(*GROWS, "HO12")),
    Shape("file_cut", "pumps.py", ENDS, also=ENDS, exit_code=1),
    Shape("cosh_too_large", "pumps.py", ("NU01",), also=("NU02", "NU03")),
    Shape("sigmoid_too_low", "pumps.py", ("NU13",), also=("NU13", "NU07")),
)
"""Packed novels, a herbarium on two ranks and pumps that are listened to; marks and all before the
first of them was run under gputop.
"""
EIGHTEENTH_A = (
    Shape("noise_permuted", "jingles.py", LOADER, also=LOADER, timed=True),
    Shape("state_as_dict", "jingles.py", HOST, also=("HO06", "HO03"), timed=True),
    Shape("lambdas_bind_late", "jingles.py", ("NU06",)),
    Shape("smoothed_over_masked", "jingles.py", ("NU01",), also=("NU02", "NU03")),
    Shape("cycles_uncollected", "jingles.py", GROWS, also=(*GROWS, "HO12")),
    Shape("mask_wider_than_clip", "jingles.py", ENDS, also=ENDS, exit_code=1),
    Shape(
        "anomaly_on_one",
        "proverbs.py",
        ("HO16", "CR01", "CR02"),
        rank=1,
        also=("HO16", "CR01", "CR02"),
    ),
    Shape("no_sync_backward_only", "proverbs.py", ("CR07",), rank=None, also=("CR06",)),
    Shape(
        "keys_of_own_labels",
        "proverbs.py",
        ("CR12", "HC01", "HC11", *ENDS),
        rank=None,
        also=("CR12", "HC01", "HC11", *ENDS),
        exit_code=(1, 134, 250, -6),
    ),
    Shape("rank_read_early", "proverbs.py", ("IN12",), rank=None),
    Shape("loaded_after_wrap", "proverbs.py", ("NU09",), rank=None, also=("NU09", "NU10")),
    Shape("spread_by_fractions", "foragers.py", HOST, timed=True),
    Shape("messages_wait", "foragers.py", GROWS, also=(*GROWS, "HO12", "HO03")),
    Shape("best_copied_back", "foragers.py", ("NU08", "NU11"), also=("NU08", "NU11")),
    Shape(
        "acos_of_masked",
        "foragers.py",
        ("NU01",),
        also=("NU02", "NU03", *ENDS),
        exit_code=1,
    ),
    Shape(
        "writer_closed_early",
        "foragers.py",
        STOPS,
        also=STOPS,
        exit_code=130,
        hangs=True,
    ),
    Shape("files_left_open", "foragers.py", ("IN13", *ENDS), also=("IN13", *ENDS), exit_code=1),
)
"""Jingles named by ear, sayings compared on two ranks and foragers, each in another hand; marks and
all before the first of them was run under gputop.
"""
EIGHTEENTH_B = (
    Shape("length_from_shards", "bazaar.py", HOST, timed=True),
    Shape("scanned_for_visitor", "bazaar.py", LOADER, also=(*LOADER, "IN04")),
    Shape(
        "deck_shuffled_anew",
        "bazaar.py",
        ("IN15", "IN01", "IN02", "HO06"),
        also=("IN15", *LOADER, "HO06"),
        timed=True,
    ),
    Shape("softmax_over_one", "bazaar.py", ("NU13",), also=("NU13", "NU07")),
    Shape("plateau_upside_down", "bazaar.py", ("NU06",), also=("NU06", "NU07")),
    Shape("rings_uncollected", "bazaar.py", GROWS, also=(*GROWS, "HO12")),
    Shape("mined_of_mined", "bazaar.py", ENDS, also=ENDS, exit_code=1),
    Shape("aged_before_cut", "postcards.py", LOADER, also=LOADER, timed=True),
    Shape(
        "packed_by_lzma",
        "postcards.py",
        ("HO07", "HO06", "HO15"),
        also=("HO07", "HO06", "HO15"),
        timed=True,
        twin=False,
    ),
    Shape(
        "waves_by_float",
        "postcards.py",
        ("HO17", "HO06"),
        also=("HO17", "HO06"),
        timed=True,
        twin=False,
    ),
    Shape("handler_without_target", "postcards.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "burnt_patch_divided",
        "postcards.py",
        ("NU02", "NU03"),
        also=("NU02", "NU03", "NU07"),
    ),
    Shape("reentrant_stage", "postcards.py", ("NU08",), also=("NU08", "NU07")),
    Shape("depth_redrawn", "postcards.py", ENDS, also=ENDS, exit_code=1),
    Shape("owners_in_turn", "almanac.py", ("CR04",), rank=1, also=("CR04", "HO06")),
    Shape(
        "loops_drawn_apart",
        "almanac.py",
        ("CR05",),
        rank=None,
        also=("CR05", "CR06"),
    ),
    Shape("owner_zero_unsent", "almanac.py", ("NU09",), rank=None, also=("NU09", "NU10")),
    Shape("shard_still_packed", "almanac.py", ("NU10",), rank=2, also=("NU10",)),
    Shape("local_rank_missing", "almanac.py", ("IN12",), rank=None, also=("IN12", "RE03")),
    Shape(
        "notified_before",
        "almanac.py",
        ("HC01", "HC11"),
        rank=0,
        also=("HC01", "HC11", *ENDS),
        exit_code=130,
        hangs=True,
        twin=False,
    ),
    Shape("sorted_as_text", "almanac.py", ENDS, rank=0, also=ENDS, exit_code=1, twin=False),
)
"""A bazaar, postcards and an almanac on two or three ranks; marks and all before the first of them
was run under gputop.
"""
NINETEENTH_C = (
    Shape("read_to_line", "glossary.py", LOADER, also=LOADER, timed=True),
    Shape("options_resolved", "glossary.py", HOST, also=("HO06", "HO03"), timed=True),
    Shape("buckets_by_words", "glossary.py", ("IN14",)),
    Shape("rate_compounds", "glossary.py", ("NU06",)),
    Shape(
        "named_spent",
        "glossary.py",
        ("NU08", "NU11"),
        also=("NU08", "NU11", "NU03", "NU07"),
    ),
    Shape("contexts_pile_up", "glossary.py", GROWS, also=(*GROWS, "HO12")),
    Shape("references_run_out", "glossary.py", ENDS, also=ENDS, exit_code=1),
    Shape(
        "annotated_deepcopied",
        "museum.py",
        ("IN11", "CR03"),
        rank=1,
        also=("IN11", "CR03", *LOADER, "HO03"),
        timed=True,
    ),
    Shape("stride_without_rank", "museum.py", ("IN12",), rank=None),
    Shape(
        "hardest_picked_by_one",
        "museum.py",
        ("CR04", "HO06"),
        also=("CR04", "HO06"),
        timed=True,
    ),
    Shape("queue_broadcast", "museum.py", ("CR06", "HO06"), rank=None, also=("CR06", "HO06")),
    Shape("leftover_unsynced", "museum.py", ("NU09",), rank=None, also=("NU09", "NU10")),
    Shape(
        "each_sends_first",
        "museum.py",
        ("HC01", "HC11"),
        rank=None,
        also=("HC01", "HC11", "CR12", *ENDS),
        exit_code=130,
        hangs=True,
    ),
)
"""A glossary and a museum; marks and all before the first of them was run under gputop."""
TWENTIETH_A = (
    Shape("stamps_parsed", "households.py", ("IN01", "IN03"), also=("IN01", "IN03"), timed=True),
    Shape("spread_of_history", "households.py", HOST, timed=True),
    Shape("factors_looked_up", "households.py", ("ME05",), also=("ME05", "HO12")),
    Shape("gaps_weighed", "households.py", ("NU01",), also=("NU01", "NU02", "NU03", "NU07")),
    Shape("row_left_over", "households.py", ENDS, also=ENDS, exit_code=1),
    Shape("days_rolled_out", "households.py", ("HO08", "HO15"), also=("HO08", "HO15"), timed=True),
    Shape("draws_seeded", "households.py", ("RE05",), also=("RE05",)),
    Shape("plate_converted", "photographs.py", LOADER, also=(*LOADER, "HO12"), timed=True),
    Shape(
        "norms_counted",
        "photographs.py",
        ("HO08", "HO06", "HO15"),
        also=("HO08", "HO06", "HO15"),
        timed=True,
    ),
    Shape("thawed_unlisted", "photographs.py", ("NU08", "NU11"), also=("NU08", "NU11")),
    Shape("worst_not_cut", "photographs.py", GROWS, also=(*GROWS, "HO12", "CE11")),
    Shape(
        "correlation_of_black",
        "photographs.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("pruned_under_lock", "photographs.py", STOPS, also=STOPS, exit_code=130, hangs=True),
    Shape("weights_from_validation", "photographs.py", ENDS, also=ENDS, exit_code=1),
)
"""Households and photographs; marks and all before the first of them was run under gputop."""
TWENTIETH_B = (
    Shape("lists_by_mask", "searches.py", LOADER, rank=None, also=LOADER, timed=True),
    Shape("one_in_its_list", "searches.py", ("NU01",), rank=1, also=("NU01", "NU03", "NU10")),
    Shape("rest_of_one", "searches.py", ENDS, rank=None, also=ENDS, exit_code=1),
    Shape("tried_one_by_one", "searches.py", ("HO08",), rank=None, also=("HO08", "HO15")),
    Shape("mode_of_one", "searches.py", ("NU14",), rank=1),
    Shape("taken_back_by_one", "searches.py", ("NU09",), rank=None, also=("NU09", "NU10")),
    Shape("rate_of_a_share", "searches.py", ("NU06",), rank=None, also=("NU06", "NU07")),
    Shape("arrays_in_a_list", "offers.py", LOADER, rank=None, also=LOADER, timed=True),
    Shape("message_each", "offers.py", ("CR06",), rank=None),
    Shape("placed_in_order", "offers.py", ("CR01", "CR02"), also=("CR01", "CR02", "CR15")),
    Shape("norm_of_ones_own", "offers.py", ("NU09",), rank=None, also=("NU09", "NU10")),
    Shape("handles_kept", "offers.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape("unseen_exchange", "offers.py", ("NU08",), rank=None),
    Shape(
        "saved_by_the_first",
        "offers.py",
        ("HC01", "HC11"),
        rank=None,
        also=("HC01", "HC11", "CR12", *ENDS),
        exit_code=130,
        hangs=True,
    ),
)
"""Searches and offers on two ranks; marks and all before the first of them was run under gputop."""
TWENTIETH_C = (
    Shape("vocabulary_whole", "gazette.py", LOADER, also=LOADER, timed=True),
    Shape("weights_recounted", "gazette.py", HOST, timed=True),
    Shape("futures_kept", "gazette.py", GROWS, also=GROWS),
    Shape("patience_reads_last", "gazette.py", ENDS, also=ENDS, exit_code=1),
    Shape("kind_absent", "gazette.py", ("NU01",), also=("NU01", "NU02", "NU03")),
    Shape("cosine_cycles", "gazette.py", ("NU15",)),
    Shape("furnished_late", "gazette.py", ("NU08",)),
    Shape("labels_scanned", "sigils.py", LOADER, also=LOADER, timed=True),
    Shape("totals_sent_back", "sigils.py", ("CE07",), timed=True),
    Shape("adapted_kept", "sigils.py", GROWS, also=GROWS),
    Shape("rates_in_dict", "sigils.py", ("NU08",)),
    Shape("blank_scan", "sigils.py", ("NU01",), also=("NU01", "NU02", "NU03")),
    Shape("kind_too_rare", "sigils.py", ENDS, also=ENDS, exit_code=1),
    Shape("tried_in_place", "sigils.py", ("NU02",), also=("NU02", "NU03")),
)
"""A gazette and sigils; marks and all before the first of them was run under gputop."""
TWENTYFIRST_A = (
    Shape("images_of_all", "conformers.py", LOADER, also=LOADER, timed=True),
    Shape("keyed_by_tensor", "conformers.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "graph_of_gradients",
        "conformers.py",
        (*GROWS, "CE07"),
        also=(*GROWS, "CE07", "HO12", "HO03"),
    ),
    Shape("norms_frozen", "conformers.py", ("NU14",)),
    Shape("energies_with_graph", "conformers.py", ("ME10",), info=True),
    Shape("memory_in_full", "conformers.py", HOST, timed=True),
    Shape("last_of_one", "conformers.py", ENDS, also=ENDS, exit_code=1),
    Shape(
        "episodes_stacked",
        "dreams.py",
        ("HO06", "CE11"),
        also=("HO06", "CE11", "HO12"),
        timed=True,
    ),
    Shape("resets_by_row", "dreams.py", ("HO17",), timed=True),
    Shape("free_nats_of_each", "dreams.py", ("NU13",)),
    Shape("info_links_back", "dreams.py", GROWS, also=(*GROWS, "HO12")),
    Shape("acting_seeded", "dreams.py", ("RE05",)),
    Shape(
        "rate_falls_on",
        "dreams.py",
        ("NU07", "NU03", "NU02", "NU01"),
        also=("NU07", "NU03", "NU02", "NU01"),
    ),
    Shape("short_episode", "dreams.py", ENDS, also=ENDS, exit_code=1),
)
"""Conformers and dreams; marks and all before any of them was run under gputop."""
TWENTYFIRST_B = (
    Shape("placed_in_turn", "harbours.py", ("HO17",), rank=None, timed=True),
    Shape(
        "averaged_again",
        "harbours.py",
        ("CR06", "HO06"),
        rank=None,
        also=("CR06", "HO06"),
        timed=True,
    ),
    Shape("balanced_by_own", "harbours.py", ("NU09",), rank=None),
    Shape(
        "gates_over_kept",
        "harbours.py",
        ("NU01",),
        rank=None,
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("works_kept", "harbours.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape("total_shared_out_twice", "harbours.py", ("NU06",), rank=None),
    Shape(
        "broken_skipped_alone",
        "harbours.py",
        ("HC01", "HC11"),
        rank=None,
        also=("HC01", "HC11", "CR12", *ENDS),
        exit_code=130,
        hangs=True,
    ),
    Shape("features_forgotten", "vineyards.py", LOADER, also=LOADER, timed=True),
    Shape("all_rated_each_step", "vineyards.py", HOST, timed=True),
    Shape("worst_by_default", "vineyards.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "spread_by_squares",
        "vineyards.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape(
        "optimizer_of_first_fold",
        "vineyards.py",
        ("NU08", "NU11"),
        also=("NU08", "NU11", "NU03", "NU07"),
    ),
    Shape("rate_by_all_steps", "vineyards.py", ("NU06",), also=("NU06", "NU07")),
    Shape("fold_without_batches", "vineyards.py", ENDS, also=ENDS, exit_code=1),
)
"""Harbours and vineyards; marks and all before any of it was run under gputop."""
TWENTYSECOND_A = (
    Shape("patterns_outgrow_cache", "claims.py", LOADER, also=LOADER, timed=True),
    Shape("premium_in_decimals", "claims.py", HOST, timed=True),
    Shape("worst_rows_are_views", "claims.py", GROWS, also=(*GROWS, "HO12")),
    Shape("nothing_paid_logged", "claims.py", ("NU01",)),
    Shape("back_before_train", "claims.py", ("NU14",)),
    Shape("lambda_in_checkpoint", "claims.py", ENDS, also=ENDS, exit_code=1),
    Shape(
        "concordance_by_pairs",
        "claims.py",
        ("HO08", "HO06", "HO15"),
        also=("HO08", "HO06", "HO15"),
        timed=True,
    ),
    Shape("recropped_until_ripe", "orchards.py", LOADER, rank=None, also=LOADER, timed=True),
    Shape("probabilities_gathered", "orchards.py", ("CR06",), rank=None, also=("CR06", "HO06")),
    Shape("cached_by_light", "orchards.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape("plateau_of_own", "orchards.py", ("NU09",), rank=None),
    Shape(
        "absent_kind_weighed",
        "orchards.py",
        ("NU01",),
        rank=None,
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("dropped_alike", "orchards.py", ("RE03",), rank=None, info=True),
    Shape("best_called_by_own", "orchards.py", ENDS, rank=1, also=ENDS, exit_code=1),
)
"""Claims and orchards; marks and all before any of it was run under gputop."""
TWENTYSECOND_B = (
    Shape("pool_cut_by_slices", "lodgers.py", LOADER, also=LOADER, timed=True),
    Shape(
        "rows_count_alike",
        "lodgers.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("both_begin_at_zero", "lodgers.py", ("NU13",)),
    Shape("talk_outgrows_places", "lodgers.py", ENDS, also=ENDS, exit_code=1),
    Shape(
        "state_written_whole",
        "lodgers.py",
        ("HO06", "CE11"),
        also=("HO06", "CE11"),
        timed=True,
    ),
    Shape("mask_place_by_place", "lodgers.py", ("HO17",), timed=True),
    Shape("noise_seeded", "lodgers.py", ("RE05",)),
    Shape(
        "files_kept_for_one",
        "currents.py",
        ("IN11", "CR03"),
        rank=1,
        also=("IN11", "CR03", "IN02", "IN01"),
        timed=True,
    ),
    Shape("frames_as_text", "currents.py", ("CR04", "HO06"), also=("CR04", "HO06"), timed=True),
    Shape(
        "statistics_one_by_one",
        "currents.py",
        ("CR06", "HO06"),
        rank=None,
        also=("CR06", "HO06"),
        timed=True,
    ),
    Shape("totals_keep_graph", "currents.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape(
        "root_of_still_water",
        "currents.py",
        ("NU01",),
        rank=None,
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("seeded_before_build", "currents.py", ("NU09",), rank=None),
    Shape(
        "gathered_by_first",
        "currents.py",
        ("HC01", "HC11"),
        rank=None,
        also=("HC01", "HC11", "CR12", *ENDS),
        exit_code=130,
        hangs=True,
    ),
)
"""Lodgers and currents; marks and all before any of it was run under gputop."""
TWENTYTHIRD_P = (
    Shape("reference_fitted_each", "biopsies.py", LOADER, also=LOADER, timed=True),
    Shape(
        "interval_each_time",
        "biopsies.py",
        ("HO08", "HO06", "HO15"),
        also=("HO08", "HO06", "HO15"),
        timed=True,
    ),
    Shape("history_of_tile", "biopsies.py", GROWS, also=GROWS),
    Shape("flipped_view", "biopsies.py", ENDS, also=ENDS, exit_code=1),
    Shape(
        "power_of_dark",
        "biopsies.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape(
        "raw_ungrouped",
        "biopsies.py",
        ("NU08",),
        also=("NU08", "NU11", "NU03", "NU05", "NU07"),
    ),
    Shape("seeded_for_pairs", "biopsies.py", ("RE05",)),
    Shape(
        "replicas_compared",
        "turbines.py",
        ("CR06", "HO06"),
        rank=None,
        also=("CR06", "HO06"),
        timed=True,
    ),
    Shape("warped_by_first", "turbines.py", ("CR04", "HO06"), also=("CR04", "HO06"), timed=True),
    Shape("revived_apart", "turbines.py", ("NU09",), rank=None),
    Shape(
        "revived_if_own",
        "turbines.py",
        ("HC01", "HC11"),
        rank=None,
        also=("HC01", "HC11", "CR12", *ENDS),
        exit_code=130,
        hangs=True,
    ),
    Shape(
        "gaps_times_mask",
        "turbines.py",
        ("NU01",),
        rank=None,
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("usage_whole", "turbines.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape("distances_spread", "turbines.py", ("HO12",), rank=None, timed=True),
)
"""Biopsies, and turbines on two ranks; marks and all before any of it was run under gputop."""
TWENTYTHIRD_Q = (
    Shape("shelf_encoded_each", "fables.py", LOADER, also=LOADER, timed=True),
    Shape("bytes_by_decoding", "fables.py", HOST, timed=True),
    Shape("snapshots_not_found", "fables.py", GROWS, also=(*GROWS, "HO12")),
    Shape("norm_of_padding", "fables.py", ("NU01",), also=("NU01", "NU02", "NU03", "NU07")),
    Shape(
        "outs_in_no_group",
        "fables.py",
        ("NU08", "NU11"),
        also=("NU08", "NU11", "NU03", "NU05"),
    ),
    Shape("nucleus_without_first", "fables.py", ENDS, also=ENDS, exit_code=1),
    Shape("fables_told_apart_in_turn", "fables.py", ("HO17",), timed=True),
    Shape("resolution_by_epoch", "mosaics.py", ("RE05",), rank=None, also=("RE05", "RE03")),
    Shape(
        "bank_gathered_whole",
        "mosaics.py",
        ("CR06", "HO06"),
        rank=None,
        also=("CR06", "HO06"),
        timed=True,
    ),
    Shape("predictor_unwrapped", "mosaics.py", ("NU09",), rank=None, also=("NU09", "NU10")),
    Shape("maps_of_the_epoch", "mosaics.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape(
        "gamma_before_clamp",
        "mosaics.py",
        ("NU01",),
        rank=None,
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("mode_read_late", "mosaics.py", ("NU14",), rank=None),
    Shape("bank_not_round", "mosaics.py", ENDS, rank=None, also=ENDS, exit_code=1),
)
"""Fables and mosaics; marks and all before any of it was run under gputop."""
TWENTYFOURTH_S = (
    Shape("stretched_by_scene", "glaciers.py", LOADER, also=LOADER, timed=True),
    Shape("borders_from_masks", "glaciers.py", HOST, timed=True),
    Shape("canvas_holds_graphs", "glaciers.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "gamma_falls_below_one",
        "glaciers.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape(
        "forked_under_lock",
        "glaciers.py",
        ("HC02", "HC01"),
        also=("HC02", *STOPS),
        exit_code=130,
        hangs=True,
    ),
    Shape(
        "finder_hands_back_copy",
        "glaciers.py",
        ("NU08",),
        also=("NU08", "NU11", "NU07", "NU03", "NU05"),
    ),
    Shape("crop_past_edge", "glaciers.py", ENDS, also=ENDS, exit_code=1),
    Shape("drawn_without_replacement", "warehouses.py", HOST, timed=True),
    Shape("heads_in_plain_list", "warehouses.py", ("NU08",), also=("NU08", "NU11")),
    Shape("least_priority_is_nought", "warehouses.py", ("NU13",), also=("NU13", "NU07")),
    Shape("visits_by_whole_view", "warehouses.py", GROWS, also=(*GROWS, "HO12")),
    Shape("reset_seeds_everything", "warehouses.py", ("RE05",)),
    Shape("limits_looked_up_singly", "warehouses.py", ("HO17",), also=("HO17", "HO06"), timed=True),
    Shape("sums_miss_repeats", "warehouses.py", ENDS, also=ENDS, exit_code=1),
)
"""Glaciers and warehouses; marks and all before any of it was run under gputop."""
TWENTYFOURTH_R = (
    Shape("thinned_after_encoding", "auctions.py", LOADER, also=LOADER, timed=True),
    Shape("decayed_for_all", "auctions.py", HOST, timed=True),
    Shape("read_makes_entry", "auctions.py", GROWS, also=GROWS),
    Shape(
        "logged_then_chosen",
        "auctions.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("weights_spread_over_rows", "auctions.py", ("NU20",)),
    Shape("agent_cut_in_bytes", "auctions.py", ENDS, also=ENDS, exit_code=1),
    Shape(
        "penalty_makes_dense",
        "auctions.py",
        ("HO11", "HO12"),
        also=("HO11", "HO12", "CE07", "HO06"),
    ),
    Shape(
        "key_by_setdefault",
        "chorales.py",
        ("IN11", "CR03"),
        rank=1,
        also=("IN11", "CR03", "IN02", "IN01"),
        timed=True,
    ),
    Shape(
        "average_among_buffers",
        "chorales.py",
        ("CR06",),
        rank=None,
        also=("CR06",),
        timed=True,
    ),
    Shape("state_not_put_away", "chorales.py", ("NU09",), rank=None),
    Shape(
        "asked_by_one_side",
        "chorales.py",
        ("HC01", "HC11"),
        rank=None,
        also=("HC01", "HC11", "CR12", *ENDS),
        exit_code=130,
        hangs=True,
    ),
    Shape("evicted_by_wrong_key", "chorales.py", GROWS, also=(*GROWS, "HO12")),
    Shape("lengths_rounded", "chorales.py", ("NU13",), rank=None),
    Shape("shifted_off_keyboard", "chorales.py", ENDS, rank=1, also=ENDS, exit_code=1),
)
"""Auctions, and chorales on two ranks; marks and all before any of it was run under gputop."""

TWENTYFIFTH_T = (
    Shape("product_by_likeness", "tickets.py", LOADER, also=LOADER, timed=True),
    Shape("padded_to_round_length", "tickets.py", ("IN14",)),
    Shape("processor_watched", "tickets.py", HOST, timed=True),
    Shape("judges_agree", "tickets.py", ("NU01",), also=("NU01", "NU02", "NU03", "NU07")),
    Shape("states_in_history", "tickets.py", GROWS, also=(*GROWS, "HO12")),
    Shape("noise_clears_batch", "tickets.py", ("NU19",), also=("NU19", "NU07")),
    Shape("predictions_in_pairs", "tickets.py", ENDS, also=ENDS, exit_code=1),
    Shape("colours_matched_each", "cells.py", LOADER, also=LOADER, timed=True),
    Shape("curves_at_each_step", "cells.py", ("CE11", "HO06"), also=("CE11", "HO06", *GROWS)),
    Shape("pairs_asked_singly", "cells.py", ("HO17",), also=("HO17", "HO06"), timed=True),
    Shape("outputs_of_validations", "cells.py", GROWS, also=(*GROWS, "HO12")),
    Shape("views_seed_all", "cells.py", ("RE05",)),
    Shape("last_batch_is_smaller", "cells.py", ENDS, also=ENDS, exit_code=1),
    Shape(
        "board_leaves_out",
        "cells.py",
        ("HC01",),
        also=STOPS,
        exit_code=(130, 1),
        hangs=True,
    ),
)
"""Tickets and cells; marks and all before any of it was run under gputop."""

TWENTYFIFTH_U = (
    Shape("weather_by_conditions", "substations.py", LOADER, also=LOADER, timed=True),
    Shape("feed_in_log", "substations.py", ("NU01",), also=("NU01", "NU02", "NU03", "NU07")),
    Shape("lags_by_row", "substations.py", ("HO17",), also=("HO17",)),
    Shape(
        "errors_concatenated",
        "substations.py",
        ("HO06", "CE11"),
        also=("HO06", "CE11", "HO12", *GROWS),
    ),
    Shape("copies_for_average", "substations.py", GROWS, also=(*GROWS, "HO12")),
    Shape("cycle_counts_whole_batches", "substations.py", ENDS, also=ENDS, exit_code=1),
    Shape("mode_named_only", "substations.py", ("NU21",)),
    Shape(
        "cache_still_locked",
        "greenhouses.py",
        ("IN11", "CR03"),
        rank=1,
        also=("IN11", "CR03", "IN02", "IN01"),
        timed=True,
    ),
    Shape("cells_matched_singly", "greenhouses.py", HOST, rank=None, also=("HO06", "CR05")),
    Shape("prior_of_own_shard", "greenhouses.py", ("NU09",), rank=None),
    Shape("prefix_of_wrapper", "greenhouses.py", ("NU08",), rank=None, also=("NU08",)),
    Shape("state_of_first_for_all", "greenhouses.py", ("RE03",), rank=None),
    Shape("losses_of_pictures_whole", "greenhouses.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape(
        "saved_by_own_clock",
        "greenhouses.py",
        ("HC01", "HC11"),
        rank=None,
        also=("HC01", "HC11", "CR12", *ENDS),
        exit_code=130,
        hangs=True,
    ),
)
"""Substations, and fruit in greenhouses on two ranks; marks and all before any of it was run under
gputop.
"""

TWENTYFIFTH_V = (
    Shape(
        "vocabulary_turned_each",
        "riddles.py",
        ("CR04", "HO06"),
        also=("CR04", "HO06"),
        timed=True,
    ),
    Shape("accumulated_bare", "riddles.py", ("CR07",), rank=None, also=("CR07", "CR06")),
    Shape("plateau_of_own_recall", "riddles.py", ("NU09",), rank=None),
    Shape("generator_shared", "riddles.py", ("RE03",), rank=None),
    Shape(
        "last_batch_of_one",
        "riddles.py",
        ("HC01", "HC11"),
        rank=None,
        also=("HC01", "HC11", "CR12", *ENDS),
        exit_code=130,
        hangs=True,
    ),
    Shape("prepared_each_epoch", "riddles.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape("sides_in_one_block", "riddles.py", ("IN14",), rank=None),
    Shape("cache_of_usual_size", "butterflies.py", LOADER, also=LOADER, timed=True),
    Shape("shares_at_every_look", "butterflies.py", HOST, timed=True),
    Shape("zooms_kept", "butterflies.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "signal_of_nothing",
        "butterflies.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("weights_of_eight_bits", "butterflies.py", ("NU12",), also=("NU12", "NU07")),
    Shape("side_of_thirty", "butterflies.py", ENDS, also=ENDS, exit_code=1),
    Shape("cleared_by_the_part", "butterflies.py", ("NU19",)),
)
"""Riddles on two ranks, and butterflies; marks and all before any of it was run under gputop."""

TWENTYSIXTH_W = (
    Shape("room_convolved_directly", "whispers.py", LOADER, also=LOADER, timed=True),
    Shape("filters_laid_each_step", "whispers.py", HOST, also=HOST, timed=True),
    Shape("babble_joins_bank", "whispers.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "phase_of_lost_packets",
        "whispers.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("normed_after_optimizer", "whispers.py", ("NU08",), also=("NU08",)),
    Shape("edges_without_window", "whispers.py", ENDS, also=ENDS, exit_code=1),
    Shape("reference_saved_as_view", "whispers.py", ("HO07",), also=("HO07", "HO15"), timed=True),
    Shape("buckets_by_weight", "solvents.py", ("IN14",), rank=None),
    Shape(
        "bonds_counted_in_step",
        "solvents.py",
        HOST,
        rank=None,
        also=("HO06", "CR05"),
        timed=True,
    ),
    Shape("gradients_for_scale", "solvents.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape("elements_frozen_by_default", "solvents.py", ("NU08",), rank=None, also=("NU08",)),
    Shape("head_waits_for_labels", "solvents.py", ENDS, rank=1, also=ENDS, exit_code=1),
    Shape(
        "folder_by_own_process",
        "solvents.py",
        ("HC01", "HC11"),
        rank=1,
        also=("HC01", "HC11", "HC08", *ENDS),
        exit_code=130,
        hangs=True,
    ),
    Shape("rate_by_own_labels", "solvents.py", ("NU09",), rank=None),
)
"""Whispers, and properties of solvents on two ranks; marks and all before any of it was run under
gputop.
"""

TWENTYSIXTH_X = (
    Shape("tides_part_by_part", "ferries.py", LOADER, also=LOADER, timed=True),
    Shape(
        "conflict_at_each_step",
        "ferries.py",
        ("HO06", "CE07"),
        also=("HO06", "CE07"),
        timed=True,
    ),
    Shape("archive_in_checkpoint", "ferries.py", ("HO07",), also=("HO07", "HO15")),
    Shape("drift_cleared_by_epoch", "ferries.py", GROWS, also=(*GROWS, "HO12")),
    Shape("hour_comes_twice", "ferries.py", ("NU01",), also=("NU01", "NU02", "NU03", "NU07")),
    Shape("warmup_by_epoch", "ferries.py", ("NU06",), also=("NU06", "NU07")),
    Shape("second_loader_renames", "ferries.py", ENDS, also=ENDS, exit_code=1),
    Shape("rows_of_full_budget", "rhymes.py", ("IN14",)),
    Shape("likeness_by_letters", "rhymes.py", HOST, also=("HO06", "HO15"), timed=True),
    Shape("records_hold_caches", "rhymes.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "banned_in_padding",
        "rhymes.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07", *ENDS),
        exit_code=1,
    ),
    Shape("advantages_in_column", "rhymes.py", ("NU20", "NU13"), also=("NU20", "NU13", "NU07")),
    Shape(
        "refilled_until_mixed",
        "rhymes.py",
        STOPS,
        also=STOPS,
        exit_code=130,
        hangs=True,
    ),
    Shape("overlong_dropped", "rhymes.py", ENDS, also=ENDS, exit_code=1),
)
"""Ferries in Lightning, and rhymes by groups of drawn lines; marks and all before any of it
was run under gputop.
"""

TWENTYSIXTH_Y = (
    Shape("documents_kept_whole", "pamphlets.py", ("IN14",), rank=None),
    Shape(
        "leaks_sought_each",
        "pamphlets.py",
        HOST,
        rank=None,
        also=("HO06", "CR05"),
        timed=True,
    ),
    Shape("masks_by_boundaries", "pamphlets.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape(
        "counts_of_a_sample",
        "pamphlets.py",
        ("NU01",),
        rank=None,
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape(
        "moments_of_first_alone",
        "pamphlets.py",
        ("HC01", "HC11", "CR12"),
        rank=None,
        also=("HC01", "HC11", "CR12", *ENDS),
        exit_code=130,
        hangs=True,
    ),
    Shape(
        "moments_gathered_each",
        "pamphlets.py",
        ("HO06", "CR06", "CR04"),
        rank=None,
        also=("HO06", "CR06", "CR04", "CR05"),
    ),
    Shape("rate_of_last_run", "pamphlets.py", ("NU07", "NU06"), rank=None, info=True),
    Shape("sheet_for_each_picture", "mosses.py", LOADER, also=LOADER, timed=True),
    Shape("teacher_by_names", "mosses.py", HOST, timed=True),
    Shape("queue_counts_batches", "mosses.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "blanks_lie_at_nought",
        "mosses.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("chunk_below_neighbours", "mosses.py", ENDS, also=ENDS, exit_code=1),
    Shape("prototypes_held", "mosses.py", ("NU08",)),
    Shape("teacher_in_half", "mosses.py", ("NU12",)),
)
"""Pamphlets on two ranks, and mosses; marks and all before any of it was run under gputop."""

TWENTYSEVENTH_W = (
    Shape("lengths_before_split", "petitions.py", ("IN14",)),
    Shape("urgency_read_from_text", "petitions.py", HOST, timed=True),
    Shape("centres_hold_whole_states", "petitions.py", GROWS, also=(*GROWS, "HO12")),
    Shape("one_clerk_agrees", "petitions.py", ("NU01",), also=("NU01", "NU02", "NU03", "NU07")),
    Shape("table_grown_after_optimizer", "petitions.py", ("NU08",), also=("NU08",)),
    Shape("saved_while_tied", "petitions.py", ENDS, also=ENDS, exit_code=1),
    Shape("schedule_steps_twice", "petitions.py", ("NU06",), also=("NU06", "NU07")),
    Shape(
        "changed_before_crop",
        "reefs.py",
        (*LOADER, "IN11", "CR03"),
        rank=None,
        also=(*LOADER, "IN11", "CR03", "CR05", "IN04"),
    ),
    Shape("crops_remembered_whole", "reefs.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape(
        "power_of_no_error",
        "reefs.py",
        ("NU01",),
        rank=None,
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("unlabelled_among_kinds", "reefs.py", ENDS, also=ENDS, exit_code=1),
    Shape("losses_weighed_apart", "reefs.py", ("NU09",), rank=None),
    Shape("shared_at_first_part", "reefs.py", ("NU09",), rank=None),
    Shape(
        "losses_agreed_each_part",
        "reefs.py",
        ("CR06", "HO06"),
        rank=None,
        also=("CR06", "HO06", "CR05"),
        info=True,
    ),
)
"""Petitions under transformers' Trainer, and reefs on two ranks; marks and all before any of it was
run under gputop.
"""

TWENTYSEVENTH_X = (
    Shape("moments_of_archive_each", "lagoons.py", LOADER, also=LOADER, timed=True),
    Shape(
        "gauges_sought_each",
        "lagoons.py",
        HOST,
        also=("HO06", "HO17"),
        timed=True,
        info=True,
    ),
    Shape("hard_windows_pile_up", "lagoons.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "still_water_divides",
        "lagoons.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("negative_rows_share", "lagoons.py", ("NU08",)),
    Shape("mass_meets_all", "lagoons.py", ("NU20",), also=("NU20", "NU07")),
    Shape("rollout_outlives_forcing", "lagoons.py", ENDS, also=ENDS, exit_code=1),
    Shape("merges_without_memory", "diaries.py", LOADER, rank=None, also=LOADER, timed=True),
    Shape(
        "losses_by_writer",
        "diaries.py",
        HOST,
        rank=None,
        also=("HO06", "HO17", "CR05"),
        timed=True,
        info=True,
    ),
    Shape("resume_points_pile_up", "diaries.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape("cosine_of_own_shards", "diaries.py", ("NU09",), rank=None),
    Shape("gains_in_no_group", "diaries.py", ("NU08",), rank=None),
    Shape(
        "epoch_ends_by_own_shards",
        "diaries.py",
        (*ENDS, "CR12"),
        rank=None,
        also=(*ENDS, "CR12", "HC01", "HC11"),
        exit_code=1,
    ),
    Shape(
        "norm_reduced_again",
        "diaries.py",
        ("CR06", "CR04", "HO06"),
        rank=None,
        also=("CR06", "CR04", "HO06", "CR05"),
    ),
)
"""Lagoons, and diaries on two ranks; marks and all before any of it was run under gputop."""

TWENTYSEVENTH_Y = (
    Shape("negatives_by_choice", "playlists.py", LOADER, also=LOADER, timed=True),
    Shape("table_renormed_whole", "playlists.py", HOST, also=HOST, timed=True),
    Shape("scores_until_reset", "playlists.py", GROWS, also=(*GROWS, "HO12")),
    Shape("idf_of_common_tag", "playlists.py", ("NU01",), also=("NU01", "NU02", "NU03", "NU07")),
    Shape("array_of_no_tags", "playlists.py", ENDS, also=ENDS, exit_code=1),
    Shape("bags_are_no_tables", "playlists.py", ("NU08",)),
    Shape("shares_in_column", "playlists.py", ("NU20",)),
    Shape("response_of_poles_each", "tremors.py", LOADER, rank=None, also=LOADER, timed=True),
    Shape(
        "threshold_sought_by_first",
        "tremors.py",
        ("CR04", "HO06"),
        also=("CR04", "HO06"),
        timed=True,
    ),
    Shape("error_with_its_frames", "tremors.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape("schedule_runs_twice", "tremors.py", ("NU06",), rank=None, also=("NU06", "NU07")),
    Shape("residuals_of_no_event", "tremors.py", ENDS, rank=1, also=ENDS, exit_code=1),
    Shape("loader_left_unprepared", "tremors.py", ("IN12",), rank=None),
    Shape(
        "deviation_by_moments",
        "tremors.py",
        ("NU01",),
        rank=None,
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
)
"""Playlists, and tremors on two ranks; marks and all before any of it was run under gputop."""

TWENTYEIGHTH_Z = (
    Shape("events_scanned_each", "crickets.py", LOADER, also=LOADER, timed=True),
    Shape("precision_so_far_each", "crickets.py", HOST, also=("HO06", "HO17"), timed=True),
    Shape("kept_until_old_hook", "crickets.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "smoother_of_silence",
        "crickets.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("cycle_turns_by_epoch", "crickets.py", ("NU06",), also=("NU06", "NU07")),
    Shape("evaluated_before_fit", "crickets.py", ("NU14",), also=("NU14", "NU07")),
    Shape("monitored_by_other_name", "crickets.py", ENDS, also=ENDS, exit_code=1),
    Shape("points_moved_singly", "gliders.py", HOST, also=("HO06", "HO17"), timed=True),
    Shape("gliders_steer_in_turn", "gliders.py", HOST, also=("HO06", "HO17")),
    Shape("full_only_when_equal", "gliders.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "bearing_of_point_reached",
        "gliders.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("rewards_meet_columns", "gliders.py", ("NU20",), also=("NU20", "NU07")),
    Shape("second_critic_unlisted", "gliders.py", ("NU08", "NU11"), also=("NU08", "NU11")),
    Shape("critic_steps_between", "gliders.py", ENDS, also=ENDS, exit_code=1),
)
"""Crickets under Lightning, and gliders by soft actor and critic; marks and all before any of it
was run under gputop.
"""

TWENTYEIGHTH_Y = (
    Shape("dust_by_window", "genomes.py", LOADER, rank=None, also=LOADER, timed=True),
    Shape("ranks_by_sorting", "genomes.py", HOST, rank=None, also=("HO06", "CR05"), timed=True),
    Shape("gradients_kept_for_noise", "genomes.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape(
        "padding_mask_flipped",
        "genomes.py",
        ("NU01",),
        rank=None,
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("layers_left_out", "genomes.py", ENDS, rank=None, also=ENDS, exit_code=1),
    Shape("sampler_by_node", "genomes.py", ("IN12",), rank=None),
    Shape(
        "scores_of_all_ranks",
        "genomes.py",
        ("CR06", "HO06"),
        rank=None,
        also=("CR06", "HO06", "CR05"),
    ),
    Shape("trend_by_window", "telescopes.py", LOADER, rank=None, also=LOADER, timed=True),
    Shape(
        "whole_weights_for_norms",
        "telescopes.py",
        ("CR06", "HO06"),
        rank=None,
        also=("CR06", "HO06", "CR05"),
    ),
    Shape("states_never_dropped", "telescopes.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape(
        "magnitude_of_negative",
        "telescopes.py",
        ("NU01",),
        rank=None,
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("optimizer_before_shards", "telescopes.py", ("NU08",), rank=None, also=("NU08", "NU07")),
    Shape("encoded_beside_forward", "telescopes.py", ENDS, rank=None, also=ENDS, exit_code=1),
    Shape(
        "whole_state_of_first",
        "telescopes.py",
        ("HC01", "HC11"),
        rank=None,
        also=("HC01", "HC11", "CR12", *ENDS),
        exit_code=130,
        hangs=True,
    ),
)
"""Genomes and sharded telescopes on two ranks each; marks and all before any of it was run under
gputop.
"""

TWENTYEIGHTH_X = (
    Shape("donors_read_each", "welds.py", LOADER, also=LOADER),
    Shape("objects_counted_each_step", "welds.py", HOST, also=("HO06", "HO17"), timed=True),
    Shape("losses_by_place", "welds.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "weights_of_empty_volume",
        "welds.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("thawed_by_misspelling", "welds.py", ("NU08",)),
    Shape("poly_of_epochs", "welds.py", ("NU06",), also=("NU06", "NU07")),
    Shape("score_of_numpy", "welds.py", ENDS, also=ENDS, exit_code=1),
    Shape("padded_to_model_length", "limericks.py", ("IN14",)),
    Shape(
        "rhymes_judged_each_step",
        "limericks.py",
        ("HO06", "HO17"),
        also=("HO06", "HO17"),
        timed=True,
    ),
    Shape("logits_until_epoch_end", "limericks.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "verse_cut_off_whole",
        "limericks.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("head_of_trainers_own", "limericks.py", ("NU08",), also=("NU08", "NU11")),
    Shape(
        "looked_and_saved_each_five",
        "limericks.py",
        ("HO07", "HO08", "HO15"),
        also=("HO07", "HO08", "HO15"),
    ),
    Shape("measure_of_other_name", "limericks.py", ENDS, also=ENDS, exit_code=1),
)
"""Welds from files, and limericks under transformers' Trainer; marks and all before any of it was
run under gputop.
"""

TWENTYNINTH_X = (
    Shape("whole_archive_each_row", "kilns.py", LOADER, also=(*LOADER, "IN07")),
    Shape("average_tried_each_step", "kilns.py", ("HO08", "HO06"), also=("HO08", "HO06")),
    Shape("windows_cached_by_start", "kilns.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "dead_probe_scaled",
        "kilns.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("debias_in_no_group", "kilns.py", ("NU08",)),
    Shape("clipped_after_update", "kilns.py", ("NU05",), also=("NU05", "NU02", "NU03")),
    Shape("average_under_prefix", "kilns.py", ENDS, also=ENDS, exit_code=1),
    Shape("noise_letter_by_letter", "telegrams.py", LOADER, also=LOADER, timed=True),
    Shape("singular_values_each_step", "telegrams.py", HOST, timed=True),
    Shape("encodings_for_map", "telegrams.py", GROWS, also=(*GROWS, "HO12")),
    Shape("scheduler_stepped_by_callback", "telegrams.py", ("NU06",), also=("NU06", "NU07")),
    Shape("thawed_for_no_optimizer", "telegrams.py", ("NU08",), also=("NU08", "NU11")),
    Shape(
        "entropy_of_forbidden",
        "telegrams.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("predictions_are_tuple", "telegrams.py", ENDS, also=ENDS, exit_code=1),
)
"""Kilns on one process, and telegrams under transformers' Trainer; marks and all before any of it
was run under gputop.
"""

TWENTYNINTH_Y = (
    Shape(
        "cache_of_first_alone",
        "hives.py",
        ("CR03", "IN11", *LOADER),
        rank=1,
        also=("CR03", "IN11", *LOADER),
        timed=True,
    ),
    Shape(
        "recalls_of_states_present",
        "hives.py",
        ("HC01", "HC11"),
        rank=None,
        also=("HC01", "HC11", "CR12", *ENDS),
        exit_code=130,
        hangs=True,
    ),
    Shape("noise_of_own_dice", "hives.py", ("NU09",), rank=None),
    Shape("memory_by_hour", "hives.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape(
        "dead_sensor_scaled",
        "hives.py",
        ("NU01",),
        rank=None,
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("gamma_at_each_update", "hives.py", ("NU06",), rank=None, also=("NU06", "NU07")),
    Shape("counts_as_long_as_seen", "hives.py", ENDS, rank=1, also=ENDS, exit_code=1),
    Shape("patina_pixel_by_pixel", "coins.py", LOADER, also=LOADER, timed=True),
    Shape("frechet_at_each_step", "coins.py", HOST, also=HOST, timed=True),
    Shape("nearness_holds_graph", "coins.py", GROWS, also=(*GROWS, "HO12", "ME10")),
    Shape(
        "distance_to_oneself",
        "coins.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("cleared_for_the_other", "coins.py", ("NU11",), also=("NU11", "NU02", "NU07")),
    Shape("targets_of_full_batch", "coins.py", ENDS, also=ENDS, exit_code=1),
    Shape("verdict_squashed_twice", "coins.py", ("NU17",), also=("NU17", "NU07")),
)
"""Hives on two ranks, and coins of a VAE and a critic; marks and all before any of it was run under
gputop.
"""

TWENTYNINTH_Z = (
    Shape("profiles_laid_at_access", "avalanches.py", LOADER, also=LOADER, timed=True),
    Shape(
        "counted_aspect_by_aspect",
        "avalanches.py",
        ("HO06", "HO17"),
        also=("HO06", "HO17"),
        timed=True,
    ),
    Shape("gradients_of_hours_kept", "avalanches.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "root_under_where",
        "avalanches.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("encoder_in_no_group", "avalanches.py", ("NU08",)),
    Shape("clipped_once_used", "avalanches.py", ("NU05",)),
    Shape("recall_of_five_logged", "avalanches.py", ENDS, also=ENDS, exit_code=1),
    Shape("shards_dealt_to_processes", "logbooks.py", ("IN16",)),
    Shape(
        "edits_counted_word_by_word",
        "logbooks.py",
        ("HO06", "HO17"),
        also=("HO06", "HO17"),
        timed=True,
    ),
    Shape("masks_remembered_by_text", "logbooks.py", GROWS, also=(*GROWS, "HO12")),
    Shape("zeroed_ahead_of_backward", "logbooks.py", ("NU19",)),
    Shape("rate_falls_by_part", "logbooks.py", ("NU06",), also=("NU06", "NU07")),
    Shape("held_read_each_fourth", "logbooks.py", ("HO08", "HO15"), also=("HO08", "HO15")),
    Shape("tail_shorter_than_block", "logbooks.py", ENDS, also=ENDS, exit_code=1),
)
"""Avalanches under Lightning, and logbooks under accelerate; marks and all before any of it was run
under gputop.
"""

THIRTIETH_X = (
    Shape("warp_smoothed_wide", "mushrooms.py", LOADER, also=LOADER, timed=True),
    Shape("judged_while_training", "mushrooms.py", ("NU21",)),
    Shape(
        "share_of_two_noughts",
        "mushrooms.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("optimizer_by_property", "mushrooms.py", ("NU16",), also=("NU16", "NU07")),
    Shape("grid_for_each_angle", "mushrooms.py", GROWS, also=(*GROWS, "HO12")),
    Shape("one_picture_has_alpha", "mushrooms.py", ENDS, also=ENDS, exit_code=1),
    Shape("saved_at_each_new_best", "mushrooms.py", ("HO07",), also=("HO07", "HO15")),
    # BRIDGES
    Shape("ends_counted_in_list", "bridges.py", LOADER, also=LOADER, timed=True),
    Shape(
        "misses_counted_singly",
        "bridges.py",
        ("HO06", "HO17"),
        also=("HO06", "HO17"),
        timed=True,
    ),
    Shape("decay_counts_all_folds", "bridges.py", ("NU06",), also=("NU06", "NU07")),
    Shape(
        "direction_of_fixed_joints",
        "bridges.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape(
        "cleared_once_per_fold",
        "bridges.py",
        ("NU11",),
        also=("NU11", "NU02", "NU03", "NU07"),
    ),
    Shape(
        "estimates_held_for_table",
        "bridges.py",
        (*GROWS, "ME10"),
        also=(*GROWS, "ME10", "HO12"),
    ),
    Shape("squeezed_to_nothing", "bridges.py", ENDS, also=ENDS, exit_code=1),
)
"""Mushrooms on one process, and bridges over three folds; marks and all before any of it was run
under gputop.
"""

THIRTIETH_Y = (
    Shape(
        "quantiles_in_hooks",
        "horoscopes.py",
        ("CR01", "HO06"),
        also=("CR01", "CR02", "CR04", "HO06", "CE07"),
        timed=True,
    ),
    Shape(
        "group_made_by_first",
        "horoscopes.py",
        ("HC01", "HC11", "CR12"),
        rank=None,
        also=("HC01", "HC11", "CR12", *ENDS),
        exit_code=130,
        hangs=True,
    ),
    Shape("synced_on_first_part", "horoscopes.py", ("NU09",), rank=None),
    Shape("merges_without_cache", "horoscopes.py", LOADER, rank=None, also=LOADER, timed=True),
    Shape("entropy_kept_live", "horoscopes.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape(
        "saved_at_each_low",
        "horoscopes.py",
        ("HO07", "CR04", "HO06"),
        also=("HO07", "HO15", "CR04", "HO06"),
    ),
    Shape("sampled_past_context", "horoscopes.py", ENDS, also=ENDS, exit_code=1),
    Shape("record_sought_from_start", "invoices.py", LOADER, also=(*LOADER, "IN07"), timed=True),
    Shape("weights_hashed_each_step", "invoices.py", HOST, also=HOST, timed=True),
    Shape("whole_states_for_average", "invoices.py", GROWS, also=(*GROWS, "HO12")),
    Shape("merged_while_sampling", "invoices.py", ("NU08",), also=("NU08", "NU07")),
    Shape("schedule_of_one_epoch", "invoices.py", ("NU06",), also=("NU06", "NU07")),
    Shape(
        "rows_without_answers",
        "invoices.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("ignored_labels_decoded", "invoices.py", ENDS, also=ENDS, exit_code=1),
)
"""Horoscopes on two ranks, and invoices of adapters under transformers' Trainer; marks and all
before any of it was run under gputop.
"""

THIRTIETH_Z = (
    Shape("gains_boat_by_boat", "catamarans.py", HOST, also=(*HOST, "HO15"), timed=True),
    Shape(
        "divergence_of_whole_rollout",
        "catamarans.py",
        ("HO06", "HO08"),
        also=("HO06", "HO08"),
        timed=True,
    ),
    Shape("tracks_are_views", "catamarans.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "angle_by_arccos",
        "catamarans.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("annealed_by_rollouts", "catamarans.py", ("NU06",), also=("NU06", "NU07")),
    Shape("values_by_all_returns", "catamarans.py", ("NU20",), also=("NU20", "NU07")),
    Shape("regatta_of_other_size", "catamarans.py", ENDS, also=ENDS, exit_code=1),
    Shape("warped_sample_by_sample", "footsteps.py", LOADER, also=LOADER, timed=True),
    Shape("smoothed_through_graph", "footsteps.py", GROWS, also=(*GROWS, "HO12", "CE11")),
    Shape(
        "walker_alone_in_batch",
        "footsteps.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("judged_and_left_so", "footsteps.py", ("NU14",)),
    Shape("cycle_turned_by_epoch", "footsteps.py", ("NU06",), also=("NU06", "NU07")),
    Shape("best_never_remembered", "footsteps.py", ("HO07",), also=("HO07", "HO15")),
    Shape("queue_not_of_batches", "footsteps.py", ENDS, also=ENDS, exit_code=1),
)
"""Catamarans by proximal policy optimisation, and footsteps of a queue and an adversary under
Fabric; marks and all before any of it was run under gputop.
"""

THIRTYFIRST_X = (
    Shape("floor_of_whole_night", "bats.py", LOADER, also=LOADER),
    Shape("certainty_in_few_bits", "bats.py", ("NU01",), also=("NU01", "NU02", "NU03", "NU07")),
    Shape("average_settled_each_look", "bats.py", ("HO08", "HO06"), also=("HO08", "HO06", "HO15")),
    Shape("pictures_wait_for_close", "bats.py", GROWS, also=(*GROWS, "HO12")),
    Shape("bank_built_without_grad", "bats.py", ("NU08",)),
    Shape("scores_of_few_bits", "bats.py", ENDS, also=ENDS, exit_code=1),
    Shape("thresholds_swept_each_step", "bats.py", HOST, also=HOST, timed=True),
    # BOARDGAMES
    Shape(
        "popularity_recounted_in_collate",
        "boardgames.py",
        (*LOADER, "HO06"),
        also=(*LOADER, "HO06"),
        timed=True,
    ),
    Shape(
        "players_ranked_one_by_one",
        "boardgames.py",
        ("HO08", "HO18", "HO06"),
        also=("HO08", "HO18", "HO06", "HO15"),
    ),
    Shape("fits_sliced_never_dropped", "boardgames.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "chance_of_unplayed_games",
        "boardgames.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("weight_under_other_name", "boardgames.py", ("NU13", "NU08"), also=("NU13", "NU08")),
    Shape("rate_by_whole_thousands", "boardgames.py", ("NU06",), also=("NU06", "NU07")),
    Shape("games_released_later", "boardgames.py", ENDS, also=ENDS, exit_code=1),
)
"""Bats on one process, and board games in a plain loop of functions; marks and all before any of it
was run under gputop.
"""
THIRTYFIRST_Y = (
    Shape(
        "neighbours_sorted_each_access", "dialects.py", LOADER, rank=None, also=LOADER, timed=True
    ),
    Shape(
        "paths_traced_by_main",
        "dialects.py",
        ("CR04", "HO06", "HO17"),
        also=("CR04", "HO06", "HO17"),
        timed=True,
    ),
    Shape(
        "trigger_checked_by_setter",
        "dialects.py",
        ("HC01", "HC11", "CR12"),
        rank=None,
        also=("HC01", "HC11", "CR12", *ENDS),
        exit_code=130,
        hangs=True,
    ),
    Shape("spikes_skipped_by_own", "dialects.py", ("NU09",), rank=None),
    Shape("hardest_never_pushed_out", "dialects.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape("train_mode_by_epoch", "dialects.py", ("NU14",), rank=None),
    Shape(
        "gathered_without_padding",
        "dialects.py",
        (*ENDS, "CR12"),
        rank=None,
        also=(*ENDS, "CR12"),
        exit_code=1,
    ),
    Shape(
        "long_notes_to_last",
        "seashells.py",
        ("CR15", "CR01", "CR02"),
        rank=1,
        also=("CR15", "CR01", "CR02", "CR05", "CR06"),
    ),
    Shape(
        "own_notes_not_put_back", "seashells.py", ("NU08", "NU13"), rank=None, also=("NU08", "NU13")
    ),
    Shape(
        "recalls_row_by_row",
        "seashells.py",
        ("HO06", "HO17"),
        rank=None,
        also=("HO06", "HO17"),
    ),
    Shape("buckets_kept_for_noise", "seashells.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape(
        "debiased_without_floor",
        "seashells.py",
        ("NU01",),
        rank=None,
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape(
        "figures_summed_one_each",
        "seashells.py",
        ("CR06", "HO06"),
        rank=None,
        also=("CR06", "HO06"),
    ),
    Shape("more_sought_than_left", "seashells.py", ENDS, rank=1, also=ENDS, exit_code=1),
)
"""Dialects under accelerate and seashells under DDP, both on two ranks; marks and all before any of
it was run under gputop.
"""
THIRTYFIRST_Z = (
    Shape("holidays_sought_by_hour", "bakeries.py", LOADER, also=LOADER, timed=True),
    Shape(
        "figure_for_each_kind",
        "bakeries.py",
        ("HO06", "HO17"),
        also=("HO06", "HO17"),
        timed=True,
    ),
    Shape("gaze_of_every_step", "bakeries.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "scaled_by_unsold_week",
        "bakeries.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("milestones_meant_as_epochs", "bakeries.py", ("NU06",), also=("NU06", "NU07")),
    Shape("calendar_built_at_start", "bakeries.py", ("NU08",)),
    Shape("rebuilt_without_settings", "bakeries.py", ENDS, also=ENDS, exit_code=1),
    Shape("blurred_before_cropping", "plankton.py", LOADER, also=LOADER),
    Shape(
        "neighbours_asked_each_fourth",
        "plankton.py",
        ("HO08", "HO06", "HO15"),
        also=("HO08", "HO06", "HO15"),
    ),
    Shape("gradients_kept_by_hook", "plankton.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "sharpness_falls_to_nought",
        "plankton.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("rate_for_first_group_only", "plankton.py", ("NU06",), also=("NU06", "NU08")),
    Shape(
        "backbone_cleared_alone",
        "plankton.py",
        ("NU11",),
        also=("NU11", "NU02", "NU03", "NU05", "NU07"),
    ),
    Shape("student_copied_with_norm", "plankton.py", ENDS, also=ENDS, exit_code=1),
)
"""Bakeries under Lightning, and plankton of a momentum teacher in a trainer of its own; marks and
all before any of it was run under gputop.
"""
THIRTYSECOND_Y = (
    Shape(
        "weights_gathered_for_board",
        "tapestries.py",
        ("HO06", "CR06"),
        rank=None,
        also=("HO06", "CR06"),
        timed=True,
    ),
    Shape(
        "preview_thread_never_waits",
        "tapestries.py",
        ("HO04", "CR01", "CR02", "CR04"),
        also=("HO04", "CR01", "CR02", "CR04", "CR05", "HO06"),
    ),
    Shape(
        "best_by_own_loss",
        "tapestries.py",
        ("HC01", "HC11", "CR12"),
        rank=None,
        also=("HC01", "HC11", "CR12", *ENDS),
        exit_code=130,
        hangs=True,
    ),
    Shape(
        "sync_never_turned_on",
        "tapestries.py",
        ("NU08",),
        rank=None,
        also=("NU08", "NU13", "NU07"),
    ),
    Shape("rate_stepped_by_part", "tapestries.py", ("NU06",), rank=None, also=("NU06", "NU07")),
    Shape("firings_kept_by_hook", "tapestries.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape(
        "mean_of_no_threads",
        "tapestries.py",
        ("NU01",),
        rank=None,
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    # GEYSERS
    Shape("sharded_by_worker_alone", "geysers.py", ("IN12",), rank=None, also=("IN12",)),
    Shape(
        "journal_rewritten_each_update",
        "geysers.py",
        ("CR04", "HO06", "CE11"),
        also=("CR04", "HO06", "CE11", "ME05", "CR05"),
        timed=True,
    ),
    Shape(
        "quiet_batches_not_summed",
        "geysers.py",
        ("HC01", "HC11", "CR12"),
        rank=None,
        also=("HC01", "HC11", "CR12", *ENDS),
        exit_code=130,
        hangs=True,
    ),
    Shape(
        "no_sync_after_forward",
        "geysers.py",
        ("CR07", "CR06"),
        rank=None,
        also=("CR07", "CR06"),
    ),
    Shape(
        "readings_resampled_by_loop",
        "geysers.py",
        LOADER,
        rank=None,
        also=(*LOADER, "HO06"),
        timed=True,
    ),
    Shape("card_leaves_eval_mode", "geysers.py", ("NU14",)),
    Shape(
        "watched_error_with_graph",
        "geysers.py",
        (*GROWS, "ME10"),
        rank=None,
        also=(*GROWS, "ME10", "HO12"),
    ),
)
"""Tapestries under FSDP2 on two ranks, and geysers under DDP on three; marks and all before any of
it was run under gputop.
"""

THIRTYSECOND_X = (
    Shape("lexicon_searched_each_row", "menus.py", LOADER, also=LOADER, timed=True),
    Shape("interval_drawn_singly", "menus.py", ("HO08", "HO06"), also=("HO08", "HO06", "HO15")),
    Shape("states_in_trainers_log", "menus.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "weight_of_absent_allergen",
        "menus.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("freed_before_each_part", "menus.py", ("NU19",), also=("NU19", "NU07")),
    Shape("schedule_of_argument_epochs", "menus.py", ("NU06",), also=("NU06", "NU07")),
    Shape("best_holds_numpy_scale", "menus.py", ENDS, also=ENDS, exit_code=1),
    Shape("winds_of_whole_land", "balloons.py", HOST, also=(*HOST, "HO15"), timed=True),
    Shape(
        "judged_after_each_minibatch",
        "balloons.py",
        ("HO08", "HO06"),
        also=("HO08", "HO06", "HO15"),
    ),
    Shape("infos_hold_charts", "balloons.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "balloon_of_no_hours",
        "balloons.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("optimizer_for_each_rate", "balloons.py", ("NU16",), also=("NU16", "NU07", "HO12")),
    Shape("cosine_of_iterations", "balloons.py", ("NU15", "NU06"), also=("NU15", "NU06", "NU07")),
    Shape("border_is_no_cell", "balloons.py", ENDS, also=ENDS, exit_code=1),
)
"""Menus under transformers' Trainer, and balloons by proximal policy optimisation; marks and all
before any of it was run under gputop.
"""

THIRTYSECOND_Z = (
    Shape(
        "neighbours_tallied_singly",
        "kilims.py",
        ("HO06", "HO17"),
        also=("HO06", "HO17"),
        timed=True,
    ),
    Shape("latest_by_serial_number", "kilims.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "entropy_of_unused_codes",
        "kilims.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("codebook_left_out", "kilims.py", ("NU08",), also=("NU08", "NU11")),
    Shape("share_of_global_step", "kilims.py", ("NU06",), also=("NU06", "NU07")),
    Shape("more_dead_than_drawn", "kilims.py", ENDS, also=ENDS, exit_code=1),
    Shape("anomalies_left_on", "kilims.py", ("HO16",)),
    Shape("margins_by_each_pair", "walnuts.py", LOADER, also=LOADER),
    Shape("crops_cached_by_corner", "walnuts.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "weight_of_absent_tissue",
        "walnuts.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("power_of_spent_budget", "walnuts.py", ENDS, also=ENDS, exit_code=1),
    Shape("shadow_still_in_training", "walnuts.py", ("NU21",)),
    Shape(
        "islands_filled_each_step",
        "walnuts.py",
        ("HO06", "HO17"),
        also=("HO06", "HO17"),
        timed=True,
    ),
    Shape("windows_step_by_four", "walnuts.py", ("HO08",), also=("HO08", "HO15", "HO06")),
)
"""Kilims of a book of codes and a critic under Lightning, and walnuts in volumes; marks and all
before any of it was run under gputop.
"""

THIRTYTHIRD_X = (
    Shape("hue_by_colorsys", "beetles.py", LOADER, also=LOADER),
    Shape("rough_pictures_often", "beetles.py", ("HO08",), also=("HO08", "HO15", "HO06")),
    Shape("pictures_logged_uncommitted", "beetles.py", GROWS, also=(*GROWS, "HO12")),
    Shape("places_of_smaller_grid", "beetles.py", ENDS, also=ENDS, exit_code=1),
    Shape("parts_of_other_ndim", "beetles.py", ("NU08",), also=("NU08", "NU11")),
    Shape("mixing_seeded_anew", "beetles.py", ("RE05",)),
    Shape(
        "spread_of_equal_pictures",
        "beetles.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("prompt_cut_by_letters", "butlers.py", LOADER, also=LOADER, timed=True),
    Shape(
        "weight_of_unanimous_votes",
        "butlers.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("perplexity_under_dropout", "butlers.py", ("NU21",)),
    Shape("best_loaded_beside", "butlers.py", ("NU08", "NU11"), also=("NU08", "NU11")),
    Shape(
        "grams_counted_afresh",
        "butlers.py",
        ("HO06", "CE11"),
        also=("HO06", "CE11"),
        timed=True,
    ),
    Shape("report_holds_tensor", "butlers.py", ENDS, also=ENDS, exit_code=1),
    Shape("scores_kept_for_entropy", "butlers.py", GROWS, also=(*GROWS, "HO12")),
)
"""Beetles by a small vision transformer, and butlers tuned on preferences with LoRA; marks and all
before any of it was run under gputop.
"""

THIRTYTHIRD_Y = (
    Shape(
        "flake_drawn_by_pixel",
        "snowflakes.py",
        LOADER,
        rank=None,
        also=(*LOADER, "HO06"),
        timed=True,
    ),
    Shape(
        "frechet_each_update",
        "snowflakes.py",
        ("CR04", "HO06", "HO08"),
        also=("CR04", "HO06", "HO08", "CR05"),
        timed=True,
    ),
    Shape(
        "evaluated_through_wrapper",
        "snowflakes.py",
        ("HC01", "HC11", "CR12"),
        rank=None,
        also=("HC01", "HC11", "CR12", *ENDS),
        exit_code=130,
        hangs=True,
    ),
    Shape(
        "snr_of_no_signal",
        "snowflakes.py",
        ("NU01",),
        rank=None,
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape(
        "rolled_back_by_own_loss",
        "snowflakes.py",
        ("NU09",),
        rank=None,
        also=("NU09", "NU10", "NU02"),
    ),
    Shape("snapshots_of_every_update", "snowflakes.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "groups_by_last_name",
        "snowflakes.py",
        ("NU08",),
        rank=None,
        also=("NU08", "NU11", "NU05", "NU03", "NU07"),
    ),
    # CUNEIFORM
    Shape("stage_order_without_rank", "cuneiform.py", ("IN12",), rank=None, also=("IN12",)),
    Shape(
        "halves_of_sorted_batch",
        "cuneiform.py",
        ("CR15", "CR01", "CR02"),
        rank=1,
        also=("CR15", "CR01", "CR02", "CR05"),
    ),
    Shape("longest_of_first_tablets", "cuneiform.py", ENDS, rank=1, also=ENDS, exit_code=1),
    Shape("cleared_own_shard", "cuneiform.py", ("NU11",), rank=None, also=("NU11", "NU05", "NU07")),
    Shape(
        "consolidated_each_few",
        "cuneiform.py",
        ("HO07", "HO06", "CR06"),
        rank=None,
        also=("HO07", "HO06", "HO15", "CR04", "CR06", "HO12"),
    ),
    Shape("decay_over_first_stage", "cuneiform.py", ("NU06",), rank=None, also=("NU06", "NU07")),
    Shape("hard_rows_hold_batches", "cuneiform.py", GROWS, rank=None, also=(*GROWS, "HO12")),
)
"""Snowflakes of a diffusion under DDP, and cuneiform under ZeroRedundancyOptimizer with gradients
averaged by hand; marks and all before any of it was run under gputop.
"""

THIRTYTHIRD_Z = (
    Shape("same_hours_sought_at_access", "bicycles.py", LOADER, also=LOADER, timed=True),
    Shape("sparse_gradients_kept_for_heat", "bicycles.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "projection_in_neither_optimizer", "bicycles.py", ("NU08", "NU11"), also=("NU08", "NU11")
    ),
    Shape(
        "scaled_by_still_dock",
        "bicycles.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("horizon_outgrows_targets", "bicycles.py", ENDS, also=ENDS, exit_code=1),
    Shape(
        "evaluated_by_windows_seen",
        "bicycles.py",
        ("HO08",),
        also=("HO08", "HO15", "HO06"),
    ),
    Shape("mode_behind_unfinished_generator", "bicycles.py", ("NU14",)),
    Shape("baseline_fitted_in_collate", "cheeses.py", LOADER, also=LOADER, timed=True),
    Shape("reset_misses_parents_state", "cheeses.py", GROWS, also=(*GROWS, "HO12")),
    Shape("cosine_turns_within_epoch", "cheeses.py", ("NU15",), also=("NU15", "NU06", "NU07")),
    Shape(
        "variance_falls_to_nothing",
        "cheeses.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape(
        "bands_blanked_each_step",
        "cheeses.py",
        ("HO08", "HO06", "HO18"),
        also=("HO08", "HO06", "HO18", "HO15"),
    ),
    Shape("bincount_without_minlength", "cheeses.py", ENDS, also=ENDS, exit_code=1),
    Shape("deliveries_left_in_order", "cheeses.py", ("NU22",), also=("NU22", "NU02", "NU07")),
)
"""Bicycles by recurrent networks with sparse tags, and cheeses by three heads under Lightning;
marks and all before any of it was run under gputop.
"""

THIRTYFOURTH_X = (
    Shape(
        "advantages_summed_at_access",
        "sluices.py",
        (*LOADER, "HO06"),
        also=(*LOADER, "HO06"),
        timed=True,
    ),
    Shape("scaler_shared_with_judges", "sluices.py", ENDS, also=ENDS, exit_code=1),
    Shape(
        "reward_of_empty_basin",
        "sluices.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("annealed_by_rows_learned", "sluices.py", ("NU06",)),
    Shape("encoder_detached_by_both", "sluices.py", ("NU08",)),
    Shape("film_never_cut", "sluices.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "moments_reading_by_reading",
        "sluices.py",
        HOST,
        also=("HO06", "HO15"),
        timed=True,
    ),
    Shape("copies_aligned_in_collate", "timetables.py", LOADER, also=LOADER, timed=True),
    Shape("beams_at_each_look", "timetables.py", ("HO08",), also=("HO08", "HO15", "HO06")),
    Shape(
        "name_neither_copied_nor_said",
        "timetables.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("layer_rates_rounded_off", "timetables.py", ("NU06",)),
    Shape("alignments_cached_by_text", "timetables.py", GROWS, also=(*GROWS, "HO12")),
    Shape("spare_words_outnumbered", "timetables.py", ENDS, also=ENDS, exit_code=1),
    Shape("nearest_names_each_step", "timetables.py", HOST, timed=True, also=("HO06", "HO12")),
)
"""Sluices kept by PPO over canals in NumPy, and announcements by a T5 that copies; marks and all
before any of it was run under gputop.
"""

THIRTYFOURTH_Y = (
    Shape(
        "centres_spread_by_cell",
        "anthills.py",
        LOADER,
        rank=None,
        also=(*LOADER, "HO06"),
        timed=True,
    ),
    Shape(
        "panels_of_each_update",
        "anthills.py",
        ("CR04", "HO06"),
        also=("CR04", "HO06", "CR05"),
        timed=True,
    ),
    Shape(
        "log_of_hills_gone",
        "anthills.py",
        ("NU01",),
        rank=None,
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape(
        "prior_gathered_by_main_first",
        "anthills.py",
        ("HC01", "HC11", "CR12"),
        rank=None,
        also=("HC01", "HC11", "CR12", *ENDS),
        exit_code=130,
        hangs=True,
    ),
    Shape("pictures_by_dice_alone", "anthills.py", ("IN12",), rank=None, also=("IN12",)),
    Shape("mode_back_for_last_alone", "anthills.py", ("NU14",), rank=None, also=("NU14",)),
    Shape("meter_without_reset", "anthills.py", GROWS, rank=None, also=(*GROWS, "HO12", "CR06")),
    # SHANTIES
    Shape(
        "keys_turned_note_by_note",
        "shanties.py",
        LOADER,
        rank=None,
        also=(*LOADER, "HO06"),
        timed=True,
    ),
    Shape(
        "shares_of_sorted_songs",
        "shanties.py",
        ("CR02", "CR01", "CR15"),
        rank=1,
        also=("CR02", "CR01", "CR15", "CR05"),
    ),
    Shape("order_for_longest_share", "shanties.py", ENDS, rank=1, also=ENDS, exit_code=1),
    Shape(
        "cleared_on_local_views",
        "shanties.py",
        ("NU11",),
        rank=None,
        also=("NU11", "NU05", "NU03", "NU02", "NU07"),
    ),
    Shape(
        "weighed_by_notes_left",
        "shanties.py",
        ("NU01",),
        rank=None,
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape(
        "sampler_states_for_rewind",
        "shanties.py",
        GROWS,
        rank=None,
        also=(*GROWS, "HO12"),
    ),
    Shape(
        "pitches_reduced_singly",
        "shanties.py",
        ("CR06", "HO06"),
        rank=None,
        also=("CR06", "HO06", "CR04", "CR05"),
    ),
)
"""Anthills by a detector under accelerate, and shanties by a packed decoder under FSDP2; marks and
all before any of it was run under gputop.
"""

THIRTYFOURTH_Z = (
    Shape("partner_sought_by_scan", "newts.py", LOADER, also=LOADER, timed=True),
    Shape("prototypes_of_live_keys", "newts.py", GROWS, also=(*GROWS, "HO12")),
    Shape("plateau_of_rising_recall", "newts.py", ("NU06",), also=("NU06", "NU07")),
    Shape("negatives_in_even_rows", "newts.py", ENDS, also=ENDS, exit_code=1),
    Shape(
        "newt_missing_from_queue",
        "newts.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("lengths_spread_over_rows", "newts.py", ("NU20",), also=("NU20", "NU07")),
    Shape(
        "hardest_by_item_loop",
        "newts.py",
        ("HO06", "HO17"),
        also=("HO06", "HO17"),
        timed=True,
    ),
    Shape("mel_filters_made_at_access", "owls.py", LOADER, also=LOADER, timed=True),
    Shape("cycle_shorter_than_run", "owls.py", ENDS, also=ENDS, exit_code=1),
    Shape("pool_loses_its_length", "owls.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "log_of_padded_silence",
        "owls.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("head_fitted_after_optimizer", "owls.py", ("NU08", "NU11"), also=("NU08", "NU11")),
    Shape(
        "teacher_judged_each_few",
        "owls.py",
        ("HO08",),
        also=("HO08", "HO15", "HO06"),
    ),
    Shape("ranks_counted_pair_by_pair", "owls.py", HOST, also=HOST, timed=True),
)
"""Newts by contrast with a queue, and owls under Lightning Fabric; marks and all before any of it
was run under gputop.
"""

THIRTYFIFTH_Y = (
    Shape(
        "lags_sought_by_stamp",
        "lidos.py",
        LOADER,
        also=(*LOADER, "HO06"),
        timed=True,
    ),
    Shape(
        "scaled_by_closed_season",
        "lidos.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape(
        "backtest_each_few_batches",
        "lidos.py",
        ("HO08",),
        also=("HO08", "HO15", "HO06"),
    ),
    Shape("decay_meant_for_epochs", "lidos.py", ("NU06",)),
    Shape("groups_by_name_endings", "lidos.py", ("NU08", "NU11"), also=("NU08", "NU11", "NU03")),
    Shape("widths_kept_for_chart", "lidos.py", GROWS, also=(*GROWS, "HO12")),
    Shape(
        "metrics_named_by_step",
        "lidos.py",
        ("HO06", "CE11"),
        also=("HO06", "CE11", "HO15", *GROWS),
    ),
    # PERFUMES
    Shape(
        "negatives_rejected_by_list",
        "perfumes.py",
        ("IN11", "CR03", *LOADER),
        rank=1,
        also=("IN11", "CR03", *LOADER, "CR04", "CR05", "HO06"),
        timed=True,
    ),
    Shape(
        "stopped_by_own_area",
        "perfumes.py",
        ("HC01", "HC11", "CR12"),
        rank=None,
        also=("HC01", "HC11", "CR12", *ENDS),
        exit_code=130,
        hangs=True,
    ),
    Shape(
        "sparse_gradients_left_out",
        "perfumes.py",
        ("NU09",),
        rank=None,
        also=("NU09", "NU10"),
    ),
    Shape(
        "frequency_of_unsold",
        "perfumes.py",
        ("NU01",),
        rank=None,
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape(
        "tables_never_cleared",
        "perfumes.py",
        ("NU11",),
        rank=None,
        also=("NU11", "NU03", "NU02", "NU07"),
    ),
    Shape(
        "area_by_pairs",
        "perfumes.py",
        ("HO06", "HO08"),
        rank=None,
        also=("HO06", "HO08", "HO15", "CR04", "CR05"),
        timed=True,
    ),
    Shape("shard_by_slurm_rank", "perfumes.py", ("IN12",), rank=None, also=("IN12",)),
)
"""Lidos by quantiles under Lightning, and perfumes by two towers whose ranks average by hand; marks
and all before any of it was run under gputop.
"""


THIRTYFIFTH_X = (
    Shape("exposure_of_whole_market", "lanterns.py", LOADER, also=LOADER, timed=True),
    Shape("samples_at_each_few", "lanterns.py", ("HO08",), also=("HO08", "HO15", "HO06")),
    Shape(
        "weight_of_no_signal",
        "lanterns.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("return_points_missed", "lanterns.py", GROWS, also=(*GROWS, "HO12", "HO15")),
    Shape(
        "restart_from_new_copy",
        "lanterns.py",
        ("NU08", "NU11"),
        also=("NU08", "NU11", "NU02", "NU03", "NU05", "NU07"),
    ),
    Shape("spectrum_for_unread_board", "lanterns.py", HOST, also=HOST, timed=True),
    Shape("drawn_in_uneven_chunks", "lanterns.py", ENDS, also=ENDS, exit_code=1),
    # WEATHERCASTS
    Shape(
        "padded_through_lists",
        "weathercasts.py",
        LOADER,
        rank=None,
        also=(*LOADER, "HO06"),
        timed=True,
    ),
    Shape(
        "edits_counted_each_update",
        "weathercasts.py",
        HOST,
        rank=None,
        also=("HO06", "CE11"),
        timed=True,
    ),
    Shape(
        "targets_longer_than_frames",
        "weathercasts.py",
        ("NU01",),
        rank=None,
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("plateau_by_own_errors", "weathercasts.py", ("NU09",), rank=None, also=("NU09",)),
    Shape(
        "empties_sent_if_any",
        "weathercasts.py",
        ("HC01", "HC11", "CR12"),
        rank=None,
        also=("HC01", "HC11", "CR12", *ENDS),
        exit_code=130,
        hangs=True,
    ),
    Shape("views_cached_by_mask", "weathercasts.py", GROWS, rank=None, also=(*GROWS, "HO12")),
    Shape("cut_after_the_update", "weathercasts.py", ("NU05",), rank=None, also=("NU05",)),
)
"""Lanterns by a denoising U-Net, and weather forecasts taken down by CTC under DDP; marks and all
before any of it was run under gputop.
"""

THIRTYFIFTH_Z = (
    Shape(
        "moments_by_property",
        "lichens.py",
        (*LOADER, "HO06"),
        also=(*LOADER, "HO06", "HO12"),
        timed=True,
    ),
    Shape("judge_returns_before_train", "lichens.py", ("NU14",)),
    Shape(
        "loudness_averaged_with_graph",
        "lichens.py",
        (*GROWS, "CE14"),
        also=(*GROWS, "CE14", "HO12"),
    ),
    Shape("cycle_divided_twice", "lichens.py", ("NU06",)),
    Shape(
        "channels_over_their_norm",
        "lichens.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape(
        "head_slimmed_past_optimizer",
        "lichens.py",
        ("NU08", "NU11"),
        also=("NU08", "NU11", "NU03", "NU05"),
    ),
    Shape("threshold_sorted_each_update", "lichens.py", HOST, also=("HO06", "HO12"), timed=True),
    Shape("workers_pack_same_songs", "lullabies.py", ("IN16",)),
    Shape(
        "group_that_rhymes_alike",
        "lullabies.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("cosine_ends_halfway", "lullabies.py", ("NU15",)),
    Shape("archive_judged_often", "lullabies.py", ("HO08",), also=("HO08", "HO15", "HO06")),
    Shape("bare_scores_remembered", "lullabies.py", GROWS, also=(*GROWS, "HO12")),
    Shape("song_is_sung_on", "lullabies.py", ENDS, also=ENDS, exit_code=1),
    Shape("checkpoints_see_no_gradient", "lullabies.py", ("NU08",), also=("NU08", "NU13")),
)
"""Lichens learnt from a larger net while it is pruned, and lullabies under LoRA from workers that
pack; marks and all before any of it was run under gputop.
"""


THIRTYSIXTH_Y = (
    Shape(
        "replies_marked_word_by_word",
        "gossip.py",
        (*LOADER, "HO06"),
        also=(*LOADER, "HO06"),
        timed=True,
    ),
    Shape(
        "buffer_shuffled_for_each_chat",
        "gossip.py",
        (*LOADER, "HO06"),
        also=(*LOADER, "HO06"),
        timed=True,
    ),
    Shape("repeats_counted_in_list", "gossip.py", HOST, timed=True),
    Shape("shingles_of_all_chats", "gossip.py", GROWS, also=(*GROWS, "HO12", "HO03")),
    Shape(
        "filler_sees_no_word",
        "gossip.py",
        ("NU01",),
        also=("NU01", "NU02", "NU03", "NU07"),
    ),
    Shape("speakers_are_unused_column", "gossip.py", ("NU08",)),
    Shape("older_chats_run_out", "gossip.py", ENDS, also=ENDS, exit_code=1),
    Shape(
        "gaps_carried_reading_by_reading",
        "locomotives.py",
        (*LOADER, "HO06"),
        also=(*LOADER, "HO06"),
        timed=True,
    ),
    Shape(
        "drift_removed_at_each_reload",
        "locomotives.py",
        ("IN05", "IN15", "HO15", "HO06"),
        also=("IN05", "IN15", "HO15", "HO06", *LOADER),
        timed=True,
    ),
    Shape("covariance_inverted_for_each_row", "locomotives.py", HOST, timed=True),
    Shape("residuals_whole_until_fit_ends", "locomotives.py", GROWS, also=(*GROWS, "HO12")),
    Shape("forecaster_stays_toggled_off", "locomotives.py", ("NU08",), also=("NU08", "NU19")),
    Shape("warmup_stepped_for_first_alone", "locomotives.py", ("NU06",), also=("NU06", "NU07")),
    Shape(
        "permit_lost_with_nothing_to_save",
        "locomotives.py",
        ("HC01", "HC11"),
        also=(*STOPS, "HC11"),
        exit_code=(130, 1),
        hangs=True,
    ),
)
"""Gossip under transformers' Trainer, and locomotives under Lightning; marks and all before any of
it was run under gputop.
"""


BATCHES = (
    SHAPES,
    SECOND,
    THIRD,
    FOURTH,
    FIFTH,
    SEVENTH,
    EIGHTH,
    NINTH,
    TENTH,
    TWELFTH,
    THIRTEENTH,
    FOURTEENTH,
    FIFTEENTH,
    SIXTEENTH,
    SEVENTEENTH_B,
    SEVENTEENTH_A,
    EIGHTEENTH_A,
    EIGHTEENTH_B,
    NINETEENTH_C,
    TWENTIETH_A,
    TWENTIETH_B,
    TWENTIETH_C,
    TWENTYFIRST_A,
    TWENTYFIRST_B,
    TWENTYSECOND_A,
    TWENTYSECOND_B,
    TWENTYTHIRD_P,
    TWENTYTHIRD_Q,
    TWENTYFOURTH_R,
    TWENTYFOURTH_S,
    TWENTYFIFTH_T,
    TWENTYFIFTH_U,
    TWENTYFIFTH_V,
    TWENTYSIXTH_W,
    TWENTYSIXTH_X,
    TWENTYSIXTH_Y,
    TWENTYSEVENTH_W,
    TWENTYSEVENTH_X,
    TWENTYSEVENTH_Y,
    TWENTYEIGHTH_Z,
    TWENTYEIGHTH_Y,
    TWENTYEIGHTH_X,
    TWENTYNINTH_X,
    TWENTYNINTH_Y,
    TWENTYNINTH_Z,
    THIRTIETH_X,
    THIRTIETH_Y,
    THIRTIETH_Z,
    THIRTYFIRST_X,
    THIRTYFIRST_Y,
    THIRTYFIRST_Z,
    THIRTYSECOND_X,
    THIRTYSECOND_Y,
    THIRTYSECOND_Z,
    THIRTYTHIRD_X,
    THIRTYTHIRD_Y,
    THIRTYTHIRD_Z,
    THIRTYFOURTH_X,
    THIRTYFOURTH_Y,
    THIRTYFOURTH_Z,
    THIRTYFIFTH_X,
    THIRTYFIFTH_Y,
    THIRTYFIFTH_Z,
    THIRTYSIXTH_Y,
)
"""As docs/reliability.md counts them; the sixth and the eleventh are not among them."""
SOON = {"GPUTOP_HANG_S": "4"}
"""A run that stands still is judged so after four seconds."""
SOON_ALONE = SOON | {"WORLD": "1"}
ENVIRONMENT: dict[str, dict[str, str]] = {
    "moments_of_first_alone": SOON,
    "floor_of_whole_night": {"STEPS": "110"},
    "queue_counts_batches": {"STEPS": "320"},
    "clean_queue_counts_batches": {"STEPS": "320"},
    "refilled_until_mixed": SOON_ALONE,
    "tides_part_by_part": {"STEPS": "160"},
    "conflict_at_each_step": {"STEPS": "200"},
    "drift_cleared_by_epoch": {"STEPS": "500"},
    "clean_drift_cleared_by_epoch": {"STEPS": "500"},
    "folder_by_own_process": SOON,
    "last_batch_of_one": SOON,
    "saved_by_own_clock": SOON,
    "board_leaves_out": SOON_ALONE,
    "padded_to_round_length": {"STEPS": "130"},
    "processor_watched": {"STEPS": "110"},
    "states_in_history": {"STEPS": "240"},
    "clean_states_in_history": {"STEPS": "240"},
    "outputs_of_validations": {"STEPS": "400"},
    "clean_outputs_of_validations": {"STEPS": "400"},
    "asked_by_one_side": SOON,
    "penalty_makes_dense": {"STEPS": "80"},
    "unused_flag": {"STEPS": "560"},
    "clean_unused_flag": {"STEPS": "560"},
    "always_clipped": {"STEPS": "720"},
    "clean_always_clipped": {"STEPS": "720"},
    "losses_keep_graph": {"STEPS": "350"},
    "killed": {"STEPS": "300"},
    "collect_garbage": {"STEPS": "150"},
    "rank_hangs": SOON,
    "logits_cached": {"STEPS": "1500"},
    "gc_every": {"STEPS": "120"},
    "outputs_for_the_end": {"STEPS": "1200"},
    "clipped_by_nothing": {"STEPS": "720"},
    "clean_clipped_by_nothing": {"STEPS": "720"},
    "backward_by_rows": {"STEPS": "2000"},
    "hook_on_one": {"STEPS": "800"},
    "queue_behind": {"STEPS": "1500"},
    "uneven_end": SOON,
    "steps_skipped_by_norm": {"STEPS": "720"},
    "rollout_with_graph": {"STEPS": "150"},
    "subgraphs_kept": {"STEPS": "400"},
    "worker_sleeps": SOON_ALONE,
    "lock_held": SOON_ALONE,
    "no_reply": SOON_ALONE,
    "nothing_queued": SOON_ALONE,
    "loops_for_ever": SOON_ALONE,
    "rank2_stands": SOON | {"WORLD": "3"},
    "other_operation": SOON,
    "norms_by_value": {"STEPS": "300"},
    "histograms": {"STEPS": "200"},
    "stuck_reading": SOON,
    "embeddings_cached": {"STEPS": "1200"},
    "watcher_spins": {"STEPS": "60"},
    "threads_of_eight": {"STEPS": "120"},
    "pool_waits": SOON_ALONE,
    "maker_dies": SOON_ALONE,
    "lock_across": SOON | {"WORLD": "3"},
    "activations_kept": {"STEPS": "600"},
    "rows_sent": {"STEPS": "130"},
    "last_waits": SOON | {"WORLD": "3"},
    "barrier_of_one": SOON | {"WORLD": "3"},
    "paths_kept": {"STEPS": "700"},
    "never_accepted": SOON_ALONE,
    "annotator_joined": SOON_ALONE,
    "prefixes_kept": {"STEPS": "500"},
    "clean_prefixes_kept": {"STEPS": "500"},
    "remote_gone": SOON_ALONE,
    "packer_unread": SOON_ALONE,
    "unequal_validation": SOON,
    "keys_of_own_labels": SOON,
    "writer_closed_early": SOON_ALONE,
    "notified_before": SOON,
    "each_sends_first": SOON,
    "broken_skipped_alone": SOON,
    "gathered_by_first": SOON,
    "pruned_under_lock": SOON_ALONE,
    "saved_by_the_first": SOON,
    "graph_of_gradients": {"STEPS": "180"},
    "reference_fitted_each": {"STEPS": "120"},
    "distances_spread": {"STEPS": "130"},
    "revived_if_own": SOON,
    "canvas_holds_graphs": {"STEPS": "300"},
    "clean_canvas_holds_graphs": {"STEPS": "300"},
    "forked_under_lock": SOON_ALONE,
    "stretched_by_scene": {"STEPS": "140"},
    "visits_by_whole_view": {"STEPS": "650"},
    "clean_visits_by_whole_view": {"STEPS": "650"},
    "whole_state_of_first": SOON,
    "whole_archive_each_row": {"STEPS": "110"},
    "encodings_for_map": {"STEPS": "300"},
    "clean_encodings_for_map": {"STEPS": "300"},
    "recalls_of_states_present": SOON,
    "group_made_by_first": SOON,
    "divergence_of_whole_rollout": {"STEPS": "240"},
    "warped_sample_by_sample": {"STEPS": "150"},
    "trigger_checked_by_setter": SOON,
    "best_by_own_loss": SOON,
    "quiet_batches_not_summed": SOON,
    "blurred_before_cropping": {"STEPS": "110"},
    "margins_by_each_pair": {"STEPS": "150"},
    "preview_thread_never_waits": {"STEPS": "40"},
    "hue_by_colorsys": {"STEPS": "150"},
    "rough_pictures_often": {"STEPS": "150"},
    "prompt_cut_by_letters": {"STEPS": "140"},
    "evaluated_through_wrapper": SOON,
    "flake_drawn_by_pixel": {"STEPS": "130"},
    "longest_of_first_tablets": {"STEPS": "120"},
    "beams_at_each_look": {"STEPS": "100"},
    "prior_gathered_by_main_first": SOON,
    "sampler_states_for_rewind": {"STEPS": "320"},
    "clean_sampler_states_for_rewind": {"STEPS": "320"},
    "empties_sent_if_any": SOON,
    "views_cached_by_mask": {"STEPS": "400"},
    "clean_views_cached_by_mask": {"STEPS": "400"},
    "stopped_by_own_area": SOON,
    "shingles_of_all_chats": {"STEPS": "300"},
    "clean_shingles_of_all_chats": {"STEPS": "300"},
    "gaps_carried_reading_by_reading": {"STEPS": "100"},
    "residuals_whole_until_fit_ends": {"STEPS": "280"},
    "clean_residuals_whole_until_fit_ends": {"STEPS": "280"},
    "permit_lost_with_nothing_to_save": SOON,
}
