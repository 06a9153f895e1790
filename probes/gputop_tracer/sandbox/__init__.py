"""What a user's script may touch while traced, by the kernel. Nothing here knows of torch."""
