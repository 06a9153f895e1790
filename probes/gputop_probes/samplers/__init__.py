"""What is sampled beside the steps: processes, host, GPUs. Each sampler packs records; only the recorder writes."""
