"""The share of one rank: wrappers of torch, ZeRO, tensor and expert parallelism, a pipeline's
stage.
"""
