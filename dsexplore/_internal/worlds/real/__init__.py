"""Local processes as real ranks: how they are forked, what they run, and what they send back."""
