"""What a traced program would cost on a cluster: collective times, the predicted step, memory, the choice of a mesh."""
