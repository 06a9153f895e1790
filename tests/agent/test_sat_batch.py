"""Sizes, descriptions and fingerprints of batches."""

from collections import UserDict, namedtuple
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from gputop_agent.timing import batch  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    batch.reset()
    batch._plans.clear()
    yield
    batch.reset()
    batch._plans.clear()


Pair = namedtuple("Pair", "image label")


@dataclass
class Item:
    weight: float
    pixels: object


IMAGES = torch.zeros(6, 3, 8, 8)
TOKENS = torch.zeros(4, 16, dtype=torch.int64)
MASK = torch.ones(4, 16, dtype=torch.int64)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (IMAGES, (6, 0)),
        ([IMAGES, torch.zeros(6, dtype=torch.int64)], (6, 0)),
        ((torch.tensor(3.0), IMAGES), (6, 0)),
        (Pair(IMAGES, torch.zeros(6)), (6, 0)),
        ({"attention_mask": MASK, "input_ids": TOKENS[:, :8]}, (4, 32)),
        (UserDict({"input_ids": TOKENS, "labels": TOKENS}), (4, 64)),
        ((TOKENS, TOKENS), (4, 64)),
        (Item(1.0, IMAGES), (6, 0)),
        ({"deep": [{"x": IMAGES}]}, (6, 0)),
        ("text", (0, 0)),
        ([], (0, 0)),
        (None, (0, 0)),
        (torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), (0, 0)),
    ],
)
def test_samples_and_tokens(value, expected):
    assert batch.count(value) == expected
    assert batch.count(value) == expected  # through the remembered plan


def test_another_structure_under_the_same_type_is_seen():
    assert batch.count([IMAGES]) == (6, 0)
    assert batch.count([[TOKENS]]) == (4, 64)
    assert batch.count({"x": IMAGES}) == (6, 0)
    assert batch.count({"y": TOKENS}) == (4, 64)


def test_user_code_is_not_run():
    class Lazy(dict):
        def __getitem__(self, key):
            raise AssertionError("ran user code")

        items = values = keys = __iter__ = __getitem__

    assert batch.count(Lazy(x=IMAGES)) == (6, 0)


@given(
    st.recursive(
        st.integers(0, 9),
        lambda t: st.lists(t, max_size=3) | st.dictionaries(st.text(max_size=2), t),
    )
)
def test_any_nesting_is_counted_without_an_error(tree):
    samples, tokens = batch.count({"tree": tree, "last": IMAGES})
    assert (samples, tokens) == (6, 0)


def test_description_names_shapes_dtypes_and_the_line_that_fetched():
    batch.count({"input_ids": TOKENS, "pixels": [IMAGES.half()]})
    assert batch.facts.description == {
        "shapes": {"input_ids": [4, 16], "pixels.0": [6, 3, 8, 8]},
        "dtypes": {"input_ids": "int64", "pixels.0": "float16"},
    }
    assert batch.facts.site is not None and "test_sat_batch.py:" in batch.facts.site


def test_fingerprint_tells_data_apart_and_is_given_once():
    batch.count(torch.arange(100))
    first = batch.take_crc()
    batch.count(torch.arange(100))
    assert first != 0 and batch.take_crc() == first and batch.take_crc() == 0
    batch.count(torch.arange(1, 101))
    assert batch.take_crc() not in (0, first)


def test_only_sampled_batches_are_fingerprinted():
    seen = []
    for _ in range(101):
        batch.count(IMAGES)
        seen.append(batch.take_crc() != 0)
    assert [i for i, there in enumerate(seen) if there] == [*range(8), 50, 100]


@pytest.mark.parametrize(
    "value", [torch.zeros(4, 4, device="meta"), torch.zeros(0), torch.eye(3).to_sparse()]
)
def test_what_is_not_plain_memory_has_no_fingerprint(value):
    assert batch.fingerprint(value) == 0


def test_a_transposed_view_still_counts():
    assert batch.count(torch.zeros(4, 9).t()) == (9, 0)


def test_indexes_of_several_tables_are_no_tokens():
    """As DLRM's: features, and a row of indexes for each embedding table."""
    features, indexes, clicks = torch.rand(128, 13), torch.ones(4, 128).long(), torch.rand(128, 1)
    assert batch.count([features, indexes, indexes, clicks]) == (128, 0)
    assert batch.count((features, indexes.T)) == (128, 0)


def test_all_texts_of_a_sample_are_counted():
    """As sentence-transformers and TRL name them."""
    pair = {"sentence_0_input_ids": TOKENS, "sentence_0_attention_mask": MASK}
    pair |= {"sentence_1_input_ids": TOKENS[:, :8], "label": torch.ones(4).long()}
    assert batch.count(pair) == batch.count(pair) == (4, 64 + 32)


def test_pictures_are_counted_and_not_their_boxes():
    """As Ultralytics collates them: boxes of all pictures in a row, before the pictures."""
    for boxes in (14, 23):
        rows = {"batch_idx": torch.ones(boxes), "bboxes": torch.ones(boxes, 4), "img": IMAGES}
        assert batch.count(rows) == (6, 0)
    batch._plans.clear()
    texts = {"attention_mask": MASK, "input_ids": TOKENS, "pixel_values": IMAGES}
    assert batch.count(texts) == (4, 64)  # some of them with several pictures
    batch._plans.clear()
    assert batch.count({"x": MASK.float(), "bias": torch.zeros(1, 1, 16, 16)}) == (4, 0)


def test_a_list_of_pictures_beside_one_of_targets_has_a_sample_each():
    """As torchvision's detectors are given them; channels are no samples."""
    for count in (4, 5, 1):
        pictures = [torch.zeros(3, 20 + i, 30) for i in range(count)]
        targets = [{"boxes": torch.zeros(i, 4), "labels": torch.ones(i).long()} for i in range(9)]
        assert batch.count((tuple(pictures), tuple(targets[:count]))) == (count, 0)
        assert batch.count([pictures, targets[:count]]) == (count, 0)
    assert batch.count(([IMAGES, IMAGES], [TOKENS, TOKENS])) == (6, 0)
    assert batch.count((IMAGES, TOKENS[:2])) == (6, 0)  # another structure under the same type


def test_a_few_numbers_a_sample_and_the_places_of_vectors_are_no_tokens():
    """word2vec's negatives, and the times of a decision transformer's states."""
    pair, negatives = torch.ones(128).long(), torch.ones(128, 5).long()
    assert batch.count((pair, pair, negatives)) == (128, 0)
    times, states = torch.ones(64, 20).long(), torch.rand(64, 20, 17)
    assert batch.count([times, states, torch.rand(64, 20, 6)]) == (64, 0)
    batch._plans.clear()
    causal = torch.ones(4, 16, 16).bool()
    assert batch.count([TOKENS, causal]) == (4, 64)


def test_the_fingerprint_of_a_view_with_gaps_is_of_its_values():
    """``tokens[:, :-1]``, as language models are given them."""
    tokens = torch.arange(5000 * 9).reshape(5000, 9)
    assert batch.fingerprint(tokens[:, :-1]) == batch.fingerprint(tokens[:, :-1].contiguous()) != 0
    assert batch.fingerprint(tokens[:, 1:]) != batch.fingerprint(tokens[:, :-1])
