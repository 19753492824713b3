"""`make gpu`: everything that needs a GPU, in one command. Read next: `__main__.py`."""
