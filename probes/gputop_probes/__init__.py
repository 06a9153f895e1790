"""What is measured: launcher, recorder, samplers, run context and the run record. Never imports
Textual.
"""
