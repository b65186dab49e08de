"""Real ranks: local processes that are forked from a server, or engines of a cluster; they run programs and cells."""
