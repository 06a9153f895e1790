"""What a user's script may touch while it is traced, enforced by the kernel. Nothing here knows of
torch.
"""
