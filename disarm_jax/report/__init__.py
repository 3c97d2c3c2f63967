"""Tables and figures of the paper from run directories, with the paper's own numbers beside ours. In this order:

- `paper`: its numbers and tables, and the config of each cell; `variants`: known ways to differ from it
- `runs`: run directories as they are found; `origin`: where a run comes from; `pools`: runs of one configuration
- `cells`: our number beside the paper's; `times`: what a step costs
- `claims`: the orderings that the paper claims; `verdict`: whether it is reproduced
- `tables`, `curves`, `page`: how it is shown; `names` and `palette`: what things are called, and their colours
- `one_run`: what every run leaves to look at, without the paper
"""
