"""How results of a disk look: checkpoints, states, data loaders and sustained writes."""
