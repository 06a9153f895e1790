"""What grows, what keeps it, and what an allocator did."""
