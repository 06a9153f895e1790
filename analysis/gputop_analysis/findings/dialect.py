"""A change in the words of the loop's owner: a trainer's argument, or a line of the user's."""

from __future__ import annotations

from gputop_analysis.findings.facts import Facts

_ARGUMENTS = {
    "num_workers": "dataloader_num_workers",
    "persistent_workers": "dataloader_persistent_workers",
    "prefetch_factor": "dataloader_prefetch_factor",
    "pin_memory": "dataloader_pin_memory",
    "drop_last": "dataloader_drop_last",
    "batch_size": "per_device_train_batch_size",
}
"""Names that TrainingArguments has for what a DataLoader is given (transformers 4.30 and later)."""

_PHRASES = {
    "autocast": {
        "": "torch.autocast('{device}', torch.{dtype})",
        "transformers": "{short}=True in TrainingArguments",
        "lightning": "Trainer(precision='{short}-mixed')",
    },
    "clip": {
        "": "torch.nn.utils.clip_grad_norm_(model.parameters(), {norm})",
        "transformers": "max_grad_norm={norm} in TrainingArguments",
        "lightning": "Trainer(gradient_clip_val={norm})",
    },
    "evaluate": {
        "": "evaluate every {every} steps instead of every {now}",
        "transformers": "eval_strategy='steps', eval_steps={every} in TrainingArguments (with "
        "load_best_model_at_end, save_steps must be a multiple of it)",
        "lightning": "Trainer(val_check_interval={every}, check_val_every_n_epoch=None)",
    },
    "save": {
        "": "save every {every:,} steps instead of every {now:,}",
        "transformers": "save_strategy='steps', save_steps={every} in TrainingArguments",
        "lightning": "ModelCheckpoint(every_n_train_steps={every}) among the Trainer's callbacks",
    },
    "compile": {
        "": "torch.compile(model)",
        "transformers": "torch_compile=True in TrainingArguments",
    },
    "fused": {
        "": "{optimizer}(..., fused=True)",
        "transformers": "optim='adamw_torch_fused' in TrainingArguments",
    },
    "accumulate": {
        "": "with model.no_sync(): around all micro-batches but the last",
        "transformers": "gradient_accumulation_steps={count} in TrainingArguments",
        "lightning": "Trainer(accumulate_grad_batches={count})",
    },
    "unused": {
        "": "find_unused_parameters=False for DistributedDataParallel",
        "transformers": "ddp_find_unused_parameters=False in TrainingArguments",
        "lightning": "Trainer(strategy='ddp'), which does not search for unused parameters",
    },
    "bucket": {
        "": "bucket_cap_mb={size} for DistributedDataParallel",
        "transformers": "ddp_bucket_cap_mb={size} in TrainingArguments",
        "lightning": "Trainer(strategy=DDPStrategy(bucket_cap_mb={size}))",
    },
}


def phrase(run: Facts, change: str, *, by_trainer: bool = True, **values: object) -> str:
    """A change in the words of the run's trainer; in those of an own loop where it has none, or
    where it is not the trainer that does what is to be changed.
    """
    words = _PHRASES[change]
    return words.get(run.trainer if by_trainer else "", words[""]).format(**values)


def loader_place(run: Facts) -> str:
    """Where the DataLoader is set up, with a blank before it as it follows a noun:
    `at train.py:124`, `of the transformers Trainer`. Empty where that was not seen.
    """
    loader = run.loader
    if run.trainer == "transformers" and not (loader.get("site") and "loop" in loader):
        return " of the transformers Trainer"
    if loader.get("site"):
        return f" at {loader['site']}"
    if run.trainer == "lightning":
        return " that train_dataloader() returns"
    if loader.get("loop"):
        return f" that {loader['loop']} iterates"
    return ""


def loader_site(run: Facts) -> str | None:
    """The line where the DataLoader is built; None if not the user's, or not seen."""
    loader = run.loader
    foreign = run.trainer == "transformers" and "loop" not in loader
    return None if foreign else loader.get("site")


def loader_change(run: Facts, **settings: object) -> str:
    """Arguments of the DataLoader, and who takes them: a trainer that builds it itself."""
    if run.trainer == "transformers" and loader_site(run) is None:
        known_arguments = {name: value for name, value in settings.items() if name in _ARGUMENTS}
        arguments = ", ".join(
            f"{_ARGUMENTS[name]}={value}" for name, value in known_arguments.items()
        )
        return f"{arguments} in TrainingArguments"
    arguments = ", ".join(f"{name}={value}" for name, value in settings.items())
    return f"{arguments} in the DataLoader{loader_place(run)}"


def takes(run: Facts, setting: str) -> bool:
    """Whether a setting of the DataLoader can be given where the run builds it."""
    return run.trainer != "transformers" or loader_site(run) is not None or setting in _ARGUMENTS
