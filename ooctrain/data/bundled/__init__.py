"""Data files that come with the package; SOURCE.md says whose they are."""
