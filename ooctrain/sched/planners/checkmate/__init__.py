"""checkmate: what to keep and what to compute again on any graph, as a mixed-integer program."""
