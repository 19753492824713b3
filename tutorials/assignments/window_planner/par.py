"""What the library's planners take compared with the bound, computed when it is asked for.

For the steps and budgets of `grade.toml` it prints `naive`, `lru`, `window`, `belady`, each as
a multiple of the bound of swapping, which no planner of this kind beats. Read next:
`test_window.py`.
"""

from pathlib import Path

from ooctrain.course.measures import par_us
from ooctrain.course.rubric import read_rubric
from ooctrain.errors import Withheld

PLANNERS = ("naive", "lru", "window", "belady")


def main():
    """Prints the table."""
    print("step              bound     " + "".join(f"{name:>8}" for name in PLANNERS))
    for measure in read_rubric(Path(__file__).parent).measures:
        bound, ratios = par_us(measure, "bound"), []
        for name in PLANNERS:
            try:
                ratios.append(f"{par_us(measure, name) / bound:8.2f}")
            except Withheld:  # in a course wheel
                ratios.append(f"{'-':>8}")
        print(f"{measure.model}, {measure.budget:<6} {bound:9.0f} us{''.join(ratios)}")


if __name__ == "__main__":
    main()
