"""Training states kept on a disk: what swapping them takes of a step."""
