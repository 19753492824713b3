"""The inner loop of search planners, compiled: a choice of what to drop becomes a makespan."""
