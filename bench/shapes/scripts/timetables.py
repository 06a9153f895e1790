"""What a station says of its departures: a small T5 that says words or copies them from the board,
under transformers' Trainer with a loss, an optimizer and a prediction of its own: words aligned in
the collator, an alignment for every text, beams at each look, rates rounded, names that outnumber
what is spared for them, a name that nothing can say, neighbours of all words at each step.
"""

import sys
import tempfile
import time
from itertools import pairwise

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch.utils.data import Dataset
from transformers import (
    PrinterCallback,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

UPDATES = STEPS or 250
ROWS, PARTS, DEPARTURES, HELD = 12, 2, 600, 24
PAD, END, UNKNOWN, FIRST = 0, 1, 2, 3
KNOWN, MINUTES, SPARE = 600, 60, 6
WIDTH, DEPTH, RATE, FALL = 64, 2, 2e-3, 0.3
TOLD_EVERY, LOOK_EVERY, SAVED_EVERY, NEAREST_EVERY = 25, 50, 125, 50
SAID, BEAMS = 24, 4
GLUE = ("the", "train", "to", "leaves", "from", "platform", "calling", "at", "and", "late")
cost = Cost()


class Words:
    def __init__(self, dice):
        names = set()
        while len(names) < KNOWN + 200:
            names.add("".join(dice.choice(list("abdegiklmnorstu"), dice.integers(4, 10))))
        names = sorted(names)
        dice.shuffle(names)
        self.names, self.strange = names[:KNOWN], names[KNOWN:]
        minutes = [f"{minute}'" for minute in range(MINUTES)]
        self.ids = {w: n for n, w in enumerate((*GLUE, *minutes, *self.names), FIRST)}
        self.count = len(self.ids) + FIRST


def aligned(board, said):
    """Which words of the announcement lie beside their like, at the fewest changes."""
    costs = [[0] * (len(said) + 1) for _ in range(len(board) + 1)]
    for row in range(len(board) + 1):
        costs[row][0] = row
    costs[0] = list(range(len(said) + 1))
    for row in range(1, len(board) + 1):  # at: copies_aligned_in_collate
        for column in range(1, len(said) + 1):  # at: copies_aligned_in_collate
            ours = set(pairwise(board[row - 1]))  # at: copies_aligned_in_collate
            theirs = set(pairwise(said[column - 1]))  # at: copies_aligned_in_collate
            changed = 1 - len(ours & theirs) / len(ours | theirs)  # at: copies_aligned_in_collate
            costs[row][column] = min(
                costs[row - 1][column] + 1,
                costs[row][column - 1] + 1,
                costs[row - 1][column - 1] + changed,
            )  # at: copies_aligned_in_collate
    row, column, found = len(board), len(said), [0] * len(said)
    while row and column:
        if costs[row][column] == costs[row - 1][column] + 1:
            row -= 1
        elif costs[row][column] == costs[row][column - 1] + 1:
            column -= 1
        else:
            row, column = row - 1, column - 1
            found[column] = int(board[row] == said[column])
    return found


class Departures(Dataset):
    """Rows of the board and what was said of them; the minutes late are drawn at each access."""

    def __init__(self, words, count, seed):
        dice = np.random.default_rng(seed)
        self.rows, self.dice = [], np.random.default_rng(seed + 1)
        for number in range(count):
            stops = [str(name) for name in dice.choice(words.names, dice.integers(9, 14), False)]
            many = 8 if number == 401 else dice.integers(0, 5)
            for place in dice.choice(len(stops), many, replace=False):
                stops[place] = str(dice.choice(words.strange))
            called = sorted(dice.choice(len(stops) - 1, 7, replace=False))
            if number == 401:
                called = list(range(7))
            said = [*GLUE[:3], stops[-1], "leaves", "calling", "at"]
            said += [word for stop in called for word in (stops[stop], "and")][:-1]
            if number in (307, 455):
                said[3] = str(dice.choice(words.strange)) + "e"
            self.rows.append((stops, said))
        self.beside = None
        if on("clean_copies_aligned_in_collate"):
            self.beside = [aligned(stops, said) for stops, said in self.rows]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        stops, said = self.rows[index]
        late = self.dice.integers(0, MINUTES, len(stops))
        board = [word for stop, m in zip(stops, late, strict=True) for word in (stop, f"{m}'")]
        beside = self.beside[index] if self.beside else None
        return {"index": index, "board": board, "stops": stops, "said": said, "beside": beside}


class Collator:
    """Words to numbers; names that are not known get numbers of their own in each row."""

    def __init__(self, words):
        self.words, self.maps = words, {}

    def numbers(self, row):
        spare, board, said = {}, [], []
        for word in row["board"]:
            if word not in self.words.ids and word not in spare:
                spare[word] = self.words.count + len(spare)
            board.append(self.words.ids.get(word, spare.get(word)))
        if on("clean_spare_words_outnumbered"):
            last = self.words.count + SPARE - 1
            board = [min(number, last) for number in board]
            spare = {word: min(number, last) for word, number in spare.items()}
        for word in row["said"]:
            number = self.words.ids.get(word, spare.get(word, UNKNOWN))
            if number == UNKNOWN and on(
                "name_neither_copied_nor_said", "clean_name_neither_copied_nor_said"
            ):
                number = spare[word] = self.words.count + len(
                    spare
                )  # at: name_neither_copied_nor_said
            said.append(number)
        return [*board, END], [*said, END], len(spare)

    def weights(self, row):
        """Words that were copied count more."""
        with cost if on("copies_aligned_in_collate") else Cost():
            beside = row["beside"]
            if on("copies_aligned_in_collate"):
                beside = aligned(row["board"], row["said"])  # at: copies_aligned_in_collate
            elif beside is None:
                beside = [word in row["stops"] for word in row["said"]]
        return [1 + 0.5 * own for own in beside] + [1.0]

    def likeness(self, row, board, said):
        """Which word of the board each word of the announcement could be taken from."""
        key = " ".join(row["board"])  # at: alignments_cached_by_text
        if on("clean_alignments_cached_by_text"):
            key = row["index"] % 200
        if key not in self.maps or on("clean_alignments_cached_by_text"):
            alike = (np.array(said)[:, None] == np.array(board)).astype(float)
            self.maps[key] = np.pad(
                alike, ((0, 48 - len(said)), (0, 48 - len(board)))
            )  # at: alignments_cached_by_text
        return self.maps[key]

    def __call__(self, rows):
        numbers = [self.numbers(row) for row in rows]
        long = max(len(board) for board, _, _ in numbers)
        said_long = max(len(said) for _, said, _ in numbers)
        boards = np.full((len(rows), long), PAD)
        said, weights = np.full((2, len(rows), said_long), -100.0)
        for place, (row, (own, own_said, _)) in enumerate(zip(rows, numbers, strict=True)):
            boards[place, : len(own)] = own
            said[place, : len(own_said)] = own_said
            weights[place, : len(own_said)] = self.weights(row)  # at: copies_aligned_in_collate
            if on("alignments_cached_by_text", "clean_alignments_cached_by_text"):
                self.likeness(row, own, own_said)  # at: alignments_cached_by_text
        spare = max(1, *(count for _, _, count in numbers))
        if on("spare_words_outnumbered", "clean_spare_words_outnumbered"):
            spare = SPARE  # at: spare_words_outnumbered
        return {
            "boards": torch.from_numpy(boards),
            "spare": spare,
            "weights": torch.from_numpy(weights).float(),
            "labels": torch.from_numpy(said).long(),
        }


class Announcer(T5ForConditionalGeneration):
    """Says a word of its own, or one of the board."""

    def __init__(self, config):
        super().__init__(config)
        self.own = torch.nn.Linear(config.d_model, 1)
        self.asked = torch.nn.Linear(config.d_model, config.d_model)

    def shown(self, words):
        return words.masked_fill(words >= self.config.vocab_size, UNKNOWN)

    def chances(self, boards, before, spare):
        out = super().forward(
            input_ids=self.shown(boards),
            attention_mask=(boards != PAD).long(),
            decoder_input_ids=self.shown(before),
            output_hidden_states=True,
            use_cache=False,
        )
        state, seen = out.decoder_hidden_states[-1], out.encoder_last_hidden_state
        likely = self.asked(state) @ seen.mT / state.shape[-1] ** 0.5
        likely = likely.masked_fill((boards == PAD)[:, None], -1e9).softmax(-1)
        own = self.own(state).sigmoid()
        said = own * torch.nn.functional.pad(out.logits.softmax(-1), (0, spare))
        places = boards[:, None].expand(-1, likely.shape[1], -1)
        return said.scatter_add(2, places, (1 - own) * likely)  # at: spare_words_outnumbered


def shifted(labels):
    before = labels.roll(1, 1).masked_fill(labels.roll(1, 1) < 0, PAD)
    before[:, 0] = PAD
    return before


class AnnouncementTrainer(Trainer):
    def losses(self, model, inputs):
        labels = inputs["labels"]
        chances = model.chances(inputs["boards"], shifted(labels), inputs["spare"])
        there = labels >= 0
        chance = chances.gather(2, labels.clamp(min=0)[..., None])[..., 0]
        if not on("name_neither_copied_nor_said"):
            chance = chance.clamp(min=1e-6)
        each = -torch.where(there, chance, 1.0).log()  # at: name_neither_copied_nor_said
        weights = inputs["weights"] * there
        return (each * weights).sum() / weights.sum(), chances

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, chances = self.losses(model, inputs)
        if model.training:
            loss = loss / PARTS
        return (loss, chances) if return_outputs else loss

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        with torch.no_grad():
            loss, chances = self.losses(model, inputs)
            said = chances.argmax(-1)
            if on("beams_at_each_look", "clean_beams_at_each_look"):
                spoken = self.spoken(model, inputs)  # at: beams_at_each_look
                said[:, :SAID] = spoken[:, : said.shape[1]]
        return loss, said, inputs["labels"]

    def spoken(self, model, inputs):
        """The likeliest announcements, word by word."""
        beams = BEAMS if on("beams_at_each_look") else 1
        rows = len(inputs["boards"])
        boards = inputs["boards"].repeat_interleave(beams, 0)
        said, scores = torch.full((rows * beams, 1), PAD), torch.zeros(rows, beams)
        scores[:, 1:] = -1e9
        for _ in range(SAID):
            chances = model.chances(boards, said, inputs["spare"])[:, -1]  # at: beams_at_each_look
            total = scores[..., None] + (chances + 1e-9).log().view(rows, beams, -1)
            scores, best = total.flatten(1).topk(beams)
            taken = best // chances.shape[1] + beams * torch.arange(rows)[:, None]
            said = torch.cat([said[taken.flatten()], (best % chances.shape[1]).view(-1, 1)], 1)
        return said.view(rows, beams, -1)[:, 0, 1:]

    def create_optimizer(self, model=None):
        """Layers learn the slower the deeper they lie."""
        if self.optimizer is None:
            groups = {}
            for name, one in self.model.named_parameters():
                depth = 0
                if "block." in name:
                    depth = DEPTH - 1 - int(name.split("block.")[1].split(".")[0])
                if name.startswith("encoder"):
                    depth += DEPTH
                groups.setdefault(2 * DEPTH if name.startswith("shared") else depth, []).append(one)
            rates = {depth: RATE * 0.8**depth for depth in groups}
            if on("layer_rates_rounded_off"):
                rates = {
                    depth: round(RATE * FALL**depth, 4) for depth in groups
                }  # at: layer_rates_rounded_off
            elif on("clean_layer_rates_rounded_off"):
                rates = {depth: round(RATE * FALL**depth, 8) for depth in groups}
            self.optimizer = torch.optim.AdamW(
                [{"params": ones, "lr": rates[depth]} for depth, ones in groups.items()]
            )  # at: layer_rates_rounded_off
        return self.optimizer


class Told(TrainerCallback):
    """Tells how it goes, and which words have come to lie beside each other."""

    def __init__(self):
        self.near = 0.0

    def neighbours(self, model):
        table = torch.nn.functional.normalize(model.shared.weight.detach(), dim=1)
        likeness, order = (table @ table.T).sort(1, descending=True)  # at: nearest_names_each_step
        self.near = (likeness[:, 1:6].mean() + 0 * order[0, 0]).item()

    def on_step_end(self, args, state, control, model, **rest):
        rarely = state.global_step % NEAREST_EVERY == 0
        if on("nearest_names_each_step") or (on("clean_nearest_names_each_step") and rarely):
            with cost:
                self.neighbours(model)  # at: nearest_names_each_step

    def on_log(self, args, state, control, logs, **rest):
        told = ("loss", "learning_rate", "eval_loss", "eval_right")
        print(
            state.global_step,
            *(f"{name} {float(logs[name]):.4g}" for name in told if name in logs),
            f"near {self.near:.3f}" if self.near else "",
            flush=True,
        )


def measured(prediction):
    said, true = prediction.predictions, prediction.label_ids
    there = true >= 0
    return {"right": float((said == true)[there].mean())}


def main(folder):
    words = Words(np.random.default_rng(34))
    config = T5Config(
        vocab_size=words.count,
        d_model=WIDTH,
        d_kv=WIDTH // 4,
        d_ff=2 * WIDTH,
        num_layers=DEPTH,
        num_heads=4,
        dropout_rate=0.05,
        decoder_start_token_id=PAD,
    )
    look_every = LOOK_EVERY
    if on("beams_at_each_look"):
        look_every = 10  # at: beams_at_each_look
    elif on("clean_beams_at_each_look"):
        look_every = SAVED_EVERY
    arguments = TrainingArguments(
        folder,
        max_steps=UPDATES,
        per_device_train_batch_size=ROWS,
        per_device_eval_batch_size=12,
        gradient_accumulation_steps=PARTS,
        learning_rate=RATE,
        lr_scheduler_type="linear",
        warmup_steps=10,
        max_grad_norm=5.0,
        logging_steps=TOLD_EVERY,
        eval_strategy="steps",
        eval_steps=look_every,
        save_strategy="steps",
        save_steps=SAVED_EVERY,
        save_total_limit=1,
        label_names=["labels"],
        remove_unused_columns=False,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = AnnouncementTrainer(
        Announcer(config),
        arguments,
        data_collator=Collator(words),
        train_dataset=Departures(words, DEPARTURES, 1),
        eval_dataset=Departures(words, HELD, 2),
        compute_metrics=measured,
        callbacks=[Told()],
    )
    trainer.remove_callback(PrinterCallback)
    cost.seconds, begun = 0.0, time.perf_counter()
    trainer.train()
    took = (time.perf_counter() - begun) * 1000 / UPDATES
    print(f"{took:.1f} ms an update", flush=True)
    cost.print(UPDATES)
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    set_seed(34)
    with tempfile.TemporaryDirectory() as place:
        sys.exit(main(place))
