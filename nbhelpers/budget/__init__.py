"""What a run needs before it starts: memory, time, cost, disk."""
