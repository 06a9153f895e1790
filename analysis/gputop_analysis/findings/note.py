"""Where a check was tried: what ``seen_on`` of a finding says."""

CPU = "a real training on a CPU with the fault injected"
H200 = "a real training on an H200 with the fault injected"
RECORDS = "built records only: never yet on a machine that has it"
PAIR = "two real trainings on a CPU, compared"
