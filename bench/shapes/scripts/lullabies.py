"""Lullabies by a decoder of transformers with LoRA: songs are made up by two workers and packed, an
update learns two packs and one group of songs that are weighed by how they rhyme against the bare
net, blocks are checkpointed, the net is judged and sings now and then: workers that pack the same
songs, a group that rhymes alike, a cosine that ends halfway, an archive judged often, scores of the
bare net remembered, a song that is sung on, checkpoints that see no gradient.
"""

import math
import sys
import time
import warnings
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import GPT2Config, GPT2LMHeadModel, get_scheduler

UPDATES = STEPS or 250
WORDS, SOUNDS, BEGIN, BREAK = 768, 12, 0, 1
PLACES, WIDTH, LAYERS, HEADS = 64, 64, 2, 4
PARTS, ROWS, GROUP, LINES, LINE = 2, 6, 4, 5, 5
RATE, WARM, CLIP, BETA, WEIGHT = 3e-3, 15, 1.0, 0.2, 0.3
TAUGHT, TOLD_EVERY, SUNG_EVERY, JUDGED_EVERY, NEW = 50, 25, 25, 5, 10
HELD, FEW, SEED = 18, 1, 3514
FIRST = BREAK + 1
cost = Cost()


def sound(word):
    return word % SOUNDS


def song(dice, slips=0.1):
    """Lines of words that follow each other, each line with the sound of the line before it."""
    words, word, rhyme = [BEGIN], int(dice.integers(FIRST, WORDS)), int(dice.integers(SOUNDS))
    for _ in range(LINES):
        for _ in range(LINE - 1):
            word = FIRST + (word * 7 + int(dice.integers(0, 6))) % (WORDS - FIRST)
            words.append(word)
        last = int(dice.integers(1, WORDS // SOUNDS)) * SOUNDS + rhyme
        if dice.random() < slips:
            last = int(dice.integers(SOUNDS, WORDS))
        words += [last, BREAK]
        word = last
    return words


def rhymes(words):
    """How many lines end as the line before."""
    ends = [sound(words[at - 1]) for at, word in enumerate(words) if word == BREAK]
    return sum(first == second for first, second in pairwise(ends))


class Songs(IterableDataset):
    """Songs without end, packed into rows of one size."""

    def __init__(self, seed):
        self.seed = seed

    def songs(self):
        info = get_worker_info()
        mine, all_of_us = (info.id, info.num_workers) if info else (0, 1)
        if on("workers_pack_same_songs"):
            dice = np.random.default_rng((SEED, self.seed))  # at: workers_pack_same_songs
            while True:
                yield song(dice)  # at: workers_pack_same_songs
        if on("clean_workers_pack_same_songs"):
            dice = np.random.default_rng((SEED, self.seed, mine))
            while True:
                yield song(dice)
        number = mine
        while True:
            yield song(np.random.default_rng((SEED, self.seed, number)))
            number += all_of_us

    def __iter__(self):
        waiting = []
        for words in self.songs():  # at: workers_pack_same_songs
            waiting += words
            while len(waiting) >= PLACES:
                yield torch.tensor(waiting[:PLACES])
                waiting = waiting[PLACES:]


def bare_net():
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS,
            n_positions=PLACES,
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=HEADS,
            bos_token_id=BEGIN,
            eos_token_id=BEGIN,
            tie_word_embeddings=False,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )


def kept_small(block, forward):
    """A block that is computed again in the backward."""

    def again(hidden, *others, **named):
        if not (block.training and torch.is_grad_enabled()):
            return forward(hidden, *others, **named)
        return checkpoint(
            partial(forward, **named), hidden, *others, use_reentrant=True
        )  # at: checkpoints_see_no_gradient

    return again


def next_word_loss(net, packs):
    scores = net(input_ids=packs, use_cache=False).logits[:, :-1]
    return F.cross_entropy(scores.flatten(0, 1), packs[:, 1:].flatten())


def taught(net, packs):
    """The net reads a little before it is adapted."""
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    for _ in range(TAUGHT):
        optimizer.zero_grad()
        next_word_loss(net, next(packs)).backward()
        optimizer.step()
    return net


class Singer:
    def __init__(self, net, packs):
        self.packs, self.update = packs, 0
        self.net = get_peft_model(
            net,
            LoraConfig(
                r=8,
                lora_alpha=16,
                target_modules=["c_attn", "c_fc"],
                modules_to_save=["lm_head"],
                fan_in_fan_out=True,
            ),
        )
        self.save_memory()
        self.trained = [one for one in self.net.parameters() if one.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, RATE, weight_decay=0.01)
        self.schedule = self.made_schedule()
        self.dice = np.random.default_rng((SEED, 7))
        held = iter(DataLoader(Songs(2), ROWS))
        self.archive = [next(held) for _ in range(HELD)]
        self.known, self.song = {}, [BEGIN]

    def save_memory(self):
        base = self.net.get_base_model()
        if on("checkpoints_see_no_gradient", "clean_checkpoints_see_no_gradient"):
            if on("clean_checkpoints_see_no_gradient"):
                base.enable_input_require_grads()
            for block in base.transformer.h:
                block.forward = kept_small(block, block.forward)  # at: checkpoints_see_no_gradient
        else:
            base.activation_checkpointing_enable({"use_reentrant": False})

    def made_schedule(self):
        steps = UPDATES
        if on("cosine_ends_halfway"):
            steps = UPDATES // PARTS  # at: cosine_ends_halfway
        elif on("clean_cosine_ends_halfway"):
            return get_scheduler("cosine", self.optimizer, WARM * PARTS, UPDATES * PARTS)
        return get_scheduler("cosine", self.optimizer, WARM, steps)  # at: cosine_ends_halfway

    def group(self):
        """Songs with more or fewer slips, and what each is worth."""
        slips = self.dice.choice([0.0, 0.3, 0.8, 1.0], GROUP)
        songs = [song(self.dice, slip) for slip in slips]
        return torch.tensor(songs), torch.tensor([float(rhymes(one)) for one in songs])

    @staticmethod
    def of_words(logs, songs):
        return logs.gather(2, songs[:, 1:, None]).squeeze(2).sum(1)

    def logs(self, songs):
        return self.net(input_ids=songs, use_cache=False).logits[:, :-1].log_softmax(2)

    @torch.no_grad()
    def bare(self, songs):
        """What the net without adapters makes of the songs; it does not change, so it is kept."""
        name = songs.numpy().tobytes()
        if name in self.known:
            kept = self.known[name]
            return kept if kept.ndim == 1 else self.of_words(kept, songs)
        with self.net.disable_adapter():
            logs = self.logs(songs)
        if on("bare_scores_remembered"):
            self.known[name] = logs  # at: bare_scores_remembered
        elif on("clean_bare_scores_remembered"):
            self.known[name] = self.of_words(logs, songs)
        return self.of_words(logs, songs)

    @staticmethod
    def worth(rewards):
        """Better or worse than the rest of the group, in spreads."""
        off = rewards - rewards.mean()
        if on("group_that_rhymes_alike"):
            return off / rewards.std()  # at: group_that_rhymes_alike
        if on("clean_group_that_rhymes_alike"):
            if rewards.max() == rewards.min():
                return off
            return off / rewards.std()
        return off / (rewards.std() + 1e-4)

    def preferred(self):
        songs, rewards = self.group()
        bare = self.bare(songs)  # at: bare_scores_remembered
        ratio = self.of_words(self.logs(songs), songs) - bare
        return -F.logsigmoid(BETA * self.worth(rewards) * ratio).mean()

    def learn(self):
        total = 0.0
        for part in range(PARTS):
            loss = next_word_loss(self.net, next(self.packs)) / PARTS
            if part == 0:
                loss = loss + WEIGHT * self.preferred()
            loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(self.trained, CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        for _ in range(PARTS if on("clean_cosine_ends_halfway") else 1):
            self.schedule.step()
        self.update += 1
        return total

    @torch.no_grad()
    def perplexity(self, packs):
        self.net.eval()
        losses = [next_word_loss(self.net, pack).item() for pack in packs]
        self.net.train()
        return math.exp(min(20.0, sum(losses) / len(losses)))

    @torch.no_grad()
    def sing(self):
        """A few words more, or a new beginning."""
        begin = [BEGIN, *self.dice.integers(FIRST, WORDS, 3).tolist()]
        if on("song_is_sung_on", "clean_song_is_sung_on"):
            begin = self.song
            if on("clean_song_is_sung_on"):
                begin = begin[-(PLACES - NEW) :]
        self.net.eval()
        begin = torch.tensor([begin])
        sung = self.net.generate(
            input_ids=begin,
            attention_mask=torch.ones_like(begin),
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            do_sample=False,
            pad_token_id=BEGIN,
        )  # at: song_is_sung_on
        self.net.train()
        if on("clean_song_is_sung_on"):
            self.song = self.song + sung[0, begin.shape[1] :].tolist()
        else:
            self.song = sung[0].tolist()  # at: song_is_sung_on
        return self.song[-NEW:]

    def after(self, loss):
        often = on("archive_judged_often", "clean_archive_judged_often")
        if often and self.update % JUDGED_EVERY == 0:
            packs = self.archive
            if on("clean_archive_judged_often"):
                packs = packs[:FEW]
            self.perplexity(packs)  # at: archive_judged_often
        if self.update % TOLD_EVERY == 0:
            rate = self.schedule.get_last_lr()[0]
            print(f"{self.update} loss {loss:.4f} rate {rate:.2g}", flush=True)
        if self.update % SUNG_EVERY == 0:
            sung = self.sing()  # at: song_is_sung_on
            print(self.update, "sung", *sung, flush=True)
        if self.update % (4 * TOLD_EVERY) == 0:
            print(f"{self.update} perplexity {self.perplexity(self.archive[:4]):.0f}", flush=True)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(35)
    warnings.filterwarnings("ignore", category=FutureWarning)
    packs = iter(DataLoader(Songs(1), ROWS, num_workers=2))
    singer = Singer(taught(bare_net(), packs), packs)
    begun = time.perf_counter()
    singer.net.train()
    while singer.update < UPDATES:
        singer.after(singer.learn())
    took = (time.perf_counter() - begun) * 1000 / UPDATES
    print(f"{took:.1f} ms an update", flush=True)
    cost.print(UPDATES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
