"""What a run leaves on disk, and how it is read again; nothing that is found there is trusted.

- `directory`: the files of a run, and how they stay whole
- `rows`: lines of metrics and timings, and checksums of them; `writers`: who else is told
- `checkpoint`: the state of a run; `fingerprint`: the run that a checkpoint belongs to
- `record`: what made the run, and what it ended with

The modules of `experiment` that say what a run is (`fields`, `config`, `grid`, `devices`) are used here; those that
train and read one (`load`, `evaluate`, `loop`) use this package.
"""
