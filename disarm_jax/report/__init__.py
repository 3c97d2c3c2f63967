"""Tables and figures of the paper from run directories, with the paper's own numbers beside ours."""
