"""Sweeps: from a config file that states many trials to a folder of runs, on Slurm or on this machine.

- `hyper`: the words of `get_hyper`; `trials`: what they state, checked and named
- `folder`: the files of a sweep; `attempt`: a process that works on a trial
- `local` and `slurm`: where attempts run; `status`: where the trials are; `tail`: the ends of files that grow
"""
