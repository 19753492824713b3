"""Dynamic tensor rematerialisation: the planner, and the runtime that it plays."""
