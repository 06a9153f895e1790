"""Small print of the findings about clocks, power, heat and errors."""

from gputop_analysis.notes.note import Note

_NO = "no NVIDIA driver; the driver does not tell"

NOTES = {
    "TP01": Note(
        "gpu.clock_event_reasons 0x20 and 0x40 in busy samples, sm_clock_mhz", _NO, "idle samples, which are left out"
    ),
    "TP02": Note(
        "gpu.clock_event_reasons 0x4, power_limit_w, clocks of the peers",
        f"{_NO}; the default limit is not known",
        "0x4 alone is normal at full load",
    ),
    "TP03": Note(
        "gpu.clock_event_reasons 0x8 and 0x80 in busy samples",
        _NO,
        "0x8 is also set with the thermal bits: TP01 speaks then",
    ),
    "TP04": Note(
        "gpu.clock_event_reasons 0x2, pstate, sm_clock_max_mhz", _NO, "clocks locked on purpose, as for a benchmark"
    ),
    "TP05": Note(
        "gpu.sm_clock_mhz of all ranks' GPUs while busy",
        f"{_NO}; fewer than two GPUs; less than 60 s",
        "boost bins of 1 to 2 %, ranks that idle",
    ),
    "TP06": Note(
        "growth of gpu.ecc_corrected_total and ecc_uncorrected_total",
        _NO,
        "old errors: only what grows in this run counts",
    ),
    "TP07": Note("xid events", "none was reported", "XID 13 and 31 are often bugs of the program"),
    "TP08": Note(
        "growth of gpu.pcie_replay_total and nvlink_error_total", _NO, "old errors: only what grows in this run counts"
    ),
    "TP09": Note("xid events 79 and 154, devices that stop answering", _NO, "a driver that is being reloaded"),
    "TP10": Note("gpu.memory_temperature_c over 60 s", f"{_NO}; a card without that sensor", "a short peak"),
}
