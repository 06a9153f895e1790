"""Names in the notices of a gazette, tagged by a small encoder under transformers' Trainer with a
dataset, a collator, callbacks, a weighed loss and metrics of its own: a vocabulary asked for whole,
weights counted anew, kinds that are absent, an atlas of words, a patience that reads the log,
cycles of a rate, vectors that come late.
"""

import collections
import concurrent.futures
import random
import tempfile
import warnings

import numpy as np
import torch
from shape import STEPS, Cost, on
from tokenizers import Tokenizer, models
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import (
    ElectraConfig,
    ElectraForTokenClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

warnings.filterwarnings("ignore")
cost = Cost()
KINDS = ("PERSON", "PLACE", "SHIP", "SUM")
TAGS = ["O", *(f"{part}-{kind}" for kind in KINDS for part in "BI")]
SHARES = (0.38, 0.28, 0.19, 0.15)
LEADS = {
    "PERSON": ("mr", "mrs", "captain", "widow"),
    "PLACE": ("at", "near", "from", "towards"),
    "SHIP": ("aboard", "vessel", "brig", "aground"),
    "SUM": ("worth", "owing", "paid", "bail"),
}
SYLLABLES = [a + b for a in "bdfghklmnprstvwz" for b in ("a", "e", "i", "o", "u", "ar", "en")]
IGNORED = -100


def lexicon(dice):
    """Plain words, and names of which some are at home in every kind."""
    plain = ["".join(dice.choices(SYLLABLES, k=2)) for _ in range(300)]
    found = ["".join(dice.choices(SYLLABLES, k=3)) for _ in range(320)]
    return plain, {kind: found[:80] + found[80 + n :: 4] for n, kind in enumerate(KINDS)}


def notice(dice, plain, own):
    """Words of a notice and the tag of each."""
    words, tags = [], []
    for _ in range(2):
        filling = [dice.choice(plain) for _ in range(dice.randint(2, 4))]
        kind = dice.choices(KINDS, SHARES)[0]
        name = [dice.choice(own[kind]) for _ in range(dice.choice((1, 2, 2, 3)))]
        words += [*filling, dice.choice(LEADS[kind]), *name]
        tags += ["O"] * (len(filling) + 1)
        tags += [f"B-{kind}"] + [f"I-{kind}"] * (len(name) - 1)
    return words, tags


def tokenizer():
    """Pieces of words, as they are and as they go on within a word."""
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    pieces = [*special.values(), *sum(LEADS.values(), ()), *SYLLABLES]
    pieces += [f"##{piece}" for piece in SYLLABLES] + [f"[unused{n}]" for n in range(1600)]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    built = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    return PreTrainedTokenizerFast(tokenizer_object=built, **special)


class Notices(Dataset):
    """Rows of pieces; the first piece of a word carries its tag. Some pieces are left out."""

    def __init__(self, notices, tokens, left_out=0.0):
        self.tokens, self.left_out, self.blank = tokens, left_out, tokens.mask_token
        self.dice, self.rows = random.Random(23), []
        for words, tags in notices:
            told = tokens(words, is_split_into_words=True, add_special_tokens=False)
            places = told.word_ids()
            labels = [
                TAGS.index(tags[word]) if n == 0 or places[n - 1] != word else IGNORED
                for n, word in enumerate(places)
            ]
            self.rows.append((told["input_ids"], labels))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        ids, labels = self.rows[index]
        if not self.left_out:
            return {"input_ids": ids, "labels": labels}
        if on("vocabulary_whole"):
            with cost:
                blank = self.tokens.get_vocab()[self.blank]  # at: vocabulary_whole
        else:
            blank = self.tokens.convert_tokens_to_ids(self.blank)
        kept = [blank if self.dice.random() < self.left_out else one for one in ids]
        return {"input_ids": kept, "labels": labels}


class Collator:
    """Rows as long as the longest of them."""

    def __init__(self, tokens):
        self.tokens = tokens

    def __call__(self, rows):
        pad = self.tokens.pad_token_id
        if on("clean_vocabulary_whole"):
            with cost:
                pad = self.tokens.get_vocab()["[PAD]"]
        longest = max(len(row["input_ids"]) for row in rows)
        ids = torch.full((len(rows), longest), pad)
        labels = torch.full((len(rows), longest), IGNORED)
        for n, row in enumerate(rows):
            ids[n, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
            labels[n, : len(row["labels"])] = torch.tensor(row["labels"])
        return {"input_ids": ids, "attention_mask": (ids != pad).long(), "labels": labels}


def centred(states, mask):
    """Words of a batch around their middle."""
    words = np.asarray(states, dtype=np.float64)
    shown = np.asarray(mask, dtype=np.float64)[..., None]
    return words - (words * shown).sum((0, 1)) / shown.sum()


class Atlas:
    """Where the words lie; the last batches are laid out at the end."""

    def __init__(self, shown=20):
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        self.shown = shown
        self.batches = collections.deque(maxlen=shown) if on("clean_futures_kept") else []

    def add(self, states, mask):
        self.batches.append(self.pool.submit(centred, states, mask))  # at: futures_kept

    def close(self):
        rows = [batch.result() for batch in list(self.batches)[-self.shown :]]
        self.pool.shutdown()
        return [float(row.std()) for row in rows]


def balance(counts):
    """Rare tags weigh more."""
    return (counts.sum() / (len(TAGS) * counts)).sqrt()


class GazetteTrainer(Trainer):
    def __init__(self, *args, atlas=None, **options):
        super().__init__(*args, **options)
        self.atlas = atlas
        self.weights = balance(self.counted())

    def counted(self):
        counts = collections.Counter()
        for _, labels in self.train_dataset.rows:
            counts.update(labels)  # at: weights_recounted
        return torch.tensor([float(counts[n]) for n in range(len(TAGS))])

    def weighed(self, labels):
        if on("weights_recounted"):
            with cost:
                return balance(self.counted())  # at: weights_recounted
        found = torch.bincount(labels[labels != IGNORED], minlength=len(TAGS)).float()
        if on("clean_weights_recounted"):
            with cost:
                return balance(found.clamp(min=1))
        if on("kind_absent"):
            return balance(found)  # at: kind_absent
        if on("clean_kind_absent"):
            return torch.where(found > 0, balance(found), 0.0)
        return self.weights

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        watched = self.atlas is not None and model.training
        outputs = model(**inputs, output_hidden_states=watched)
        loss = F.cross_entropy(
            outputs.logits.flatten(0, 1),
            labels.flatten(),
            self.weighed(labels),  # at: weights_recounted kind_absent
            ignore_index=IGNORED,
            label_smoothing=0.05,
        )
        if watched:
            states = outputs.hidden_states[-1].detach()
            self.atlas.add(states, inputs["attention_mask"])  # at: futures_kept
        return (loss, {"logits": outputs.logits}) if return_outputs else loss

    def create_optimizer(self, *_):
        slim = [value for value in self.model.parameters() if value.ndim < 2]
        wide = [value for value in self.model.parameters() if value.ndim > 1]
        self.optimizer = torch.optim.AdamW(  # at: furnished_late
            [{"params": wide, "weight_decay": 0.01}, {"params": slim, "weight_decay": 0.0}],
            lr=self.args.learning_rate,
        )
        return self.optimizer


def furnish(model, tokens):
    """Pieces within a word begin where the same pieces at its start do."""
    table = model.get_input_embeddings().weight.detach().clone()
    inner = tokens.convert_tokens_to_ids([f"##{piece}" for piece in SYLLABLES])
    table[inner] = table[tokens.convert_tokens_to_ids(SYLLABLES)]
    fresh = nn.Embedding.from_pretrained(table, freeze=False, padding_idx=tokens.pad_token_id)
    model.set_input_embeddings(fresh)  # at: furnished_late


class Furnished(TrainerCallback):
    def __init__(self, tokens):
        self.tokens = tokens

    def on_train_begin(self, args, state, control, model=None, **_):
        furnish(model, self.tokens)  # at: furnished_late


class Patience(TrainerCallback):
    """Ends a training whose loss does not fall any more."""

    def __init__(self, looks=60):
        self.looks, self.best, self.bad = looks, float("inf"), 0

    def on_step_end(self, args, state, control, **_):
        if state.global_step % 10 or not state.log_history:
            return
        if on("patience_reads_last"):
            loss = state.log_history[-1]["loss"]  # at: patience_reads_last
        elif on("clean_patience_reads_last"):
            loss = state.log_history[-1].get("loss", self.best)
        else:
            loss = [entry["loss"] for entry in state.log_history if "loss" in entry][-1]
        self.bad = self.bad + 1 if loss >= self.best else 0
        self.best = min(self.best, loss)
        control.should_training_stop |= self.bad > self.looks


def names(tags):
    """Where the names of a row begin and end, and their kinds."""
    found, begin = set(), None
    for place, tag in enumerate([*tags, 0]):
        if begin is not None and TAGS[tag][0] != "I":
            found.add((begin, place, TAGS[tags[begin]][2:]))
            begin = None
        if TAGS[tag][0] == "B":
            begin = place
    return found


def measured(prediction):
    """The share of names that were found whole, and of the right kind."""
    right = total = 0
    for scores, labels in zip(prediction.predictions, prediction.label_ids, strict=True):
        seen = labels != IGNORED
        truth = names(labels[seen].tolist())
        right += len(truth & names(scores[seen].argmax(-1).tolist()))
        total += len(truth)
    return {"names": round(right / max(total, 1), 4)}


def main(folder, steps):
    dice = random.Random(20)
    plain, own = lexicon(dice)
    tokens = tokenizer()
    data = Notices([notice(dice, plain, own) for _ in range(8000)], tokens, left_out=0.05)
    held = Notices([notice(dice, plain, own) for _ in range(96)], tokens)
    config = ElectraConfig(
        vocab_size=len(tokens),
        embedding_size=64,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=96,
        num_labels=len(TAGS),
    )
    model = ElectraForTokenClassification(config)
    kind, options = "linear", {}
    if on("cosine_cycles"):
        kind, options = "cosine", {"num_cycles": 4}  # at: cosine_cycles
    elif on("clean_cosine_cycles"):
        kind, options = "cosine_with_restarts", {"num_cycles": 4}
    callbacks = [Patience()]  # at: patience_reads_last
    if on("furnished_late"):
        callbacks.append(Furnished(tokens))  # at: furnished_late
    elif on("clean_furnished_late"):
        furnish(model, tokens)
    atlas = Atlas() if on("futures_kept", "clean_futures_kept") else None
    arguments = TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=24,
        learning_rate=2e-3,
        warmup_steps=20,
        max_grad_norm=5.0,
        logging_steps=25,
        eval_strategy="steps",
        eval_steps=150,
        per_device_eval_batch_size=48,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        lr_scheduler_type=kind,  # at: cosine_cycles
        lr_scheduler_kwargs=options,  # at: cosine_cycles
    )
    trainer = GazetteTrainer(
        model=model,
        args=arguments,
        data_collator=Collator(tokens),
        train_dataset=data,
        eval_dataset=held,
        compute_metrics=measured,
        callbacks=callbacks,
        atlas=atlas,
    )
    trainer.train()
    if atlas is not None:
        print("spread", round(float(np.mean(atlas.close())), 4), flush=True)
    cost.print(steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(20)
    with tempfile.TemporaryDirectory() as folder:
        main(folder, STEPS or 360)
