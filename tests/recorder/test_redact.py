"""Secrets do not reach the record in whatever form they are given, and what is no secret stays
readable.
"""

import time

import pytest

from gputop_probes import redact

HEX = "0123456789abcdef" * 2
WANDB = "a1b2c3d4e5" * 4
MIXED = "Zx81kQ0vTn3pLs7WqR2y"
GITHUB = "ghp_" + "aB3dE5gH7j" * 3 + "kL9mN1"
AWS_SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"

SECRETS = [
    # names as options, overrides and variables
    (["t.py", "--hf-token", MIXED], MIXED),
    (["t.py", "--hf_token", "hunter2x"], "hunter2x"),
    (["t.py", "--hf_token=hunter2x"], "hunter2x"),
    (["t.py", "--hfToken", "hunter2x"], "hunter2x"),
    (["t.py", "--hfToken=hunter2x"], "hunter2x"),
    (["t.py", "trainer.hf_token=hunter2x"], "hunter2x"),
    (["t.py", "+wandb.key=hunter2x"], "hunter2x"),
    (["t.py", "++a.b.api_key=hunter2x"], "hunter2x"),
    (["t.py", "++a.b.apiKey=hunter2x"], "hunter2x"),
    (["t.py", "model.auth.password='hunter2x'"], "hunter2x"),
    (["t.py", "--secretkey", "hunter2x"], "hunter2x"),
    (["t.py", "--apikey=hunter2x"], "hunter2x"),
    (["t.py", "--pass", "hunter2"], "hunter2"),
    (["t.py", "--db-pass=hunter2"], "hunter2"),
    (["t.py", "--mypassword", "hunter2"], "hunter2"),
    (["t.py", "--password", "correct"], "correct"),
    (["t.py", "--passphrase=correct"], "correct"),
    (["t.py", "--pwd", "correct"], "correct"),
    (["t.py", "--password", "-starts-with-a-dash"], "-starts-with-a-dash"),
    (["t.py", "-p", "S3cr3t!pw"], "S3cr3t!pw"),
    (["t.py", "-k", MIXED], MIXED),
    (["t.py", "--key", "hunter2x"], "hunter2x"),
    (["t.py", "--wandb_key", WANDB], WANDB),
    (["t.py", "--private-key", MIXED], MIXED),
    (["t.py", "--client-secret", "abcdefgh"], "abcdefgh"),
    (["t.py", "--auth", "me:hunter2x"], "hunter2x"),
    (["t.py", "--cookie", "session=1234abcd"], "1234abcd"),
    (["t.py", "--credentials", "user-and-pw"], "user-and-pw"),
    (["t.py", "--access-token", "0123456789"], "0123456789"),
    (["t.py", "--license_key", "AB12-CD34-EF56"], "AB12-CD34-EF56"),
    (["env", "HF_TOKEN=hunter2x", "python", "t.py"], "hunter2x"),
    (["env", "WANDB_API_KEY=" + WANDB, "t.py"], WANDB),
    (["env", "AWS_SECRET_ACCESS_KEY=" + AWS_SECRET, "t.py"], AWS_SECRET),
    (["env", "PGPASSWORD=hunter2", "t.py"], "hunter2"),
    (["docker", "run", "-e", "OPENAI_API_KEY=hunter2x", "image"], "hunter2x"),
    (["sh", "-c", "export HF_TOKEN=hunter2x; python t.py"], "hunter2x"),
    (["bash", "-lc", "WANDB_API_KEY=hunter2x python t.py --lr 1"], "hunter2x"),
    (["bash", "-c", "python t.py --hf-token hunter2x --lr 1"], "hunter2x"),
    (["bash", "-c", "wandb login " + WANDB + " && python t.py"], WANDB),
    (["wandb", "login", "--relogin", WANDB], WANDB),
    # inside values
    (["t.py", "--cfg", '{"api_key": "hunter2x", "lr": 1}'], "hunter2x"),
    (["t.py", '--cfg={"db": {"password": "correct"}}'], "correct"),
    (["t.py", "--cfg", "{apiKey: hunter2x, lr: 1}"], "hunter2x"),
    (["t.py", "--cfg", "auth:\n  token: hunter2x\n"], "hunter2x"),
    (["t.py", "--header", "Authorization: Bearer abcdef12"], "abcdef12"),
    (["t.py", "-H", "Authorization: Basic dXNlcjpwYXNz"], "dXNlcjpwYXNz"),
    (["t.py", "-H", "X-Api-Key: hunter2x"], "hunter2x"),
    (["t.py", "--url", "https://me:hunter2@host/x"], "hunter2"),
    (["t.py", "--url", "https://" + GITHUB + "@host/x.git"], GITHUB),
    (["t.py", "s3://bucket/x?X-Amz-Signature=abc123&x=1"], "abc123"),
    (["t.py", "https://host/x?token=hunter2x&b=1"], "hunter2x"),
    (["t.py", "https://a.blob.core.windows.net/x?sv=1&sig=ab%2Bcd"], "ab%2Bcd"),
    (["t.py", "--conn", "AccountName=a;AccountKey=" + MIXED + "==;X=1"], MIXED),
    (["t.py", "https://hooks.slack.com/services/T000/B000/XXXX1111"], "XXXX1111"),
    # shapes, whatever the name
    (["t.py", "--x", GITHUB], GITHUB),
    (["t.py", "gho_" + GITHUB[4:]], GITHUB[4:]),
    (["t.py", "github_pat_11ABCDEFG0" + MIXED], MIXED),
    (["t.py", "glpat-" + MIXED], MIXED),
    (["t.py", "AIza" + "SyA1b2C3d4E5f6G7h8I9j0KLMNOPQRSTUVW"], "SyA1b2C3"),
    (["t.py", "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz01234567"], "AbCdEfGh"),
    (["t.py", "sk-ant-api03-" + MIXED], MIXED),
    (["t.py", "sk-proj-" + MIXED], MIXED),
    (["t.py", "sk_live_" + MIXED], MIXED),
    (["t.py", "xoxb-1234567890-" + MIXED], MIXED),
    (["t.py", "AKIAIOSFODNN7EXAMPLE"], "IOSFODNN7"),
    (["t.py", "ASIAIOSFODNN7EXAMPLE"], "IOSFODNN7"),
    (["t.py", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-def"], "eyJzdWIi"),
    (["t.py", "dapi" + HEX], HEX),
    (["t.py", "nvapi-" + MIXED], MIXED),
    (["t.py", "npm_" + MIXED + MIXED], MIXED),
    (["t.py", "pypi-" + MIXED], MIXED),
    (["t.py", "ya29." + MIXED], MIXED),
    (
        [
            "t.py",
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE" + MIXED + "\n-----END RSA PRIVATE KEY-----",
        ],
        MIXED,
    ),
]


@pytest.mark.parametrize(("words", "secret"), SECRETS, ids=range(len(SECRETS)))
def test_a_secret_is_hidden(words: list[str], secret: str) -> None:
    shown = redact.command(words)
    assert secret not in " ".join(shown) and redact.HIDDEN in " ".join(shown), shown
    assert shown[0] == words[0], "the rest can still be read"
    assert redact.command(shown) == shown, "what is clean stays as it is"


COMMIT = "9b4eccde98c75fdcfc0806212047bb50e98eb435"
KEPT = [
    "--max-tokens 512", "--tokenizer gpt2", "--num_tokens=1e9", "pad_token_id=0", "--key-dim 64",
    "--monkey see", "--sha " + COMMIT, "--revision=" + COMMIT, "-p 8080", "-p 8080:80", "-p fp16",
    "-p train", "--patience 10", "--pass-through", "--n_passes 3", "--num-pass 2", "--author me",
    "--auth_type=basic", "--keys-per-head 4", "--image-key image", "--sort_key=length",
    "data.label_key=label", "--eos-token </s>", "--pad_token=<pad>", "--max_new_tokens 100",
    "--tokens-per-batch 4096", "--use_auth_token True", "--token_dropout 0.1",
    "--special_tokens a,b", "--hf_model gpt2", "hf-internal-testing/tiny-random-gpt2",
    "--task sk-learn-something-long", "--key-file id.pem", "--keyboard us", "--cookiecutter x",
    "--secretary Ann", "-k 5", "-t 0.1", "-s seed42", "-p resnet50", "-t t5-small", "--lr 3e-4",
    "--model meta-llama/Llama-3.1-8B", "https://host/data?split=train&n=5",
    "s3://bucket/path/to/data.tar", "--cfg {\"lr\":1,\"max_tokens\":512}", "trainer.max_epochs=3",
    "+model.hidden=64", "model.num_key_value_heads=8", "--bos_token_id 1", "--stop-token END",
    "--credentials /etc/creds.json", "--master_port 29500", "--rdzv_endpoint=host:29400",
    "wandb.project=demo", "--compass north", "--bypass", "CUDA_VISIBLE_DEVICES=0,1",
    "TOKENIZERS_PARALLELISM=false", "ckpt/" + COMMIT + ".pt", "--password_min_length 8",
]  # fmt: skip


@pytest.mark.parametrize("words", KEPT)
def test_what_is_no_secret_stays(words: str) -> None:
    command = ["python", "t.py", *words.split(" ")]
    assert redact.command(command) == command


TEXTS_KEPT = [
    "KeyError: 'token'", "Unexpected token: something", "tokens: 4096 per batch", "loss/token 0.5",
    "expected a key, found none", "auth: enabled",
    'File "/home/you/train.py", line 7, in <module>\n    token = tok(text)',
    "CUDA out of memory. "
    "Tried to allocate 20.00 MiB", "key=lambda one: one.size", "the password was wrong",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS_KEPT)
def test_sentences_and_code_stay(text: str) -> None:
    assert redact.text(text) == text


def test_json_is_cleaned_at_any_depth() -> None:
    found = redact.anything(
        {
            "argv": ["t.py", "--hf-token", "abc"],
            "env": {"X_API_KEY": "hunter2x", "RANK": "0"},
            "deep": [{"m": GITHUB}],
        }
    )
    assert found == {
        "argv": ["t.py", "--hf-token", "[hidden]"],
        "env": {"X_API_KEY": "[hidden]", "RANK": "0"},
        "deep": [{"m": "[hidden]"}],
    }


@pytest.mark.parametrize("part", ["=", "a.", "-", '"a":', "eyJ", "A", "token ", "://"])
def test_no_text_makes_it_slow(part: str) -> None:
    text = part * 50_000
    began = time.process_time()
    redact.text(text)
    redact.command([text])
    assert time.process_time() - began < 2.0
