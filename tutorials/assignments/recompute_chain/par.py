"""Par: what the library's planners that compute again take, computed when it is asked for.

For the steps and budgets of `grade.toml` it prints par, `superneurons`, which may swap as well;
`rotor`, which is optimal for chains; and `chen-sqrt`, segments of equal length. Read next:
`test_recompute.py`.
"""

from pathlib import Path

from ooctrain.course.measures import par_us
from ooctrain.course.rubric import read_rubric
from ooctrain.errors import Withheld


def main():
    """Prints the table."""
    print("step               par (superneurons)   rotor        chen-sqrt")
    for measure in read_rubric(Path(__file__).parent).measures:
        others = []
        for name in ("rotor", "chen-sqrt"):
            try:
                others.append(f"{par_us(measure, name):8.0f} us")
            except Withheld:  # in a course wheel
                others.append("-".rjust(11))
        print(
            f"{measure.model}, {measure.budget:<6} {par_us(measure):9.0f} us  {'  '.join(others)}"
        )


if __name__ == "__main__":
    main()
