"""Data files that come with the package; SOURCE.md names their authors and licences."""
