"""Par: what the library's `lru` takes, computed when it is asked for.

For the steps and budgets of `grade.toml` it prints par, `belady`, which looks ahead, and the LP
bound of swapping, which no planner of this kind beats. Read next: `test_lru.py`.
"""

from pathlib import Path

from ooctrain.course.measures import par_us
from ooctrain.course.rubric import read_rubric


def main():
    """Prints the table."""
    print("budget   par (lru)      belady       bound")
    for measure in read_rubric(Path(__file__).parent).measures:
        par, ahead, bound = (par_us(measure, name) for name in ("lru", "belady", "bound"))
        print(f"{measure.budget:>6} {par:9.0f} us {ahead:8.0f} us {bound:8.0f} us")


if __name__ == "__main__":
    main()
