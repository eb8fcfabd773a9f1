"""`peer doctor`: whether this machine and its line suit a run, with one remedy for each problem.

The files, each built on those above it:

    doctor_facts.py   what was found out about machine, run, and the line between them (pure)
    prediction.py     what the run will ask of this machine, and how many rounds it will make (pure)
    findings.py       from facts to findings, remedies and an exit code (pure)
    report.py         the findings for people
    machine_facts.py  versions, device, memory, disk, ports, seconds of an inner step
    doctor.py         asks machine and members
"""
