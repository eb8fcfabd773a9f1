"""`peer doctor`: checks whether this machine and its connection suit a run, with one remedy for each problem.

The files, each built on those above it:

    doctor_facts.py   the facts about machine, run, and the connection between them (pure)
    findings.py       from facts to findings, remedies and an exit code (pure)
    report.py         the findings for people
    machine_facts.py  versions, device, memory, disk, ports
    doctor.py         asks machine and members
"""
