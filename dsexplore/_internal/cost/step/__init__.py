"""How long a step takes: its work on the streams of each GPU, and the stages of its pipeline."""
