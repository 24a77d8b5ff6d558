"""Runs two versions of the package, and compares everything that they write.

  python -m tests.audit.recording --base COMMIT --out FOLDER

Modules are moved and merged without a change of what they compute. A recording
shows it: tokens, counters, traces and log-probabilities of every method, of toy
chains and of small networks; rows, advice and the tables of reports; stored
checkpoints, read back. Both versions run on one machine, because makes of CPU
differ in the last bits.

What is recorded reaches the package through its public names, and through
`finding.named`, so that it finds them wherever they moved.
"""
