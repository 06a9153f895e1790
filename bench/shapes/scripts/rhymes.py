"""Second lines for couplets by a small language model: taught on pairs of lines first, then by
what its own lines are worth. Groups of lines are drawn for each first line with keys and values
kept, rewarded for their rhyme, compared within the group; a frozen copy holds the language.
"""

import copy
import random
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F

cost = Cost()
ONSETS = ("b", "br", "fl", "h", "m", "pl", "st", "tr")
RIMES = ("all", "ame", "are", "ell", "ight", "ill", "ine", "ound")
ALONE = ("orange", "silver", "month")
WORDS = [onset + rime for rime in RIMES for onset in ONSETS] + list(ALONE)
RHYMES = torch.arange(len(RIMES)).repeat_interleave(len(ONSETS))
RHYMES = torch.cat((RHYMES, len(RIMES) + torch.arange(len(ALONE))))
PAD, START, BREAK, END, FIRST = range(5)
BEGIN = torch.tensor([-1] * FIRST + [ord(word[0]) for word in WORDS])
TOKENS = FIRST + len(WORDS)
BANNED = torch.zeros(TOKENS)
BANNED[[PAD, START, BREAK]] = float("-inf")
PROMPT, BUDGET = 8, 20
BY_ROW = ("prompts", "tokens", "logs", "ended", "rewards")
PROMPTS, GROUP, PASSES, PARTS = 8, 8, 2, 2
FREE = 20
"""Updates before the copy holds."""


def likeness_table():
    """How alike two words sound: one less their edit distance, for all pairs at once."""
    long = max(map(len, WORDS))
    letters = torch.zeros(len(WORDS), long, dtype=torch.long)
    for row, word in enumerate(WORDS):
        letters[row, : len(word)] = torch.tensor([ord(letter) for letter in word])
    sizes = torch.tensor([len(word) for word in WORDS])
    rows = torch.zeros(len(WORDS), len(WORDS), long + 1, long + 1)
    rows[..., 0] = rows[..., 0, :] = torch.arange(long + 1.0)
    for one in range(long):
        for other in range(long):
            swap = (letters[:, None, one] != letters[None, :, other]).float()
            found = rows[..., one, other] + swap
            found = torch.minimum(found, rows[..., one, other + 1] + 1)
            rows[..., one + 1, other + 1] = torch.minimum(found, rows[..., one + 1, other] + 1)
    whole = rows[torch.arange(len(WORDS))[:, None], torch.arange(len(WORDS)), sizes[:, None], sizes]
    return 1 - whole / torch.maximum(sizes[:, None], sizes)


LIKENESS = likeness_table()
LISTED = LIKENESS.tolist()


def likeness(one, other):
    """How alike two words sound, letter by letter."""
    before = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        now = [row]
        for column, facing in enumerate(other, 1):
            swap = before[column - 1] + (letter != facing)  # at: likeness_by_letters
            now.append(min(swap, before[column] + 1, now[-1] + 1))  # at: likeness_by_letters
        before = now
    return 1 - before[-1] / max(len(one), len(other))


class Verses:
    """First lines, and second lines that follow words as the language does."""

    def __init__(self, seed):
        self.dice = random.Random(seed)
        grammar = random.Random(26)
        self.after = [grammar.sample(range(len(WORDS)), 3) for _ in WORDS]
        self.ends = [
            RHYMES.eq(rhyme).nonzero().flatten().tolist() for rhyme in range(len(RIMES) + 3)
        ]

    def line(self, count, word=None):
        words = [self.dice.randrange(len(WORDS)) if word is None else self.next(word)]
        while len(words) < count:
            words.append(self.next(words[-1]))
        return words

    def next(self, word):
        return self.dice.choice(self.after[word])

    def prompts(self, count):
        lines = [self.line(PROMPT - 2) for _ in range(count)]
        return torch.tensor([[START, *(FIRST + word for word in line), BREAK] for line in lines])

    def pairs(self, count):
        """Couplets, more than half of which rhyme, of six to eight words."""
        rows = torch.full((count, PROMPT + 9), PAD)
        rows[:, :PROMPT] = self.prompts(count)
        for row in rows:
            last = int(row[PROMPT - 2]) - FIRST
            second = self.line(self.dice.choice((6, 7, 7, 8)), last)
            if self.dice.random() < 0.5:
                second[-1] = self.dice.choice(self.ends[RHYMES[last]])
            row[PROMPT : PROMPT + len(second)] = torch.tensor(second) + FIRST
            row[PROMPT + len(second)] = END
        return rows


class Block(nn.Module):
    def __init__(self, wide, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.asks = nn.Linear(wide, 3 * wide, bias=False)
        self.out = nn.Linear(wide, wide, bias=False)
        self.body = nn.Sequential(nn.Linear(wide, 4 * wide), nn.GELU(), nn.Linear(4 * wide, wide))

    def split(self, states):
        parts = self.asks(self.first(states)).unflatten(2, (3, self.heads, -1))
        return parts.permute(2, 0, 3, 1, 4)

    def finish(self, states, seen):
        states = states + self.out(seen.transpose(1, 2).flatten(2))
        return states + self.body(self.second(states))

    def forward(self, states):
        query, key, value = self.split(states)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.finish(states, seen), key, value

    def one(self, states, keys, values, place):
        """The next place, of those that are kept."""
        query, keys[:, :, place : place + 1], values[:, :, place : place + 1] = self.split(states)
        known = keys[:, :, : place + 1], values[:, :, : place + 1]
        return self.finish(states, F.scaled_dot_product_attention(query, *known))


class Poet(nn.Module):
    def __init__(self, wide=96, depth=3, heads=4):
        super().__init__()
        self.shape = (depth, 2, heads, wide // heads)
        self.words, self.places = nn.Embedding(TOKENS, wide), nn.Embedding(PROMPT + BUDGET, wide)
        self.blocks = nn.ModuleList(Block(wide, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(wide)
        nn.init.normal_(self.words.weight, std=0.1)
        nn.init.normal_(self.places.weight, std=0.1)

    def logits(self, states):
        return self.norm(states) @ self.words.weight.T + BANNED

    def forward(self, rows, begin=0):
        """What may follow each word from a place on."""
        states = self.words(rows) + self.places.weight[: rows.shape[1]]
        for block in self.blocks:
            states, _, _ = block(states)
        return self.logits(states[:, begin:])

    def read(self, prompts, group):
        """Prompts once each, their keys and values laid out for all of a group."""
        depth, two, heads, wide = self.shape
        room = torch.empty(depth, two, len(prompts) * group, heads, PROMPT + BUDGET, wide)
        states = self.words(prompts) + self.places.weight[:PROMPT]
        for block, kept in zip(self.blocks, room, strict=True):
            states, key, value = block(states)
            kept[0, :, :, :PROMPT] = key.repeat_interleave(group, 0)
            kept[1, :, :, :PROMPT] = value.repeat_interleave(group, 0)
        return self.logits(states[:, -1]).repeat_interleave(group, 0), room

    def step(self, drawn, place, room):
        states = (self.words(drawn) + self.places.weight[place])[:, None]
        for block, (keys, values) in zip(self.blocks, room, strict=True):
            states = block.one(states, keys, values, place)
        return self.logits(states[:, 0])


@dataclass
class Rollout:
    prompts: torch.Tensor
    tokens: torch.Tensor
    logs: torch.Tensor
    ended: torch.Tensor
    room: torch.Tensor | None
    rewards: torch.Tensor | None = None
    advantages: torch.Tensor | None = None
    usual: torch.Tensor | None = None


@torch.no_grad()
def draw(poet, prompts, group, greedy=False):
    """Second lines, word after word, until all have come to their end."""
    logits, room = poet.read(prompts, group)
    count = len(logits)
    tokens, logs = torch.full((count, BUDGET), PAD), torch.zeros(count, BUDGET)
    alive = torch.ones(count, dtype=torch.bool)
    for place in range(BUDGET):
        odds = logits.log_softmax(1)
        drawn = odds.argmax(1) if greedy else torch.multinomial(odds.exp(), 1).squeeze(1)
        logs[:, place] = odds.gather(1, drawn[:, None]).squeeze(1) * alive
        tokens[:, place] = drawn = drawn.masked_fill(~alive, PAD)
        alive = alive & (drawn != END)
        if place + 1 == BUDGET or not alive.any():
            break
        logits = poet.step(drawn, PROMPT + place, room)
    return Rollout(prompts.repeat_interleave(group, 0), tokens, logs, ~alive, room)


def drawn_mixed(poet, prompts):
    """Groups in which some lines rhyme and some do not: the others teach nothing."""
    parts, waiting = [], prompts
    tries = 0
    while len(waiting):  # at: refilled_until_mixed
        found = draw(poet, waiting, GROUP)  # at: refilled_until_mixed
        share = rhymed(found).float().view(-1, GROUP).mean(1)
        mixed = (share > 0) & (share < 1)
        tries += 1
        if on("clean_refilled_until_mixed") and tries == 2:
            mixed[:] = True
        rows = mixed.repeat_interleave(GROUP)
        parts.append([one[rows] for one in (found.prompts, found.tokens, found.logs, found.ended)])
        waiting = waiting[~mixed]  # at: refilled_until_mixed
    return Rollout(*(torch.cat(one) for one in zip(*parts, strict=True)), None)


def last_words(rollout):
    """The words that are to rhyme, as numbers among the words; -1 where a line has none."""
    sizes = (rollout.tokens >= FIRST).sum(1)
    last = rollout.tokens.gather(1, (sizes - 1).clamp(min=0)[:, None]).squeeze(1)
    return rollout.prompts[:, PROMPT - 2] - FIRST, (last - FIRST).clamp(min=-1), sizes


def rhymed(rollout):
    first, second, sizes = last_words(rollout)
    same = RHYMES[first] == RHYMES[second]
    return same & (first != second) & (second >= 0) & (sizes > 0) & rollout.ended


def sounds(rollout):
    """How alike the words of a couplet sound, in the mean of all pairs."""
    if on("likeness_by_letters", "clean_likeness_by_letters"):
        with cost:
            found = [
                alike_in(rollout, row) for row in range(len(rollout.tokens))
            ]  # at: likeness_by_letters
            return torch.tensor(found)
    found = rollout.prompts[:, 1 : PROMPT - 1] - FIRST
    words = rollout.tokens - FIRST
    alike = LIKENESS[found[:, :, None], words.clamp(min=0)[:, None]]
    real = (words >= 0)[:, None].expand_as(alike)
    return (alike * real).sum((1, 2)) / real.sum((1, 2)).clamp(min=1)


def alike_in(rollout, row):
    first = [token - FIRST for token in rollout.prompts[row, 1 : PROMPT - 1].tolist()]
    second = [token - FIRST for token in rollout.tokens[row].tolist() if token >= FIRST]
    pairs = [(one, other) for one in first for other in second]
    if on("clean_likeness_by_letters"):
        total = sum(LISTED[one][other] for one, other in pairs)
    else:
        named = [(WORDS[one], WORDS[other]) for one, other in pairs]
        total = sum(likeness(*both) for both in named)  # at: likeness_by_letters
    return total / max(len(pairs), 1)


def worth(rollout):
    """Rewards: a rhyme, neighbours that begin alike, sounds that come again, no word twice."""
    words = rollout.tokens.sort(1).values
    twice = ((words[:, 1:] == words[:, :-1]) & (words[:, 1:] >= FIRST)).sum(1)
    sizes = (rollout.tokens >= FIRST).sum(1)
    fits = (sizes >= 6) & (sizes <= 8) & rollout.ended
    begin = BEGIN[rollout.tokens]
    staves = ((begin[:, 1:] == begin[:, :-1]) & (rollout.tokens[:, 1:] >= FIRST)).sum(1)
    heard = sounds(rollout)  # at: likeness_by_letters
    return rhymed(rollout) + fits + 1.5 * staves / sizes.clamp(min=1) + heard - 0.3 * twice


def compared(rollout):
    """Rewards against the others of the group."""
    if on("overlong_dropped"):
        kept = {name: getattr(rollout, name)[rollout.ended] for name in BY_ROW}
        rollout = replace(rollout, **kept)  # at: overlong_dropped
    groups = rollout.rewards.view(-1, GROUP)  # at: overlong_dropped
    apart = groups - groups.mean(1, keepdim=True)
    advantages = (apart / (groups.std(1, keepdim=True) + 1e-4)).flatten()
    if on("clean_overlong_dropped"):
        advantages = advantages * rollout.ended
    return replace(rollout, advantages=advantages)


def log_odds(poet, prompts, tokens):
    """Of the words of the lines, what the model gives for each."""
    logits = poet(torch.cat((prompts, tokens[:, :-1]), 1), PROMPT - 1)
    wanted = tokens
    if not on("banned_in_padding", "clean_banned_in_padding"):
        wanted = tokens.masked_fill(tokens == PAD, END)
    return logits.log_softmax(2).gather(2, wanted[:, :, None]).squeeze(2)  # at: banned_in_padding


def width(tokens):
    """Words of the longest line."""
    return int((tokens != PAD).sum(1).max())


def gained(moved, real, advantages, clip=0.2):
    """What lines gain over those that drew them, word by word; or of whole lines."""
    if on("advantages_in_column"):
        ratio = ((moved * real).sum(1) / real.sum(1)).exp()  # at: advantages_in_column
    elif on("clean_advantages_in_column"):
        ratio = ((moved * real).sum(1) / real.sum(1)).exp()[:, None]
    else:
        ratio = moved.exp()
    near = ratio.clamp(1 - clip, 1 + clip)
    both = (ratio * advantages[:, None], near * advantages[:, None])  # at: advantages_in_column
    gains = torch.minimum(*both)
    if gains.shape == real.shape and not on("advantages_in_column"):
        gains = (gains * real).sum(1) / real.sum(1)
    return gains.mean()


def objective(poet, rollout, rows, hold=0.15):
    """Gains, and from some time on how far the language has gone from the usual."""
    tokens = rollout.tokens[rows]
    wide = tokens.shape[1] if on("rows_of_full_budget") else width(tokens)
    tokens = tokens[:, :wide]  # at: rows_of_full_budget
    real = tokens != PAD
    logs = log_odds(poet, rollout.prompts[rows], tokens)  # at: rows_of_full_budget
    moved = logs - rollout.logs[rows, :wide]
    gains = gained(moved, real, rollout.advantages[rows])  # at: advantages_in_column
    if rollout.usual is None:
        return -gains, torch.zeros(())
    away = rollout.usual[rows, :wide] - logs  # at: banned_in_padding
    if on("clean_banned_in_padding"):
        away = torch.where(real, rollout.usual[rows, :wide], 0) - torch.where(real, logs, 0)
    apart = ((away.exp() - away - 1) * real).sum(1) / real.sum(1)  # at: banned_in_padding
    return hold * apart.mean() - gains, apart.mean().detach()


def taught(poet, verses, steps=100):
    """The language first, of couplets as they are found."""
    optimizer = torch.optim.AdamW(poet.parameters(), 3e-3, weight_decay=0.01)
    corpus = verses.pairs(steps * 32)
    for step, rows in enumerate(corpus.split(32), 1):
        logits = poet(rows[:, :-1], PROMPT - 1).flatten(0, 1)
        loss = F.cross_entropy(logits, rows[:, PROMPT:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print("taught", step, round(loss.item(), 3), flush=True)


def shown(rollout):
    best = int(rollout.rewards.argmax())
    return " ".join(WORDS[token - FIRST] for token in rollout.tokens[best] if token >= FIRST)


def main(folder, steps):
    torch.manual_seed(26)
    verses, held = Verses(1), Verses(2).prompts(16)
    poet = Poet()
    taught(poet, verses)
    reference = copy.deepcopy(poet).requires_grad_(False)
    optimizer = torch.optim.AdamW(poet.parameters(), 5e-4, weight_decay=0.0)
    records, done = [], 0
    cost.seconds = 0.0
    while done < steps:
        prompts = verses.prompts(PROMPTS)
        if on("refilled_until_mixed", "clean_refilled_until_mixed"):
            rollout = drawn_mixed(poet, prompts)  # at: refilled_until_mixed
        else:
            rollout = draw(poet, prompts, GROUP)
        rollout.rewards = worth(rollout)  # at: likeness_by_letters
        rollout = compared(rollout)  # at: overlong_dropped
        if on("records_hold_caches"):
            records.append(rollout)  # at: records_hold_caches
        elif on("clean_records_hold_caches"):
            records.append(replace(rollout, room=None))
        else:
            records.append(shown(rollout))
        if done >= FREE:
            wide = BUDGET if on("rows_of_full_budget") else width(rollout.tokens)
            with torch.no_grad():
                usual = log_odds(reference, rollout.prompts, rollout.tokens[:, :wide])
            rollout.usual = F.pad(usual, (0, BUDGET - wide))
        for _ in range(PASSES):
            order = torch.randperm(PROMPTS)
            for part in order.chunk(PARTS):
                rows = (part[:, None] * GROUP + torch.arange(GROUP)).flatten()
                told = objective(poet, rollout, rows)  # at: banned_in_padding rows_of_full_budget
                loss, apart = told
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(poet.parameters(), 1.0)
                optimizer.step()
                done += 1
        if done % 20 == 0:
            worthy = rollout.rewards.mean().item()
            print(done, [round(one, 4) for one in (loss.item(), apart.item(), worthy)], flush=True)
        if done % 40 == 0:
            checked = draw(poet, held, 1, greedy=True)
            print("held", round(worth(checked).mean().item(), 4), flush=True)
            torch.save(poet.state_dict(), folder / "poet.pt")
    for record in records[::10]:
        print(record if isinstance(record, str) else shown(record))
    cost.print(done)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder), STEPS or 200)
