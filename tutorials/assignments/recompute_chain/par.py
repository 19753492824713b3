"""Par: what the library's planners that compute again take, computed when it is asked for.

For the steps and budgets of `grade.toml` it prints `rotor`, which is optimal for chains and is
par, and `chen-sqrt`, segments of equal length. Read next: `test_recompute.py`.
"""

from pathlib import Path

from ooctrain.course.measures import par_us
from ooctrain.course.rubric import read_rubric
from ooctrain.errors import Withheld


def main():
    """Prints the table."""
    print("step               par (rotor)   chen-sqrt")
    for measure in read_rubric(Path(__file__).parent).measures:
        try:
            segments = f"{par_us(measure, 'chen-sqrt'):8.0f} us"
        except Withheld:  # in a course wheel
            segments = "-"
        print(f"{measure.model}, {measure.budget:<6} {par_us(measure):9.0f} us {segments:>11}")


if __name__ == "__main__":
    main()
