"""What is injected into which script, and what a right answer is: data for
``bench/shapes/run.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
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
        """File names and lines that carry the fault's mark."""
        found = set()
        for path in SCRIPTS.glob("*.py"):
            for number, text in enumerate(path.read_text().splitlines(), 1):
                mark = re.search(r"# at: (.*)$", text)
                if mark and self.name in mark.group(1).split():
                    found.add((path.name, number))
        return found


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
)
"""As docs/reliability.md counts them; the sixth and the eleventh are not among them."""
SOON = {"GPUTOP_HANG_S": "4"}
"""A run that stands still is judged so after four seconds."""
SOON_ALONE = SOON | {"WORLD": "1"}
ENVIRONMENT: dict[str, dict[str, str]] = {
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
}
