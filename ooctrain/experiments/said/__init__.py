"""What the experiments say beside the papers: sentences whose figures come from the run itself."""
