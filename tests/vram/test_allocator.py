"""The caching allocator against sequences worked out by hand from
c10/cuda/CUDACachingAllocator.cpp.
"""

import pytest

from gputop_analysis.vram.allocator import Allocator, OutOfMemoryError
from gputop_analysis.vram.conf import parse

MIB = 1 << 20


def amounts(allocator):
    """(allocated, reserved) in MiB."""
    return allocator.stats.allocated / MIB, allocator.stats.reserved / MIB


@pytest.mark.parametrize(
    ("request_bytes", "allocated", "reserved_mib"),
    [
        (1, 512, 2),
        (512, 512, 2),
        (513, 1024, 2),
        (MIB, MIB, 2),
        (MIB + 1, MIB + 512, 20),
        (10 * MIB - 1, 10 * MIB, 10),
        (10 * MIB, 10 * MIB, 10),
        (11 * MIB, 12 * MIB, 12),  # the rest of 1 MiB is not split off, so it counts as allocated
        (11 * MIB - 512, 11 * MIB - 512, 12),  # 1 MiB + 512 are
        (100 * MIB + 1, 100 * MIB + 512, 102),
    ],
)
def test_a_first_request(request_bytes, allocated, reserved_mib):
    allocator = Allocator()
    allocator.malloc(request_bytes)
    assert allocator.stats.allocated == allocated
    assert allocator.stats.reserved == reserved_mib * MIB
    assert allocator.stats.requested == request_bytes


def test_large_requests_below_10_mib_share_a_segment_of_20():
    allocator = Allocator()
    for _ in range(2):
        allocator.malloc(9 * MIB)
    assert amounts(allocator) == (18, 20)
    allocator.malloc(2 * MIB)
    assert amounts(allocator) == (20, 20)
    allocator.malloc(2 * MIB)
    assert amounts(allocator) == (22, 40)


def test_neighbours_merge_and_serve_a_request_as_large_as_all_of_them():
    allocator = Allocator()
    blocks = [allocator.malloc(6 * MIB) for _ in range(3)]
    assert amounts(allocator) == (18, 20)
    allocator.free(blocks[0])
    allocator.free(blocks[2])
    assert allocator.stats.inactive_split == 14 * MIB
    allocator.malloc(7 * MIB)
    assert amounts(allocator) == (
        14,
        20,
    )  # the last 8 MiB take it whole: the rest of 1 MiB is not split off
    allocator.free(blocks[1])
    allocator.malloc(12 * MIB)
    assert amounts(allocator) == (20, 20)


def test_the_smallest_block_that_fits_is_taken():
    allocator = Allocator()
    first, wall, second = (
        allocator.malloc(40 * MIB),
        allocator.malloc(12 * MIB),
        allocator.malloc(30 * MIB),
    )
    allocator.free(first)
    allocator.free(second)
    allocator.malloc(30 * MIB)
    allocator.malloc(40 * MIB)
    assert amounts(allocator) == (82, 82)
    assert wall.size * 512 == 12 * MIB


def test_a_block_of_one_stream_is_not_reused_by_another():
    allocator = Allocator()
    allocator.free(allocator.malloc(64 * MIB, stream=1))
    allocator.malloc(64 * MIB, stream=0)
    assert amounts(allocator) == (64, 128)
    allocator.malloc(64 * MIB, stream=1)
    assert amounts(allocator) == (128, 128)


def test_a_full_gpu_gets_the_cache_back_and_tries_again():
    allocator = Allocator(capacity=100 * MIB)
    allocator.free(allocator.malloc(60 * MIB))
    held = allocator.malloc(30 * MIB)
    assert amounts(allocator) == (30, 60)  # split off the cached block of 60
    allocator.free(held)
    allocator.malloc(70 * MIB)
    assert amounts(allocator) == (70, 70)
    assert (allocator.stats.retries, allocator.stats.ooms) == (1, 0)


def test_a_split_block_cannot_be_given_back():
    allocator = Allocator(capacity=100 * MIB)
    block = allocator.malloc(60 * MIB)
    allocator.free(block)
    allocator.malloc(8 * MIB)
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(60 * MIB)
    assert amounts(allocator) == (8, 60)
    assert allocator.stats.inactive_split == 52 * MIB
    assert (allocator.stats.retries, allocator.stats.ooms) == (1, 1)


def test_empty_cache_keeps_segments_in_use():
    allocator = Allocator()
    kept, gone = allocator.malloc(10 * MIB), allocator.malloc(12 * MIB)
    allocator.free(gone)
    allocator.empty_cache()
    assert amounts(allocator) == (10, 10)
    allocator.free(kept)
    allocator.empty_cache()
    assert amounts(allocator) == (0, 0)
    assert allocator.stats.peak_reserved == 22 * MIB


def test_expandable_segments_grow_by_pages_and_split_to_the_byte():
    allocator = Allocator(parse("expandable_segments:True"))
    first = allocator.malloc(15 * MIB)
    assert amounts(allocator) == (15, 20)
    second = allocator.malloc(15 * MIB)
    assert amounts(allocator) == (30, 40)  # 5 are left, 10 more are mapped as one page of 20
    allocator.free(first)
    allocator.free(second)
    allocator.malloc(41 * MIB)
    assert amounts(allocator) == (41, 60)


def test_expandable_segments_give_free_pages_back_and_map_them_again():
    allocator = Allocator(parse("expandable_segments:True"), capacity=120 * MIB)
    low, middle, _high = (allocator.malloc(size * MIB) for size in (30, 50, 30))
    assert amounts(allocator) == (110, 120)
    allocator.free(middle)
    allocator.empty_cache()
    assert amounts(allocator) == (
        60,
        60 + 20,
    )  # of 30..80 the pages 40..80 go, of the end 110..120 none
    allocator.malloc(45 * MIB)
    assert amounts(allocator) == (105, 120)  # 30..75, in place of the pages given back
    allocator.free(low)
    allocator.malloc(30 * MIB)
    assert amounts(allocator) == (105, 120)


def test_expandable_segments_prefer_a_block_that_cannot_grow():
    allocator = Allocator(parse("expandable_segments:True"))
    first = allocator.malloc(30 * MIB)
    allocator.malloc(20 * MIB)
    assert amounts(allocator) == (50, 60)  # 10 free at the edge
    allocator.free(first)
    allocator.malloc(8 * MIB)
    allocator.malloc(10 * MIB)
    assert amounts(allocator) == (38, 60)
    allocator.malloc(20 * MIB)  # 12 are left of the first block, 10 at the edge: 10 more are mapped
    assert amounts(allocator) == (58, 80)


def test_oversize_blocks_are_not_split_and_go_to_large_requests_only():
    allocator = Allocator(parse("max_split_size_mb:100"))
    allocator.free(allocator.malloc(200 * MIB))
    allocator.malloc(50 * MIB)
    assert amounts(allocator) == (50, 250)
    allocator.malloc(170 * MIB)
    assert amounts(allocator) == (220, 420)  # 200 is 30 more than asked, the limit is 20
    allocator.malloc(190 * MIB)
    assert amounts(allocator) == (420, 420)  # taken whole


def test_oversize_blocks_are_given_back_before_the_rest_of_the_cache():
    allocator = Allocator(parse("max_split_size_mb:100"), capacity=400 * MIB)
    oversize, small = allocator.malloc(300 * MIB), allocator.malloc(50 * MIB)
    allocator.free(oversize)
    allocator.free(small)
    allocator.malloc(120 * MIB)
    assert amounts(allocator) == (120, 170)
    assert allocator.stats.retries == 0


def test_garbage_collection_frees_what_was_unused_for_longest():
    conf = parse("garbage_collection_threshold:0.5,per_process_memory_fraction:1.0")
    allocator = Allocator(conf, capacity=100 * MIB)
    old, young = allocator.malloc(20 * MIB), allocator.malloc(40 * MIB)
    allocator.free(old)
    for _ in range(8):
        allocator.free(allocator.malloc(1))
    allocator.free(young)
    allocator.malloc(41 * MIB)
    assert amounts(allocator) == (
        42,
        84,
    )  # 42 new, 40 young, 2 of the small pool; the old 20 collected
    assert Allocator(parse("garbage_collection_threshold:0.5"), 100 * MIB).stats.retries == 0


def test_the_memory_fraction_limits_the_capacity():
    allocator = Allocator(parse("per_process_memory_fraction:0.5"), capacity=100 * MIB)
    allocator.malloc(50 * MIB)
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(2 * MIB)


def test_power_of_two_divisions():
    conf = parse("roundup_power2_divisions:4")
    assert conf.round_size(1200 * MIB) == 1280 * MIB
    assert conf.round_size(1280 * MIB) == 1280 * MIB
    assert conf.round_size(1281 * MIB) == 1536 * MIB
    assert conf.round_size(2048 * MIB) == 2048 * MIB
    assert conf.round_size(2000) == 2048
    ranged = parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")
    assert ranged.round_size(300 * MIB) == 300 * MIB
    assert ranged.round_size(600 * MIB) == 768 * MIB
    assert (
        ranged.round_size(1100 * MIB) == 1152 * MIB
    )  # PyTorch fills from the last interval on, itself included
    assert ranged.round_size(2100 * MIB) == 2304 * MIB


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_split_size_mb:4", "at least 20"),
        ("max_split_size_mb", "name:value"),
        ("max_split_size_mb:x", "whole number"),
        ("expandable_segments:true", "True or False"),
        ("garbage_collection_threshold:1.0", "between 0 and 1"),
        ("garbage_collection_threshold:much", "above 0"),
        ("roundup_power2_divisions:3", "power of two"),
        ("roundup_power2_divisions:[256:1", "bracket"),
        ("backend:cudaMallocAsync", "native"),
        ("max_split_mb:100", "no option 'max_split_mb'"),
    ],
)
def test_bad_options_are_one_line(text, says):
    with pytest.raises(ValueError, match=says) as error:
        parse(text)
    assert "\n" not in str(error.value)


def test_options_that_do_not_matter_are_accepted():
    assert parse("pinned_num_register_threads:8, release_lock_on_cudamalloc:True,") == parse("")
    assert parse("expandable_segments:True,max_split_size_mb:256").max_split_size == 256 * MIB
