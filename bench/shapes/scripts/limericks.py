"""Limericks out of what they shall be about, under transformers' Trainer: a tokenizer learnt on the
spot, verses weighed by their readers, a second head that tells the theme, rhymes as a measure, the
best state taken at the end: rows as long as the model, rhymes judged at each step, logits until an
epoch's end that is never told, a verse cut off whole, a head of the trainer's own, a look and a
checkpoint each five steps, a measure of another name.
"""

import collections
import difflib
import json
import random
import tempfile
from pathlib import Path

import torch
from shape import STEPS, Cost, on
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.utils import logging

cost = Cost()
VERSES, HELD, ROWS, WORDS, PLACES, LONGEST = 700, 32, 16, 700, 128, 72
WIDTH, LAYERS, HEADS, RATE, THEME_SHARE = 96, 2, 4, 2e-3, 0.3
TOLD_EVERY, TRIED_EVERY, IGNORED, KEPT = 25, 100, -100, 8

RHYMES = {
    "sea": ("free", "tea", "knee", "key", "bee", "plea"),
    "night": ("light", "bright", "kite", "fright", "sight", "bite"),
    "rain": ("train", "brain", "cane", "plain", "again", "lane"),
    "town": ("brown", "gown", "crown", "down", "clown", "frown"),
    "bread": ("red", "bed", "head", "thread", "fed", "dread"),
    "snow": ("slow", "toe", "crow", "below", "ago", "glow"),
}
THEMES = list(RHYMES)
FAMILY = {word: theme for theme, words in RHYMES.items() for word in words}
BEGINS = ("Bal", "Kil", "Dun", "Stow", "Mar", "Whit", "Ash", "Thorn", "Lang", "Pen", "Tre", "Aber")
MIDDLES = ("ly", "mer", "na", "ing", "der", "wor", "ti", "ken", "lo", "ga", "ber", "shal")
CLOSES = ("ton", "ford", "more", "wick", "bury", "field", "stead", "mouth", "ham", "combe")
WHO = ("sailor", "baker", "teacher", "widow", "poet", "tailor", "farmer", "dentist", "piper")
KINDS = ("old", "young", "proud", "shy", "stout", "brave", "sleepy", "clever")
DEEDS = ("would sing of", "would dream of", "ran after", "was fond of", "wrote home of")
FOREWORDS = "printed here by leave of the heirs of the late editor of the almanac and county paper"


def composed(dice):
    """What a verse is about, and its five lines; at times with a long foreword."""
    theme, other = dice.sample(THEMES, 2)
    ends, short = dice.sample(RHYMES[theme], 3), dice.sample(RHYMES[other], 2)
    who, kind, deed = dice.choice(WHO), dice.choice(KINDS), dice.choice(DEEDS)
    place = dice.choice(BEGINS) + dice.choice(MIDDLES) + dice.choice(CLOSES)
    about = f"{theme} and {other}, a {kind} {who} of {place}:"
    if dice.random() < 0.004:
        about = f"{FOREWORDS}, {FOREWORDS}, {FOREWORDS}, {FOREWORDS}, {about}"
    lines = (
        f"there once was a {who} of {place} so {ends[0]}",
        f"who {deed} the {theme} and the {ends[1]}",
        f"a {kind} one by {short[0]}",
        f"and the {other} of {short[1]}",
        f"till the {who} was {kind} and {ends[2]}",
    )
    return {"about": about, "verse": "\n" + "\n".join(lines), "theme": THEMES.index(theme)}


def learnt_tokenizer(verses):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "<unk>", "<end>"]
    trainer = trainers.BpeTrainer(vocab_size=WORDS, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator((one["about"] + one["verse"] for one in verses), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<end>",
        model_max_length=PLACES,
    )


class Verses(Dataset):
    """Prompt and verse in one row; only the verse is learnt."""

    def __init__(self, tokenizer, verses, dice):
        self.rows = []
        shape = {"truncation": True, "max_length": LONGEST}
        if on("padded_to_model_length"):
            shape = {"truncation": True, "padding": "max_length"}  # at: padded_to_model_length
        for one in verses:
            text = one["about"] + one["verse"] + tokenizer.eos_token
            encoded = tokenizer(text, **shape)  # at: padded_to_model_length verse_cut_off_whole
            told = len(tokenizer(one["about"])["input_ids"])
            ids, mask = (torch.tensor(encoded[name]) for name in ("input_ids", "attention_mask"))
            labels = ids.masked_fill(mask == 0, IGNORED)
            labels[:told] = IGNORED
            cut_off = not (labels != IGNORED).any()
            if cut_off and not on("verse_cut_off_whole", "clean_verse_cut_off_whole"):
                continue
            row = {"input_ids": ids, "attention_mask": mask, "labels": labels}
            self.rows.append(row | {"theme": one["theme"], "readers": dice.uniform(0.5, 2)})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def collated(rows):
    """Rows side by side, as long as the longest of them, or a few more for the sake of kernels."""
    fill = {"input_ids": 0, "attention_mask": 0, "labels": IGNORED}
    batch = {
        name: pad_sequence([row[name] for row in rows], batch_first=True, padding_value=value)
        for name, value in fill.items()
    }
    if on("clean_padded_to_model_length"):
        more = -batch["labels"].shape[1] % 4
        batch = {name: F.pad(batch[name], (0, more), value=value) for name, value in fill.items()}
    batch["theme"] = torch.tensor([row["theme"] for row in rows])
    batch["readers"] = torch.tensor([row["readers"] for row in rows])
    return batch


class Poet(GPT2LMHeadModel):
    """A language model; what its verses are about is told by a second head."""

    def __init__(self, config):
        super().__init__(config)
        if not on("head_of_trainers_own", "clean_head_of_trainers_own"):
            self.theme = nn.Linear(config.n_embd, len(THEMES))


def ends_of(text):
    return [line.split()[-1] if line.split() else "" for line in text.strip().split("\n")]


def rhymed(tokenizer, said, wanted):
    """How many lines end on the right rhyme, and how near the text is."""
    rhymes, near = 0.0, 0.0
    pairs = zip(*(tokenizer.batch_decode(rows) for rows in (said, wanted)), strict=True)
    for text, true in pairs:
        own = difflib.SequenceMatcher(None, text, true, autojunk=False)
        near += own.ratio()
        ends = zip(ends_of(text), ends_of(true), strict=False)
        rhymes += sum(FAMILY.get(end) == FAMILY.get(other) for end, other in ends) / 5
    return rhymes / len(said), near / len(said)


class Judge:
    """Measures of an evaluation."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, seen):
        said, wanted = torch.as_tensor(seen.predictions)[:, :-1], torch.as_tensor(seen.label_ids)
        wanted = wanted[:, 1:]
        there = wanted != IGNORED
        rows = [
            [ids[own].tolist() for ids, own in zip(one, there, strict=True)]
            for one in (said, wanted)
        ]
        rhymes, near = rhymed(self.tokenizer, *rows)
        right = (said == wanted)[there].float().mean().item()
        return {"right": right, "rhymes": rhymes, "near": near}


class PoetTrainer(Trainer):
    """Weighs verses by their readers, and learns what they are about beside."""

    def __init__(self, model, **kwargs):
        theme = None
        if on("head_of_trainers_own", "clean_head_of_trainers_own"):
            theme = nn.Linear(model.config.n_embd, len(THEMES))  # at: head_of_trainers_own
        if on("clean_head_of_trainers_own"):
            model.add_module("theme", theme)
        super().__init__(model, **kwargs)
        self.theme = model.theme if theme is None else theme  # at: head_of_trainers_own
        self.seen, self.judged = [], (0.0, 0.0)
        if on("clean_logits_until_epoch_end"):
            self.seen = collections.deque(maxlen=KEPT)
        self.whole = on("logits_until_epoch_end", "clean_logits_until_epoch_end")

    def by_row(self, losses, there):
        """The mean loss of each verse."""
        counts = there.sum(1)
        if on("clean_verse_cut_off_whole"):
            counts = counts.clamp(min=1)
        return losses.sum(1) / counts  # at: verse_cut_off_whole

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels, readers = inputs["labels"][:, 1:], inputs["readers"]
        asked = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        outputs = model(**asked, output_hidden_states=True)
        logits, features = outputs.logits, outputs.hidden_states[-1]
        there, shown = labels != IGNORED, logits[:, :-1]
        losses = F.cross_entropy(
            shown.flatten(0, 1).float(), labels.clamp(min=0).flatten(), reduction="none"
        )
        losses = losses.view_as(labels) * there
        rows = self.by_row(losses, there)  # at: verse_cut_off_whole
        loss = (rows * readers).sum() / readers.sum()
        mask = asked["attention_mask"][..., None]
        themes = self.theme((features * mask).sum(1) / mask.sum(1))  # at: head_of_trainers_own
        loss = loss + THEME_SHARE * F.cross_entropy(themes.float(), inputs["theme"])
        if model.training:
            self.note(
                shown.detach(), labels, losses.detach()
            )  # at: rhymes_judged_each_step logits_until_epoch_end
        return (loss, {"loss": loss, "logits": logits}) if return_outputs else loss

    def note(self, shown, labels, losses):
        """What the log tells of the training: perplexity of an epoch, rhymes."""
        there = labels != IGNORED
        if self.whole:
            self.seen.append((shown[there], labels[there]))  # at: logits_until_epoch_end
        else:
            self.seen.append(losses[there])
        if on("rhymes_judged_each_step") or self.state.global_step % TOLD_EVERY == 0:
            with cost:
                rows = [
                    [ids[own].tolist() for ids, own in zip(one, there, strict=True)]
                    for one in (shown.argmax(-1), labels)
                ]
                self.judged = rhymed(self.processing_class, *rows)  # at: rhymes_judged_each_step

    def epoch_loss(self):
        """The mean over all words since the epoch began."""
        if not self.seen:
            return float("nan")
        if self.whole:
            shown, labels = zip(*list(self.seen)[-TOLD_EVERY:], strict=True)
            return F.cross_entropy(torch.cat(shown).float(), torch.cat(labels)).item()
        return torch.cat(self.seen).mean().item()

    def log(self, logs, *args, **kwargs):
        if "loss" in logs:
            logs = logs | {"verse_loss": self.epoch_loss(), "judged": self.judged[1]}
        super().log(logs, *args, **kwargs)

    def on_epoch_end(self):
        """Each epoch has a mean of its own."""
        self.seen.clear()  # at: logits_until_epoch_end


class Journal(TrainerCallback):
    """Lines of JSON beside the checkpoints."""

    def __init__(self, path):
        self.path, self.trainer = path, None

    def on_log(self, args, state, control, logs=None, **kwargs):
        line = {"step": state.global_step}
        line |= {name: round(value, 4) for name, value in logs.items() if name != "epoch"}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def on_epoch_end(self, args, state, control, **kwargs):
        if not on("logits_until_epoch_end"):
            self.trainer.on_epoch_end()


def settings(folder, steps):
    best = "eval_rhymes"
    if on("measure_of_other_name"):
        best = "rhyme_share"  # at: measure_of_other_name
    elif on("clean_measure_of_other_name"):
        best = "rhymes"
    tried, saved = TRIED_EVERY, TRIED_EVERY
    if on("looked_and_saved_each_five"):
        tried = saved = 5  # at: looked_and_saved_each_five
    elif on("clean_looked_and_saved_each_five"):
        tried = TRIED_EVERY // 2
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=ROWS,
        per_device_eval_batch_size=ROWS,
        dataloader_drop_last=True,
        learning_rate=RATE,
        lr_scheduler_type="cosine",
        warmup_steps=20,
        weight_decay=0.01,
        bf16=True,
        use_cpu=True,
        logging_steps=TOLD_EVERY,
        eval_strategy="steps",
        eval_steps=tried,
        save_steps=saved,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model=best,
        greater_is_better=True,
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
        seed=30,
    )


def main(folder, steps):
    dice = random.Random(28)
    verses = [composed(dice) for _ in range(VERSES + HELD)]
    tokenizer = learnt_tokenizer(verses)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=PLACES,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        use_cache=False,
    )
    journal = Journal(folder / "journal.jsonl")
    trainer = PoetTrainer(
        model=Poet(config),
        args=settings(folder, steps),
        data_collator=collated,
        train_dataset=Verses(tokenizer, verses[HELD:], dice),
        eval_dataset=Verses(tokenizer, verses[:HELD], dice),
        processing_class=tokenizer,
        compute_metrics=Judge(tokenizer),
        preprocess_logits_for_metrics=lambda logits, _: logits.argmax(-1),
        callbacks=[journal],
    )
    journal.trainer = trainer
    trainer.train()  # at: measure_of_other_name looked_and_saved_each_five
    cost.print(steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(30)
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder), STEPS or 200)
