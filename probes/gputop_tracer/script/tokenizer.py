"""A stand-in for a tokenizer without files: four characters a token, the model's vocabulary."""

from __future__ import annotations

from typing import Any, Callable

from .hub import in_words

_PIECE = r".{1,4}|\s"
"""English text has about four characters a token in the vocabularies of today's models."""
_SPECIAL = {"unk_token": "<0>", "bos_token": "<1>", "eos_token": "<2>", "pad_token": "<2>"}
_CHAT = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"


def stand_in(kind: Any, note: Callable[..., Any]) -> None:
    """Let a tokenizer's ``from_pretrained`` answer without files if a configuration is known."""
    original = kind.from_pretrained.__func__

    def from_pretrained(cls: Any, name: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return original(cls, name, *arguments, **options)
        except Exception as problem:
            count = _vocabulary(name)
            if not count:
                raise in_words(problem, name) from None
        sentence = (
            "The tokenizer of %s is not here: text was cut into pieces of four characters." % name
        )
        note(sentence, guess="lengths of texts, as the tokenizer is not here")
        return _made(count)

    kind.from_pretrained = classmethod(from_pretrained)


def _vocabulary(name: Any) -> int:
    """Tokens of the model of that name; 0 where it has no configuration here."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(name)
    except Exception:  # the tokenizer's own failure is told instead
        return 0
    return int(getattr(getattr(config, "text_config", None) or config, "vocab_size", 0) or 0)


def _made(count: int) -> Any:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(
        models.WordLevel({"<%d>" % index: index for index in range(count)}, unk_token="<0>")
    )
    words.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECE), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **_SPECIAL)
    tokenizer.chat_template = _CHAT
    return tokenizer
