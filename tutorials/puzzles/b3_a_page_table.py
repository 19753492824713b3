# %% [markdown]
# # b3 A page table
#
# Virtual addressing ends fragmentation: the *addresses* of a block lie in a row, its *pages*
# anywhere. There are 24 physical pages of 16 bytes. A block gets virtual pages first, first + 1,
# ..., which never come twice; you find a physical page for each.
#
#     table   {virtual page: physical page}
#     free    the physical pages that no block has
#
# **Your work:** three functions of one to three lines. Both `table` and `free` are changed in
# place. No block is refused as long as enough pages are free, wherever they are. **Needs:**
# tutorial 07.

# %%
import ooctrain as oc

PAGE = 16  # bytes


def map_pages(table, free, first, pages):
    """Takes free pages for the virtual pages first, ..., first + pages - 1."""


def unmap_pages(table, free, first, pages):
    """Gives the pages of a block back."""


def translate(table, address):
    """The physical address of a virtual one."""
    return address


oc.puzzles.b3.check((map_pages, unmap_pages, translate), picture="b3.svg")
