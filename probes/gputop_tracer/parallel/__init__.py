"""One rank's share: wrappers of torch, ZeRO, tensor and expert parallelism, a stage."""
