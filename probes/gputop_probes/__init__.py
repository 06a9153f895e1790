"""What is measured: launcher, recorder, samplers, context, record. Never imports Textual."""
