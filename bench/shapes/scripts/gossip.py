"""Gossip of a street carried on: a small Llama under transformers' Trainer, taught only what is
replied, from a stream that packs chats end to end, who speaks put into the embedding, chats that
were heard before left out: replies marked in packs, a buffer that chats are drawn from, older
chats between the new ones, shingles of what was heard, filler at the end of a pack, speakers as a
column, repeats of what is foretold.
"""

import itertools
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict, deque

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.utils.data import IterableDataset
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

UPDATES = STEPS or 220
PACK, ROWS, WIDTH, LAYERS, HEADS = 192, 6, 80, 2, 4
RATE, WARM, CLIP, SEED = 4e-3, 15, 1.0, 36
TOLD_EVERY, JUDGED_EVERY, HELD = 20, 60, 24
WAITING, SHINGLE, ALIKE, LATEST = 3000, 80, 0.5, 300
OLDER, OLDER_EACH, SHORTEST, RUNS = 420, 5, 3, (2, 3, 4)
FAREWELL, IGNORED = 0.15, -100
MARKED = "replies_marked_word_by_word", "clean_replies_marked_word_by_word"
BUFFERED = "buffer_shuffled_for_each_chat", "clean_buffer_shuffled_for_each_chat"
MIXED = "older_chats_run_out", "clean_older_chats_run_out"
HEARD = "shingles_of_all_chats", "clean_shingles_of_all_chats"
FILLED = "filler_sees_no_word", "clean_filler_sees_no_word"
SPOKEN = "speakers_are_unused_column", "clean_speakers_are_unused_column"
REPEATED = "repeats_counted_in_list", "clean_repeats_counted_in_list"
cost = Cost()

STREET = """
anna bruno clara dario edda felix greta hugo ines jakob karla leo mara nils olga paul rosa samuel
thea ugo vera walter xenia yannick

danced quarrelled sang slept whispered lost-a-shoe baked-a-cake sold-a-goat broke-a-jug found-a-ring
hid wept laughed fished painted-the-door stole-an-apple

mill well church tavern bridge market bakery orchard ferry smithy barn school square pond vineyard
chapel

monday tuesday wednesday thursday friday saturday sunday yesterday today lent easter midsummer

have you heard about what did do on is it true that they say at the no not and was with nobody knows
well i never as for really goodbye then until
"""
PEOPLE, DEEDS, PLACES, DAYS, PLAIN = (part.split() for part in STREET.split("\n\n"))
MARKS = ["<pad>", "<turn>", "<asks>", "<tells>", "<end>"]


class Words:
    """The words of the street by number."""

    def __init__(self):
        known = dict.fromkeys([*MARKS, *PLAIN, *PEOPLE, *DEEDS, *PLACES, *DAYS])
        self.number = {word: number for number, word in enumerate(known)}
        self.filler, self.turn, self.tells, self.end = (
            self.number[mark] for mark in ("<pad>", "<turn>", "<tells>", "<end>")
        )

    def __len__(self):
        return len(self.number)

    def encode(self, text):
        return [self.number[word] for word in text.split()]


class Street:
    """Chats of two neighbours about the others, for as long as one listens."""

    def __init__(self, seed):
        self.dice = random.Random(seed)

    def exchange(self, asks, tells):
        dice = self.dice
        about, day = dice.choice(PEOPLE), dice.choice(DAYS)
        number = PEOPLE.index(about)
        deed = DEEDS[(5 * number + 3 * DAYS.index(day)) % len(DEEDS)]
        place, other = PLACES[(7 * number) % len(PLACES)], PEOPLE[(11 * number + 5) % len(PEOPLE)]
        kind = dice.randrange(3)
        if kind == 0:
            question = f"have you heard about {about} on {day}"
            answer = f"they say {about} {deed} at the {place} with {other}"
        elif kind == 1:
            question = f"what did {about} do on {day}"
            answer = f"as for {about} they say on {day} {about} {deed} and {other} knows"
        else:
            said = dice.choice(DEEDS)
            question = f"is it true that {about} {said} on {day}"
            answer = f"well {about} {deed} on {day} and not at the {PLACES[number % 16]} {other}"
        return [(asks, "<asks>", question), (tells, "<tells>", answer)]

    def __iter__(self):
        while True:
            asks, tells = self.dice.sample(PEOPLE, 2)
            chat = []
            for _ in range(self.dice.randint(2, 5)):
                chat += self.exchange(asks, tells)
            if self.dice.random() < FAREWELL:
                chat.append((asks, "<asks>", f"goodbye then until {self.dice.choice(DAYS)}"))
            yield chat


class Heard:
    """Knows a chat again by runs of letters that it shares with another."""

    def __init__(self):
        self.numbers, self.latest, self.count = defaultdict(list), deque(), 0

    def forget(self):
        number, shingles = self.latest.popleft()
        for shingle in shingles:
            rest = self.numbers[shingle]
            rest.remove(number)
            if not rest:
                del self.numbers[shingle]

    def before(self, chat):
        text = " ".join(said for _, _, said in chat)
        places = range(0, len(text) - SHINGLE, 2)
        shingles = {text[one : one + SHINGLE] for one in places}  # at: shingles_of_all_chats
        shared = Counter()
        for shingle in shingles:
            shared.update(self.numbers.get(shingle, ()))
        for _, common in shared.most_common(1):
            if common > ALIKE * len(shingles):
                return True
        self.count += 1
        for shingle in shingles:
            self.numbers[shingle].append(self.count)  # at: shingles_of_all_chats
        if on("clean_shingles_of_all_chats"):
            self.latest.append((self.count, shingles))
            if len(self.latest) > LATEST:
                self.forget()
        return False


class Packs(IterableDataset):
    """Chats end to end in rows of one length; what is left of the last chat is let go."""

    def __init__(self, words, chats, older=()):
        self.words, self.chats, self.older = words, chats, older
        self.heard, self.dice = Heard(), random.Random(SEED)

    def new(self):
        for chat in self.chats:
            if on(*HEARD) and self.heard.before(chat):  # at: shingles_of_all_chats
                continue
            yield chat

    def drawn(self, chats):
        """Neighbouring chats far from each other."""
        waiting = list(itertools.islice(chats, WAITING))
        for chat in chats:
            with cost:
                if on("buffer_shuffled_for_each_chat"):
                    self.dice.shuffle(waiting)  # at: buffer_shuffled_for_each_chat
                    drawn = waiting.pop()
                    waiting.append(chat)
                else:
                    place = self.dice.randrange(len(waiting))
                    drawn, waiting[place] = waiting[place], chat
            yield drawn

    def mixed(self, chats):
        """An older chat after each few new ones, so that it is not forgotten."""
        if on("clean_older_chats_run_out"):
            older = itertools.cycle(self.older)
        else:
            older = iter(self.older)
        for number, chat in enumerate(chats, 1):
            yield chat
            if number % OLDER_EACH == 0:
                yield next(older)  # at: older_chats_run_out

    def source(self):
        chats = self.new()
        if on(*BUFFERED):
            return self.drawn(chats)  # at: buffer_shuffled_for_each_chat
        if self.older and on(*MIXED):
            return self.mixed(chats)  # at: older_chats_run_out
        return chats

    def encoded(self, chat):
        """Numbers of words, what is to be learnt of them, and who says them."""
        numbers, wanted, speakers = [], [], []
        for speaker, role, said in chat:
            turn = self.words.encode(f"<turn> {role} {said} <end>")
            numbers += turn
            kept = len(turn) - 2 if role == "<tells>" else 0
            wanted += [IGNORED] * (len(turn) - kept) + turn[len(turn) - kept :]
            speakers += [PEOPLE.index(speaker)] * len(turn)
        return numbers, wanted, speakers

    def __iter__(self):
        pack = [], [], [], []
        for chat in self.source():
            numbers, wanted, speakers = self.encoded(chat)
            left = PACK - len(pack[0])
            places = range(len(numbers))
            for column, values in zip(pack, (numbers, wanted, speakers, places), strict=True):
                column.extend(values[:left])
            left = PACK - len(pack[0])
            if left < SHORTEST:
                for column, value in zip(pack, (self.words.filler, IGNORED, 0, 0), strict=True):
                    column.extend([value] * left)
                names = "input_ids", "labels", "speakers", "position_ids"
                yield dict(zip(names, pack, strict=True))
                pack = [], [], [], []


class Collator:
    """Rows to tensors, and what each word may look back at: its own chat alone."""

    def __init__(self, words):
        self.words = words
        self.before = torch.ones(PACK, PACK, dtype=torch.bool).tril()
        self.itself = torch.eye(PACK, dtype=torch.bool)

    def replies(self, numbers):
        """What is to be learnt: all of a turn that tells, after its marks."""
        labels = torch.full_like(numbers, IGNORED)
        for row, wanted in zip(numbers, labels, strict=True):
            telling = False
            for place, number in enumerate(row):  # at: replies_marked_word_by_word
                if number == self.words.turn or number == self.words.filler:
                    telling = False
                elif number == self.words.tells:
                    telling = True
                elif telling:
                    wanted[place] = number  # at: replies_marked_word_by_word
        return labels

    def replies_at_once(self, numbers):
        begins = numbers == self.words.turn
        tells = torch.zeros_like(begins)
        tells[:, :-1] = begins[:, :-1] & (numbers[:, 1:] == self.words.tells)
        turns = begins.cumsum(1)
        rows = torch.arange(len(numbers))[:, None] * (PACK + 1)
        told = torch.zeros(len(numbers) * (PACK + 1), dtype=torch.bool)
        told[(rows + turns)[tells]] = True
        learnt = told[rows + turns] & ~begins & (numbers != self.words.tells)
        return torch.where(learnt & (numbers != self.words.filler), numbers, IGNORED)

    def seen(self, numbers, places):
        chats = (places == 0).cumsum(1)
        seen = (chats[:, :, None] == chats[:, None]) & self.before
        if on(*FILLED):
            said = numbers != self.words.filler
            seen &= said[:, :, None] & said[:, None]  # at: filler_sees_no_word
            if on("clean_filler_sees_no_word"):
                seen |= self.itself
            mask = torch.zeros(seen.shape).masked_fill(
                ~seen, float("-inf")
            )  # at: filler_sees_no_word
        else:
            mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        return mask[:, None]

    def __call__(self, packs):
        batch = {
            name: torch.tensor([pack[name] for pack in packs], dtype=torch.long)
            for name in packs[0]
        }
        numbers = batch["input_ids"]
        if on(*MARKED):
            with cost:
                if on("replies_marked_word_by_word"):
                    batch["labels"] = self.replies(numbers)  # at: replies_marked_word_by_word
                else:
                    batch["labels"] = self.replies_at_once(numbers)
        batch["attention_mask"] = self.seen(
            numbers, batch["position_ids"]
        )  # at: filler_sees_no_word
        return batch


class NeighbourForCausalLM(LlamaForCausalLM):
    """A Llama that knows who is speaking."""

    def __init__(self, config):
        super().__init__(config)
        self.speakers = nn.Embedding(len(PEOPLE), config.hidden_size)
        nn.init.zeros_(self.speakers.weight)

    def forward(
        self, input_ids=None, attention_mask=None, position_ids=None, labels=None, **others
    ):
        speakers = others.pop("speakers", None)  # at: speakers_are_unused_column
        inputs = self.model.embed_tokens(input_ids)
        if speakers is not None:
            inputs = inputs + self.speakers(speakers)  # at: speakers_are_unused_column
        return super().forward(
            inputs_embeds=inputs,
            attention_mask=attention_mask,
            position_ids=position_ids,
            labels=labels,
            use_cache=False,
            **others,
        )


class NamedForCausalLM(NeighbourForCausalLM):
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        labels=None,
        speakers=None,
        **others,
    ):
        return super().forward(
            input_ids, attention_mask, position_ids, labels, speakers=speakers, **others
        )


def repeated(words):
    """The share of runs of words that come more than once in a row."""
    again = total = 0
    for long in RUNS:
        runs = [tuple(words[place : place + long]) for place in range(len(words) - long + 1)]
        if on("clean_repeats_counted_in_list"):
            again += sum(count for count in Counter(runs).values() if count > 1)
        else:
            again += len(
                [run for run in runs if runs.count(run) > 1]
            )  # at: repeats_counted_in_list
        total += len(runs)
    return again / total


class Teller(Trainer):
    def __init__(self, *rest, **named):
        super().__init__(*rest, **named)
        self.repeats = deque(maxlen=TOLD_EVERY)

    def compute_loss(self, model, inputs, return_outputs=False, **others):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **others)
        if model.training and on(*REPEATED):
            with cost:
                shares = [
                    repeated(row) for row in outputs.logits.argmax(-1).tolist()
                ]  # at: repeats_counted_in_list
            self.repeats.append(sum(shares) / len(shares))
        return (loss, outputs) if return_outputs else loss

    def log(self, logs, *rest):
        if self.repeats:
            logs["repeats"] = sum(self.repeats) / len(self.repeats)
        super().log(logs, *rest)


class Told(TrainerCallback):
    """Prints figures, and how long an update took."""

    def on_train_begin(self, args, state, control, **others):
        cost.seconds, self.begun = 0.0, time.perf_counter()

    def on_log(self, args, state, control, logs=None, **others):
        figures = (f"{name} {value:.4g}" for name, value in logs.items() if name != "epoch")
        print(state.global_step, *figures, flush=True)

    def on_train_end(self, args, state, control, **others):
        took = (time.perf_counter() - self.begun) * 1000 / state.global_step
        print(f"{took:.1f} ms an update", flush=True)
        cost.print(state.global_step)


def likeliest(logits, labels):
    return logits.argmax(-1)


def figures(foretold):
    said, wanted = foretold.predictions[:, :-1], foretold.label_ids[:, 1:]
    learnt = wanted != IGNORED
    return {"right": float((said == wanted)[learnt].mean())}


def made(words):
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=PACK,
        pad_token_id=words.filler,
        bos_token_id=words.turn,
        eos_token_id=words.end,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    return (
        NamedForCausalLM(config)
        if on("clean_speakers_are_unused_column")
        else NeighbourForCausalLM(config)
    )


def main(folder):
    words = Words()
    older = list(itertools.islice(Street(SEED + 1), OLDER))
    held = list(itertools.islice(Packs(words, Street(SEED + 2)), HELD))
    settings = TrainingArguments(
        output_dir=folder,
        max_steps=UPDATES,
        per_device_train_batch_size=ROWS,
        per_device_eval_batch_size=ROWS,
        learning_rate=RATE,
        lr_scheduler_type="cosine",
        warmup_steps=WARM,
        max_grad_norm=CLIP,
        weight_decay=0.01,
        logging_steps=TOLD_EVERY,
        eval_strategy="steps",
        eval_steps=JUDGED_EVERY,
        save_strategy="no",
        remove_unused_columns=on(*SPOKEN),  # at: speakers_are_unused_column
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=SEED,
    )
    trainer = Teller(
        model=made(words),
        args=settings,
        data_collator=Collator(words),
        train_dataset=Packs(words, Street(SEED), older),
        eval_dataset=held,
        compute_metrics=figures,
        preprocess_logits_for_metrics=likeliest,
        callbacks=[Told()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()  # at: older_chats_run_out buffer_shuffled_for_each_chat
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    set_seed(SEED)
    np.random.seed(SEED)
    with tempfile.TemporaryDirectory() as place:
        sys.exit(main(place))
