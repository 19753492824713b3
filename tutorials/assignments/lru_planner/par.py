"""Par: what the library's `belady` takes, which looks ahead, computed when it is asked for.

For the steps and budgets of `grade.toml` it prints `lru`, which moves parameters too, par, and the
LP bound of swapping, which no planner of this kind beats. Read next: `test_lru.py`.
"""

from pathlib import Path

from ooctrain.course.measures import par_us
from ooctrain.course.rubric import read_rubric
from ooctrain.errors import Withheld


def main():
    """Prints the table."""
    print("budget   lru            par (belady) bound")
    for measure in read_rubric(Path(__file__).parent).measures:
        try:
            without = f"{par_us(measure, 'lru'):9.0f} us"
        except Withheld:  # in a course wheel
            without = "-".rjust(12)
        par, bound = par_us(measure), par_us(measure, "bound")
        print(f"{measure.budget:>6} {without} {par:11.0f} us {bound:8.0f} us")


if __name__ == "__main__":
    main()
