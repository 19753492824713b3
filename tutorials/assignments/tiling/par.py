"""Par: what the library's frontiers need, next to bands that compute their halos again.

For the networks of `grade.toml` it prints work and peak of par, of the untiled chain, and of bands
that keep nothing. Read next: `test_rows.py`.
"""

from itertools import pairwise
from pathlib import Path

from ooctrain.course.footprints import chain_for, par_footprint
from ooctrain.course.rubric import read_rubric
from ooctrain.testing.tiled.bands_by_hand import BandedChain, footprint_of, par_rows
from ooctrain.units import format_bytes


def halo_work(chain):
    """Work of bands of the output that keep nothing, over the untiled work."""
    heights, done = chain.heights, 0
    sizes = zip(chain.row_bytes[1:], chain.layers, strict=True)
    weights = [size * layer[0] for size, layer in sizes]
    whole = sum(rows * weight for rows, weight in zip(heights[1:], weights, strict=True))
    bands = min(len(chain.cuts) - 1, heights[-1])
    for lo, hi in pairwise([heights[-1] * t // bands for t in range(bands + 1)]):
        for i in reversed(range(len(chain.layers))):
            kernel, stride, padding = chain.layers[i]
            done += (hi - lo) * weights[i]
            lo, hi = lo * stride - padding, (hi - 1) * stride - padding + kernel
            lo, hi = max(0, lo), min(heights[i], hi)
    return done / whole


def main():
    """Prints the table."""
    print("                          work      peak")
    for part in read_rubric(Path(__file__).parent).footprints[:1]:
        chain, par = chain_for(part), par_footprint(part)
        one = BandedChain(chain.layers, (0, chain.cuts[-1]), chain.row_bytes)
        untiled = footprint_of(one, par_rows(one.layers, one.cuts))
        for name, work, peak in (
            ("par (frontiers)", par.work, format_bytes(par.peak_bytes)),
            ("untiled", untiled.work, format_bytes(untiled.peak_bytes)),
            ("halos computed again", halo_work(chain), ""),
        ):
            print(f"{name:<24} {work:5.2f} {peak:>10}")


if __name__ == "__main__":
    main()
