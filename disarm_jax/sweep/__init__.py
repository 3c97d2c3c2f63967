"""Sweeps: from a config file that states many trials to a folder of runs, on Slurm or on this machine."""
