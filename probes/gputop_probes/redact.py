"""Keeps secrets out of the record: what is written to disk and shown is cleaned first.

Names tell (``--hf-token``, ``wandb.key=``, ``apiKey``), and so do shapes (``ghp_...``, ``Bearer
...``). Standard library only.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

HIDDEN = "[hidden]"
_compiled = lru_cache(maxsize=None)(re.compile)
"""Patterns are compiled when first needed: commands need few, nothing may delay a start."""

_PASSWORDS = frozenset(("password", "passwd", "passphrase", "passwort", "pwd"))
_ALWAYS = frozenset(
    (
        "secret",
        "secrets",
        "apikey",
        "credential",
        "credentials",
        "authorization",
        "cookie",
        "cookies",
        "bearer",
        "jwt",
        "pat",
    )
)
_JOINED = (
    r"(?:password|passwd|passphrase|(?:api|access|secret|private|auth|wandb|hf|license)keys?"
    r"|(?:api|auth|access|hf|hub|bot|refresh|session|secret|wandb|github)tokens?|(?:api|client|app)secret|credentials?)$"
)
"""Ends of names that are written in one: ``secretkey``, ``mypassword``."""
_KEY_WORDS = """
access account admin anthropic api app auth aws azure bearer clearml client comet databricks
deploy encryption gcp gemini google hf hmac jwt license licence master mlflow neptune ngc
nvapi openai pgp private rsa sas secret service session sign signing ssh storage
subscription wandb webhook
"""
_KEY_OF = frozenset(_KEY_WORDS.split())
"""Words before ``key`` that make it a secret: ``api_key``; not ``image_key``, ``sort_key``."""
_TOKEN_WORDS = """
additional audio batch begin bos box boundary class cls context decoder end eos eot file
first generated image img input last length mask max mean min n new next num output pad
padding per prefix prompt sep separator special start stop suffix target text think total
unk unknown vision video vocab word
"""
_TOKEN_OF_TEXT = frozenset(_TOKEN_WORDS.split())
"""Words before ``token`` that make it a language model's: ``pad_token``, ``max_new_tokens``."""
_PASS_OF = frozenset(
    ("admin", "basic", "db", "ftp", "http", "login", "mail", "my", "mysql")
    + ("pg", "proxy", "redis", "smtp", "ssh", "user")
)
_WORD = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+"
_PLAIN = r"(?i)true|false|none|null|yes|no|auto|default|on|off|-?\d{1,5}(?:\.\d+)?(?:e[+-]?\d+)?|"
_PATH = (
    r"(?:~|\.{1,2})?/[^\s]*|[\w./-]+\.(?:json|ya?ml|pem|pub|crt|txt|toml|ini|cfg|env|key|py|csv)"
)


def is_secret_name(name: str) -> bool:
    """Whether a name is a secret's: ``--hf-token``, ``WANDB_API_KEY``; not ``tokenizer``."""
    return _kind(name) != ""


def is_secret_value(value: str) -> bool:
    """Whether a value looks like a credential whatever its name."""
    return text(value) != value


def named(name: str, value: str) -> str:
    """A value as it may be shown under its name."""
    return HIDDEN if value and _holds(name, value) else text(value)


def command(words: list[str]) -> list[str]:
    """A command line with its secrets replaced by ``[hidden]``."""
    shown: list[str] = []
    before = ""
    logs_in = "login" in words
    for word in words:
        if logs_in and _is_random(word):
            shown.append(HIDDEN)
            continue
        if before and (not word.startswith("-") or _kind(before) == "password"):
            shown.append(HIDDEN if _is_hidden_after(before, word) else text(word))
            before = ""
            continue
        shown.append(_word(word))
        before = ""
        if re.fullmatch(r"-[a-zA-Z]|--?[A-Za-z][\w.-]*", word):
            before = word
    return shown


def text(value: str) -> str:
    """Text without secrets: known shapes, addresses, headers, values under a secret's name."""
    if len(value) < _SHORTEST:
        return value
    lowered = value.lower()
    for hints, pattern, replacement in _SHAPES:
        if any(hint in lowered for hint in hints):
            value = _compiled(pattern).sub(replacement, value)
    if "=" in value or ":" in value or " -" in value or "\t-" in value:
        return _without_named(value)
    return value


def anything(value: Any, name: str = "") -> Any:
    """A JSON value with all text cleaned; lists of ``argv`` and ``command`` as command lines."""
    if isinstance(value, str):
        return named(name, value) if name else text(value)
    if isinstance(value, dict):
        return {
            text(key) if isinstance(key, str) else key: anything(item, str(key))
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        if name in ("argv", "command"):
            return command([str(word) for word in value])
        return [anything(item) for item in value]
    return value


# ---- by name


def _words_of(name: str) -> list[str]:
    return [word.lower() for word in _compiled(_WORD).findall(name)]


def _kind(name: str) -> str:
    """``password``, ``secret``, ``key`` (one only where its value looks so), or nothing."""
    words = _words_of(name)
    if not words:
        return ""
    last, earlier = words[-1], words[-2] if len(words) > 1 else ""
    if last in _PASSWORDS or (last == "pass" and (not earlier or earlier in _PASS_OF)):
        return "password"
    if last in _ALWAYS or _compiled(_JOINED).search(last) or last == "auth":
        return "secret"
    if last in ("token", "tokens"):
        return _token_kind(last, earlier, words)
    if last in ("key", "keys"):
        return "secret" if not earlier or earlier in _KEY_OF else "key"
    return ""


def _token_kind(last: str, earlier: str, words: list[str]) -> str:
    if not _TOKEN_OF_TEXT.isdisjoint(words):
        return ""
    if last == "tokens":
        if earlier in _KEY_OF or earlier == "secrets":
            return "secret"
        return ""
    return "secret"


def _holds(name: str, value: str) -> bool:
    """Whether a value under this name is a secret."""
    secret_kind = _kind(name)
    if secret_kind == "password":
        return not re.fullmatch(r"(?i)true|false|none|null", value)
    if secret_kind == "secret":
        return (
            not _compiled(_PLAIN).fullmatch(value) and not _compiled(_PATH).fullmatch(value)
        ) or _is_random(value)
    return secret_kind == "key" and _is_random(value)


def _is_random(value: str) -> bool:
    """Whether a word looks random: long, letters of both cases and digits, or hexadecimal."""
    if re.fullmatch(r"[0-9a-f]{32,}", value):
        return True
    kinds = sum(bool(re.search(pattern, value)) for pattern in ("[a-z]", "[A-Z]", "[0-9]"))
    return (
        len(value) >= 16
        and kinds == 3
        and re.fullmatch(r"[\w+/=~.-]+", value) is not None
        and "/" not in value[:2]
    )


# ---- words of a command


def _word(word: str) -> str:
    name, equals, value = word.partition("=")
    if equals and re.fullmatch(r"[+~-]*[\w.@/-]+", name):
        if _holds(name.lstrip("+~"), value.strip("\"'")):
            return f"{name}={HIDDEN}"
        return f"{name}={text(value)}"
    return text(word)


def _is_hidden_after(option: str, value: str) -> bool:
    """Whether the word after an option is a secret."""
    if len(option) == 2:
        return option in _SHORT and _is_password_like(value)
    return _holds(option, value) or (option in ("--key", "--login") and _is_random(value))


_SHORT = ("-p", "-P", "-k", "-t", "-s", "-w")
_NO_PASSWORD = (
    r"(?i)[\d.:,e+-]+|(?:b?float|bf|fp|tf|u?int|nf|q|v|cuda|gpu|cpu|rank|exp|run|seed|epoch|t|gpt|resnet|vit)[\d_.:-]+\w?"
    r"|[a-z]+|[\w.-]*/.*|.*\.\w{1,5}|[\d.]+[a-z]{1,3}|[a-z]+\d{0,3}([-_][a-z0-9]{1,8})+"
)


def _is_password_like(value: str) -> bool:
    """Letters and digits, or signs, mixed as no size, name, path or version is."""
    if len(value) < 6 or "=" in value.rstrip("=") or _compiled(_NO_PASSWORD).fullmatch(value):
        return False
    kinds = [bool(re.search(pattern, value)) for pattern in ("[a-zA-Z]", "[0-9]", "[!@#$%^&*]")]
    return sum(kinds) >= 2


# ---- in any text

_SHORTEST = 6
_AROUND = r"(?<![A-Za-z0-9])"
_TOKENS = (
    r"gh[opusr]_[A-Za-z0-9]{10,}",
    r"github_pat_\w{10,}",
    r"gl(?:pat|ptt|dt|cbt|rt|ft|soat)-[\w-]{10,}",
    r"hf_(?=[A-Za-z]*[A-Z0-9])[A-Za-z0-9]{8,}",
    r"(?:api_org|hf_oauth|wandb_v1)_[\w-]{16,}",
    r"sk-(?=[\w-]*\d)[\w-]{12,}",
    r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{8,}",
    r"whsec_[A-Za-z0-9+/=]{16,}",
    r"xox[a-z]-[\w-]{8,}",
    r"xapp-[\w-]{10,}",
    r"(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{12,}",
    r"AIza[\w-]{20,}",
    r"ya29\.[\w-]{16,}",
    r"GOCSPX-[\w-]{12,}",
    r"eyJ[\w-]{8,}(?:\.[\w-]+){0,2}",
    r"dapi[0-9a-f]{20,}(?:-\d)?",
    r"nvapi-[\w-]{16,}",
    r"npm_[A-Za-z0-9]{20,}",
    r"pypi-[\w-]{16,}",
    r"dop_v1_[0-9a-f]{20,}",
    r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{20,}",
    r"SG\.[\w-]{16,}\.[\w-]{16,}",
    r"r8_[A-Za-z0-9]{20,}",
    r"gsk_[A-Za-z0-9]{20,}",
    r"hvs\.[\w-]{20,}",
    r"local-[0-9a-f]{40}",
    r"\d{8,10}:AA[\w-]{30,}",
)
_PRIVATE_BLOCK = (
    r"(?s)-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----.*?"
    r"(?:-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|\Z)"
)
_HOOKS = (
    r"(?i)(https://hooks\.slack\.com/services|https://discord(?:app)?\.com/api/webhooks)/[\w/-]+"
)
_HEADER = (
    r"(?i)\b((?:proxy-)?authorization[\"']?\s*[:=](?!\s*[\"']?\[hidden\])\s*[\"']?)[^\"'\r\n]+"
)
_BEARER = r"\b([Bb]earer|BEARER|Basic|Token)\s+(?=[\w.~+/=-]*[\d=A-Z])[\w.~+/=-]{8,}"
_SIGNED = r"(?i)([?&;](?:sig|signature|x-amz-[\w-]+|code|sharedaccesssignature)=)[^&\s\"']+"
_ACCOUNT = r"(?i)\b((?:shared)?(?:account|access)key(?:name)?=)[^;\s\"']{8,}"
_LOGIN = r"(?i)\b(wandb\s+login\s+(?:--?[\w-]+\s+)*)[0-9a-f]{32,}"
_TOKEN_HINTS = """
gh github_pat_ gl hf_ api_org wandb_v1 sk- _live_ _test_ whsec_ xox xapp- akia asia abia acca aiza
ya29. gocspx- eyj dapi nvapi- npm_ pypi- dop_v1_ shpat_ shpca_ shppa_ shpss_ sg. r8_ gsk_
hvs. local- :aa
"""
_SHAPES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("private key",), _PRIVATE_BLOCK, HIDDEN),
    (("://",), r"://[^/\s@\"']+@", f"://{HIDDEN}@"),
    (("hooks",), _HOOKS, rf"\1/{HIDDEN}"),
    (("authorization",), _HEADER, rf"\1{HIDDEN}"),
    (("bearer", "basic", "token"), _BEARER, rf"\1 {HIDDEN}"),
    (("sig", "x-amz-", "code="), _SIGNED, rf"\1{HIDDEN}"),
    (("accountkey", "accesskey"), _ACCOUNT, rf"\1{HIDDEN}"),
    (("wandb",), _LOGIN, rf"\1{HIDDEN}"),
    (tuple(_TOKEN_HINTS.split()), _AROUND + "(?:" + "|".join(_TOKENS) + ")", HIDDEN),
)
"""What a lower-case text must have for the pattern to be tried, pattern, replacement."""
_NAMED = (
    r"(?<![\w.-])(?P<quote>[\"']?)(?P<name>[+~-]{0,2}[A-Za-z_][\w.-]{1,80})(?P=quote)"
    r"[ \t]{0,4}(?P<sign>[:=]|[ \t])[ \t]{0,4}"
)
_VALUE = r"\"[^\"\n]*\"|'[^'\n]*'|[^\s,;&}\]\)\"']+"


def _without_named(value: str) -> str:
    """Text with ``name=value``, ``"name": "value"``, ``--name value`` of secrets hidden."""
    parts: list[str] = []
    at = 0
    while match := _compiled(_NAMED).search(value, at):
        end = match.end()
        parts.append(value[at:end])
        if _kind(match["name"]):
            value_match = _compiled(_VALUE).match(value, end)
        else:
            value_match = None
        if value_match is not None and (match["sign"] in ":=" or match["name"].startswith("-")):
            parts.append(_hidden(match["name"], value_match.group()))
            end = value_match.end()
        at = end
    return "".join(parts) + value[at:]


def _hidden(name: str, value: str) -> str:
    quote = value[0] if value[0] in "\"'" else ""
    inner = value[1:-1] if quote else value
    if (
        not inner
        or HIDDEN in inner
        or not (quote or _is_literal(inner, _kind(name)))
        or not _holds(name, inner)
    ):
        return value
    return f"{quote}{HIDDEN}{quote}"


def _is_literal(value: str, kind: str) -> bool:
    """Whether a bare word after a name can be a secret, and none of a sentence or of code."""
    if re.search(r"[()\[{<>]", value):
        return False
    return kind == "password" or (len(value) >= 6 and not value.isalpha())
